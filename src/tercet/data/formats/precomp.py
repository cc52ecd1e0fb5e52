"""SCAN's precomp folders: `{split}_ims.npy`, `{split}_caps.txt`, `{split}_ids.txt`.

The published files have two layouts: one feature row per image (train), or the row repeated for each caption (dev,
test). The layout is inferred from the counts of rows, captions and ids, and verified on the features; a contradiction
is an error. Optional files: `{split}_boxes.npy` (row region 4), `{split}_lengths.npy` (valid regions per row),
`{split}_txt.npy` (caption features), and VSE-infinity's `id_mapping.json` from ids to image files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from tercet.console import NO_BAR, Bar
from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.feature_array import FLOATS, FeatureArray, map_array
from tercet.data.formats.builder import ImageFolder, sort_splits
from tercet.data.formats.converted import conversion_of, converted_directory
from tercet.data.image_io import ImageFiles
from tercet.data.textio import ErrorPolicy, caption_error, numbered_lines, read_json
from tercet.storage import CHECKSUMS, allocated_array, check_checksums_once, checked_manifest

FEATURES = "ims"
MANIFEST = "features.json"  # written by `tercet features`
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
VERIFIED_IMAGES = 16  # when a folder is opened; `tercet data inspect` checks all of them


@dataclass(frozen=True)
class Layout:
    """The name, first feature row and captions of each image."""

    names: tuple[str, ...]
    owners: Int[np.ndarray, " caption"]
    rows: Int[np.ndarray, " image"]
    repeated: bool
    """Whether rows are repeated for each caption."""

    def copies(self) -> Int[np.ndarray, " image"]:
        """The number of rows of each image, if they are repeated."""
        return np.bincount(self.owners, minlength=len(self.names))


def recognise(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*_caps.txt"))


def read(path: Path, images: Path | None, errors: ErrorPolicy, features: str = FEATURES) -> DataSet:
    """`features` is the suffix of the feature files: `{split}_{features}.npy`."""
    if (path / MANIFEST).is_file():
        check_features(path)
    stems = [file.name.removesuffix("_caps.txt") for file in path.glob("*_caps.txt")]
    splits: dict[str, Split] = {}
    for suffix in (f"_{features}.npy", "_ids.txt"):
        for file in path.glob(f"*{suffix}"):
            if file.name.removesuffix(suffix) not in stems:
                raise ValueError(f"{file}: no caption file {file.name.removesuffix(suffix)}_caps.txt beside it")
    for stem in sort_splits(stems):
        name = SPLIT_NAMES.get(stem, stem)
        if name in splits:
            raise ValueError(f"{path}: two sets of files for the split {name}")
        splits[name] = replace(
            _read_split(path, stem, features, images, errors), find_images=partial(_images_of_source, path, name)
        )
    missing = [name for name, split in splits.items() if split.features is None]
    if missing and (len(missing) < len(splits) or features != FEATURES):
        raise ValueError(f"{path}: no feature file {{split}}_{features}.npy for {', '.join(missing)}")
    return DataSet(path, "precomp", splits, errors.messages)


def check_features(folder: Path) -> None:
    """Check the files of a folder of `tercet features` against the checksums in its manifest."""
    checksums = features_manifest(folder).get(CHECKSUMS)
    check_checksums_once(folder, checksums, folder / MANIFEST, _remedy(folder))


def features_manifest(folder: Path) -> dict[str, Any]:
    return checked_manifest(read_json(folder / MANIFEST), folder / MANIFEST, _remedy(folder))


def _remedy(folder: Path) -> str:
    return f"remove {folder} and run `tercet features` again"


def _images_of_source(path: Path, split: str, names: Sequence[str]) -> ImageFiles | None:
    """The image files of the dataset that `tercet features` read, by name; None if it is no longer there."""
    from tercet.data.formats import open_data  # it imports this module

    try:
        source = features_manifest(path)["source"]
        found = open_data(source["path"], format=source["format"], images=source["images"], skip_bad=True).split(split)
    except (ValueError, OSError, KeyError, TypeError):
        return None
    by_name = {} if found.image_files is None else dict(zip(found.image_names, found.image_files, strict=True))
    return ImageFiles([by_name[name] for name in names]) if all(name in by_name for name in names) else None


def infer_layout(location: str, rows: int | None, captions: int, ids: list[str] | None) -> Layout | None:
    """The layout from the counts alone; None if only the features can tell (as many rows as captions, and no ids)."""
    if ids is None:
        if rows is None or rows == captions:
            return None
        return _one_row_per_image(location, rows, captions, [str(row) for row in range(rows)])
    rows = len(ids) if rows is None else rows
    if not ids:
        raise ValueError(f"{location}: no ids: expected one per line")
    if rows == captions == len(ids):
        return _grouped(location, ids, rows)
    if len(ids) == rows:
        return _one_row_per_image(location, rows, captions, ids)
    if len(ids) == captions:  # one id per caption, one row per image: any number of captions
        layout = _grouped(location, ids, rows)
        if len(layout.names) == rows:
            return Layout(layout.names, layout.owners, np.arange(rows), repeated=False)
    if rows == captions and captions % len(ids) == 0:  # one id per image, rows repeated for each caption
        captions_per_image = captions // len(ids)
        owners = np.repeat(np.arange(len(_distinct(location, ids))), captions_per_image)
        return Layout(tuple(ids), owners, np.arange(len(ids)) * captions_per_image, repeated=True)
    raise ValueError(f"{location}: {rows} feature rows, {captions} captions and {len(ids)} ids match no layout")


def layout_from_features(file: Path, array: np.ndarray) -> Layout:
    """The layout if there are as many rows as captions and no ids: equal rows belong to the same image."""
    copies = 1
    while copies < len(array) and np.array_equal(array[copies], array[0]):
        copies += 1
    if len(array) % copies:
        raise ValueError(f"{file}: row 0 occurs {copies} times, which does not divide the {len(array)} rows")
    if copies == 1 and equal_neighbours(array):
        raise ValueError(f"{file}: only some rows equal the next row: an ids file is needed to identify the images")
    count = len(array) // copies
    names = tuple(str(image) for image in range(count))
    return Layout(names, np.repeat(np.arange(count), copies), np.arange(count) * copies, repeated=copies > 1)


def verify(file: Path, array: np.ndarray, layout: Layout) -> None:
    """Check a sample of the features against the layout that the counts imply."""
    if layout.repeated:
        unequal = first_unequal_row(array, layout.rows, layout.copies(), sample_images(layout))
        if unequal is not None:
            raise ValueError(
                f"{file}, row {unequal}: differs from the previous row, but ids and counts imply that rows are "
                "repeated for each caption of an image"
            )
        return
    if len(array) == len(layout.owners) and len(array) >= 10 and equal_neighbours(array) > 0.25:
        raise ValueError(
            f"{file}: rows are repeated, but each row has its own id: expected equal ids for the rows of one image"
        )


def sample_images(layout: Layout) -> Int[np.ndarray, " some"]:
    """Evenly spaced images."""
    count = len(layout.names)
    return np.unique(np.linspace(0, count - 1, min(count, VERIFIED_IMAGES)).astype(np.int64))


def first_unequal_row(
    array: np.ndarray,
    first_rows: Int[np.ndarray, " image"],
    copies: Int[np.ndarray, " image"],
    images: Int[np.ndarray, " some"],
) -> int | None:
    """The first row of these images that differs from the previous row of the same image, or None."""
    for image in images:
        for row in range(first_rows[image] + 1, first_rows[image] + copies[image]):
            if not np.array_equal(array[row], array[row - 1], equal_nan=True):
                return int(row)
    return None


def equal_neighbours(array: np.ndarray) -> float:
    """Share of a sample of rows that equal the next row. Duplicate images cause a few."""
    if len(array) <= 1:
        return 0.0
    rows = np.unique(np.linspace(0, len(array) - 2, min(len(array) - 1, 4 * VERIFIED_IMAGES)).astype(np.int64))
    return float(np.mean([np.array_equal(array[row], array[row + 1]) for row in rows]))


def _one_row_per_image(location: str, rows: int, captions: int, ids: list[str]) -> Layout:
    _distinct(location, ids)
    if rows == 0 or captions % rows:
        raise ValueError(
            f"{location}: {captions} captions cannot be divided evenly among {rows} feature rows: expected the same "
            "number of captions per row, one row per caption, or one id per caption"
        )
    owners = np.repeat(np.arange(rows), captions // rows)
    return Layout(tuple(ids), owners, np.arange(rows), repeated=False)


def _grouped(location: str, ids: list[str], rows: int) -> Layout:
    """Adjacent equal ids are one image."""
    starts = [row for row in range(len(ids)) if row == 0 or ids[row] != ids[row - 1]]
    names = [ids[row] for row in starts]
    _distinct(location, names, [start + 1 for start in starts])
    owners = np.repeat(np.arange(len(names)), np.diff([*starts, len(ids)]))
    return Layout(tuple(names), owners, np.array(starts, dtype=np.int64), repeated=len(names) < rows)


def _distinct(location: str, ids: list[str], lines: list[int] | None = None) -> list[str]:
    line_of: dict[str, int] = {}
    for position, name in enumerate(ids):
        line = lines[position] if lines else position + 1
        if name in line_of:
            raise ValueError(f"{location}, line {line}: duplicate id {name}, first in line {line_of[name]}")
        line_of[name] = line
    return ids


def _read_split(path: Path, stem: str, features: str, images: Path | None, errors: ErrorPolicy) -> Split:
    captions_file, ids_file = path / f"{stem}_caps.txt", path / f"{stem}_ids.txt"
    features_file = path / f"{stem}_{features}.npy"
    texts = _captions(captions_file, errors)
    ids = _ids(ids_file) if ids_file.is_file() else None
    array = map_array(features_file, ["row dim", "row region dim"]) if features_file.is_file() else None
    location = str(ids_file if ids is not None else captions_file)
    layout = infer_layout(location, None if array is None else len(array), len(texts), ids)
    if array is not None:
        layout = layout_from_features(features_file, array) if layout is None else layout
        verify(features_file, array, layout)
    elif layout is None:
        raise ValueError(
            f"{captions_file}: neither {features_file.name} nor {ids_file.name} exists to identify the images"
        )
    return _build_split(path, stem, layout, texts, array, features_file, images, errors)


def _build_split(
    path: Path,
    stem: str,
    layout: Layout,
    texts: list[str | None],
    array: np.ndarray | None,
    features_file: Path,
    images: Path | None,
    errors: ErrorPolicy,
) -> Split:
    """Build the split. Skips captions that could not be read, and images without captions or without an image file."""
    kept_captions = np.array([text is not None for text in texts])
    kept_images = np.bincount(layout.owners[kept_captions], minlength=len(layout.names)) > 0
    image_files = _image_files(path, stem, layout, images, kept_images, errors)
    for image in np.flatnonzero(~kept_images):
        errors.messages.append(f"{path / stem}: skipped image {layout.names[image]}")
    kept_captions &= kept_images[layout.owners]
    rows = layout.rows[kept_images]
    index = None if array is None or np.array_equal(rows, np.arange(len(array))) else rows
    return Split(
        image_names=tuple(name for name, kept in zip(layout.names, kept_images, strict=True) if kept),
        texts=tuple(text for text, kept in zip(texts, kept_captions, strict=True) if kept and text is not None),
        owners=(np.cumsum(kept_images) - 1)[layout.owners[kept_captions]],
        image_files=image_files,
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


def _captions(file: Path, errors: ErrorPolicy) -> list[str | None]:
    texts: list[str | None] = []
    for number, text in numbered_lines(file, errors):
        error = None if text is None else caption_error(text)
        if error:
            errors.report(f"{file}, line {number}", error)
        texts.append(None if error else text)
    if not texts:
        raise ValueError(f"{file}: no captions: expected one per line")
    return texts


def _ids(file: Path) -> list[str]:
    """Without its ids a split cannot be read, so errors here are never skipped."""
    ids = []
    for number, line in numbered_lines(file, ErrorPolicy()):
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
) -> FeatureArray | None:
    return None if array is None else FeatureArray((array,), str(file), index, lengths, copies)


def _lengths(file: Path, array: np.ndarray | None, index: np.ndarray | None) -> np.ndarray | None:
    if array is None or not file.is_file():
        return None
    lengths = map_array(file, ["row"], (*INTEGERS, *FLOATS))
    regions = array.shape[1] if array.ndim == 3 else 0
    fits = lengths.shape == (len(array),) and lengths.dtype.kind in "iu"
    if not fits or not ((lengths >= 1) & (lengths <= regions)).all():
        expected = f"{len(array)} integers from 1 to {regions}, one per feature row"
        actual = f"{lengths.min()} to {lengths.max()}" if fits else f"{lengths.dtype} of shape {lengths.shape}"
        raise ValueError(f"{file}: expected {expected}, got {actual}")
    return (lengths if index is None else lengths[index]).astype(np.int64)


def _boxes(file: Path, array: np.ndarray | None, index: np.ndarray | None) -> FeatureArray | None:
    if array is None or not file.is_file():
        return None
    boxes = map_array(file, ["row region 4"])
    if array.ndim != 3 or boxes.shape != (*array.shape[:2], 4):
        raise ValueError(f"{file}: expected 4 values per region of the features {array.shape}, got shape {boxes.shape}")
    return _rows(file, boxes, index)


def _caption_rows(file: Path, kept: np.ndarray) -> FeatureArray | None:
    if not file.is_file():
        return None
    array = map_array(file, ["row dim", "row region dim"])
    if len(array) != len(kept):
        raise ValueError(f"{file}: expected {len(kept)} rows, one per caption, got {len(array)}")
    return _rows(file, array, None if kept.all() else np.flatnonzero(kept))


def _image_files(
    path: Path, stem: str, layout: Layout, images: Path | None, kept: np.ndarray, errors: ErrorPolicy
) -> ImageFiles | None:
    """The image files, if a folder is given; ids are file names, or map to them. Clears `kept` for missing images."""
    if images is None:
        return None
    folder, mapping = ImageFolder(images, (), ()), _id_mapping(path)
    image_files = []
    for image, name in enumerate(layout.names):
        try:
            found = folder.find(mapping.get(name, name))
        except ValueError as error:
            if kept[image]:
                errors.report(f"{path / stem}_ids.txt", str(error))
                kept[image] = False
        else:
            image_files += [found] if kept[image] else []
    return ImageFiles(image_files)


def _id_mapping(path: Path) -> dict[str, str]:
    candidates = (path / "id_mapping.json", path.parent / "id_mapping.json")
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    mapping = {} if file is None else read_json(file)
    if not isinstance(mapping, dict):
        raise ValueError(f"{file}: expected an object that maps ids to image files")
    return {str(name): str(image) for name, image in mapping.items()}


PRECOMP_SPLIT_NAMES = {"val": "dev"}  # as the loaders of SCAN and its successors expect


def write_precomp(data: DataSet, target: Path, bar: Bar = NO_BAR) -> list[str]:
    """Write a precomp folder; return warnings about what the format cannot represent. `bar` counts images."""
    warnings = []
    with converted_directory(target, conversion_of(data, "precomp")) as folder:
        for name, split in data.splits.items():
            warnings += _write_precomp_split(folder, PRECOMP_SPLIT_NAMES.get(name, name), split)
            bar.advance(len(split.image_names))
    return warnings


def _write_precomp_split(folder: Path, stem: str, split: Split) -> list[str]:
    rows, warnings = write_texts(folder / stem, split)
    for array, suffix in ((split.features, "ims"), (split.boxes, "boxes")):
        if array is not None:
            write_rows(folder / f"{stem}_{suffix}.npy", array, rows)
    if split.caption_features is not None:
        write_rows(folder / f"{stem}_txt.npy", split.caption_features, np.arange(len(split.texts)))
    if split.features is not None and split.features.lengths is not None:
        np.save(folder / f"{stem}_lengths.npy", split.features.lengths[rows])
    return warnings


def write_texts(stem: Path, split: Split, *, repeated: bool = True) -> tuple[np.ndarray, list[str]]:
    """Write `{stem}_caps.txt` and `{stem}_ids.txt`; return the image of each feature row, and warnings.

    One id and one row per image if all images have the same number of captions. Otherwise one id and one row per
    caption, which all loaders of the format understand; without `repeated`, the caller writes one row per image.
    """
    captions_per_image = split.captions_per_image()
    ragged = len(set(captions_per_image.tolist())) > 1
    rows = split.owners if ragged else np.arange(len(split.image_names))
    for name in split.image_names:
        if not name.strip() or re.search(r"[\r\n]", name):
            raise ValueError(f"{stem.name}: image name {name!r} cannot be written as one line of {stem.name}_ids.txt")
    texts = [re.sub(r"[\r\n]+", " ", text) for text in split.texts]
    _write_lines(Path(f"{stem}_caps.txt"), texts)
    _write_lines(Path(f"{stem}_ids.txt"), [split.image_names[row] for row in rows])
    changed = sum(new != old for new, old in zip(texts, split.texts, strict=True))
    warnings = [f"{stem.name}: replaced line breaks by spaces in {changed} captions"] if changed else []
    if ragged and repeated:
        counts = f"{captions_per_image.min()} to {captions_per_image.max()} captions per image"
        warnings.append(f"{stem.name}: {counts}: feature rows and ids are repeated for each caption")
    return rows, warnings


def _write_lines(file: Path, lines: list[str]) -> None:
    # Readers strip one byte order mark. If the first line starts with that character, write an extra one.
    starts_with_bom = bool(lines) and lines[0].startswith("\ufeff")
    with file.open("w", encoding="utf-8-sig" if starts_with_bom else "utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_rows(file: Path, rows: FeatureArray, items: np.ndarray) -> None:
    out = allocated_array(file, rows.dtype, (len(items), *rows.shape[1:]))
    for start, block in rows.blocks(items):
        out[start : start + len(block)] = block
    out.flush()
