"""SCAN's precomp folders: `{split}_ims.npy`, `{split}_caps.txt`, `{split}_ids.txt`.

The published files have two layouts: one feature row an image (train), or its row repeated for each caption (dev,
test). Which one a folder has follows from the counts of rows, captions and ids and is checked on the features
themselves; where they contradict each other, that is an error. Beside the published files there may be
`{split}_boxes.npy` (row region 4), `{split}_lengths.npy` (real regions of each row) and `{split}_txt.npy` (features of
captions); VSE-infinity's `id_mapping.json` leads from ids to image files.
"""

from pathlib import Path

import numpy as np

from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.faults import Faults
from tercet.data.formats.collect import PictureFolder, in_usual_order
from tercet.data.formats.layout import Layout, lay_out, layout_from_features, verify
from tercet.data.lines import no_caption, numbered_lines, read_json
from tercet.data.pictures import Pictures
from tercet.data.rows import Rows, map_array

FEATURES = "ims"


def recognise(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*_caps.txt"))


def read(path: Path, images: Path | None, faults: Faults, features: str = FEATURES) -> DataSet:
    """`features` is the end of the feature files' name: `{split}_{features}.npy`."""
    stems = {file.name.removesuffix("_caps.txt"): file for file in path.glob("*_caps.txt")}
    splits: dict[str, Split] = {}
    for end in (f"_{features}.npy", "_ids.txt"):
        for file in path.glob(f"*{end}"):
            if file.name.removesuffix(end) not in stems:
                raise ValueError(f"{file}: there is no {file.name.removesuffix(end)}_caps.txt with its captions")
    for stem in in_usual_order(stems):
        name = SPLIT_NAMES.get(stem, stem)
        if name in splits:
            raise ValueError(f"{path} holds the split {name} twice, under two names")
        splits[name] = _read_split(path, stem, features, images, faults)
    without = [name for name, split in splits.items() if split.features is None]
    if without and (len(without) < len(splits) or features != FEATURES):
        raise ValueError(f"{path}: there are no features {features} ({{split}}_{features}.npy) of {', '.join(without)}")
    return DataSet(path, "precomp", splits, faults.listed)


def _read_split(path: Path, stem: str, features: str, images: Path | None, faults: Faults) -> Split:
    caps, ids_file, features_file = path / f"{stem}_caps.txt", path / f"{stem}_ids.txt", path / f"{stem}_{features}.npy"
    texts = _captions(caps, faults)
    ids = _ids(ids_file) if ids_file.is_file() else None
    array = map_array(features_file, (2, 3)) if features_file.is_file() else None
    place = str(ids_file if ids is not None else caps)
    layout = lay_out(place, None if array is None else len(array), len(texts), ids)
    if array is not None:
        layout = layout_from_features(features_file, array) if layout is None else layout
        verify(features_file, array, layout)
    elif layout is None:
        raise ValueError(f"{caps}: neither {features_file.name} nor {ids_file.name} is there to tell the images")
    return _split(path, stem, layout, texts, array, features_file, images, faults)


def _split(
    path: Path,
    stem: str,
    layout: Layout,
    texts: list[str | None],
    array: np.ndarray | None,
    features_file: Path,
    images: Path | None,
    faults: Faults,
) -> Split:
    """Only what is whole: a caption that could not be read is left out, and so is an image that has none left."""
    kept_captions = np.array([text is not None for text in texts])
    kept_images = np.bincount(layout.owners[kept_captions], minlength=len(layout.names)) > 0
    pictures = _pictures(path, stem, layout, images, kept_images, faults)
    for image in np.flatnonzero(~kept_images):
        faults.listed.append(f"{path / stem}: image {layout.names[image]} is left out")
    kept_captions &= kept_images[layout.owners]
    rows = layout.rows[kept_images]
    index = None if array is None or np.array_equal(rows, np.arange(len(array))) else rows
    return Split(
        image_names=tuple(name for name, kept in zip(layout.names, kept_images, strict=True) if kept),
        texts=tuple(text for text, kept in zip(texts, kept_captions, strict=True) if kept and text is not None),
        owners=(np.cumsum(kept_images) - 1)[layout.owners[kept_captions]],
        pictures=pictures,
        features=_rows(
            features_file,
            array,
            index,
            _lengths(path / f"{stem}_lengths.npy", array, index),
            layout.copies()[kept_images] if layout.repeated else None,
        ),
        caption_features=_caption_rows(path / f"{stem}_txt.npy", kept_captions),
        boxes=_boxes(path / f"{stem}_boxes.npy", array, index),
    )


def _captions(file: Path, faults: Faults) -> list[str | None]:
    texts: list[str | None] = []
    for number, text in numbered_lines(file, faults):
        why = None if text is None else no_caption(text)
        if why:
            faults.found(f"{file}, line {number}", why)
        texts.append(None if why else text)
    if not texts:
        raise ValueError(f"{file}: no captions in it; expected one a line")
    return texts


def _ids(file: Path) -> list[str]:
    """Without them nothing fits, so here a fault is never skipped."""
    ids = []
    for number, line in numbered_lines(file, Faults()):
        if not line or not line.strip():
            raise ValueError(f"{file}, line {number}: expected an id, got an empty line")
        ids.append(line)
    return ids


def _rows(
    file: Path,
    array: np.ndarray | None,
    index: np.ndarray | None,
    lengths: np.ndarray | None = None,
    copies: np.ndarray | None = None,
) -> Rows | None:
    return None if array is None else Rows((array,), str(file), index, lengths, copies)


def _lengths(file: Path, array: np.ndarray | None, index: np.ndarray | None) -> np.ndarray | None:
    if array is None or not file.is_file():
        return None
    try:
        lengths = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file}: not a readable .npy array: {error}") from error
    regions = array.shape[1] if array.ndim == 3 else 0
    fits = lengths.shape == (len(array),) and lengths.dtype.kind in "iu"
    if not fits or not ((lengths >= 1) & (lengths <= regions)).all():
        raise ValueError(f"{file}: expected {len(array)} whole numbers from 1 to {regions}, one for each feature row")
    return (lengths if index is None else lengths[index]).astype(np.int64)


def _boxes(file: Path, array: np.ndarray | None, index: np.ndarray | None) -> Rows | None:
    if array is None or not file.is_file():
        return None
    boxes = map_array(file, (3,))
    if array.ndim != 3 or boxes.shape != (*array.shape[:2], 4):
        raise ValueError(f"{file}: expected 4 numbers for each region of the features {array.shape}, got {boxes.shape}")
    return _rows(file, boxes, index)


def _caption_rows(file: Path, kept: np.ndarray) -> Rows | None:
    if not file.is_file():
        return None
    array = map_array(file, (2, 3))
    if len(array) != len(kept):
        raise ValueError(f"{file}: {len(array)} rows for {len(kept)} captions")
    return _rows(file, array, None if kept.all() else np.flatnonzero(kept))


def _pictures(
    path: Path, stem: str, layout: Layout, images: Path | None, kept: np.ndarray, faults: Faults
) -> Pictures | None:
    """Image files, where a folder is named and ids are, or lead to, names of files. Marks lost images in `kept`."""
    if images is None:
        return None
    folder, mapped = PictureFolder(images, (), ()), _id_mapping(path)
    found = [folder.find(mapped.get(name, name)) for name in layout.names]
    for image, picture in enumerate(found):
        if picture is None and kept[image]:
            name = layout.names[image]
            faults.found(f"{path / stem}_ids.txt", f"there is no image file {mapped.get(name, name)} in {images}")
            kept[image] = False
    return Pictures([picture for picture, keep in zip(found, kept, strict=True) if keep and picture is not None])


def _id_mapping(path: Path) -> dict[str, str]:
    file = next(
        (place for place in (path / "id_mapping.json", path.parent / "id_mapping.json") if place.is_file()), None
    )
    mapping = {} if file is None else read_json(file)
    if not isinstance(mapping, dict):
        raise ValueError(f"{file}: expected an object that leads from ids to image files")
    return {str(name): str(image) for name, image in mapping.items()}
