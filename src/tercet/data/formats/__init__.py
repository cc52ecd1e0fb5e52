"""The formats people have. One file a format; all of them become a `DataSet`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tercet.data.dataset import DataSet
from tercet.data.faults import Faults
from tercet.data.formats import folder, json_list, karpathy, parquet, precomp, table
from tercet.data.scenes import scenes_data_set


class Format(NamedTuple):
    recognise: Callable[[Path], bool]
    read: Callable[[Path, Path | None, Faults], DataSet]
    meaning: str


FORMATS = {
    "karpathy": Format(karpathy.recognise, karpathy.read, "dataset_coco.json and its like, with a folder of images"),
    "precomp": Format(precomp.recognise, precomp.read, "SCAN's {split}_ims.npy, {split}_caps.txt, {split}_ids.txt"),
    "json-list": Format(json_list.recognise, json_list.read, "X-VLM's and BLIP's lists of image, caption, image_id"),
    "table": Format(table.recognise, table.read, "CSV or TSV with the columns image and caption"),
    "parquet": Format(parquet.recognise, parquet.read, "Parquet, or a local Hugging Face data set"),
    "folder": Format(folder.recognise, folder.read, "images with a .txt of captions beside each"),
}


def open_data(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the word people look for
    images: str | Path | None = None,
    features: str | None = None,
    skip_bad: bool = False,
) -> DataSet:
    """Recognise and open a data set. Features are mapped, not read; pictures are opened when they are asked for.

    `images` is the folder of image files, where it cannot be found beside the data. `features` picks the feature files
    `{split}_{features}.npy` of a precomp folder. With `skip_bad`, what cannot be used is left out and listed in
    `skipped`; without it, the first such thing is an error.
    """
    generated = re.fullmatch(r"scenes(?::(\d+))?", str(path))
    if generated and not Path(path).exists():
        return scenes_data_set(int(generated[1] or 3000), features or "global")
    path, faults = Path(path), Faults(skip=skip_bad)
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    name = recognised(path) if format is None else format
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; known: {', '.join(FORMATS)}")
    folder_of_images = None if images is None else Path(images)
    if features is not None:
        if name != "precomp":
            raise ValueError(f"{path} is read as {name}; only a precomp folder has files of features to choose from")
        return precomp.read(path, folder_of_images, faults, features)
    try:
        data = FORMATS[name].read(path, folder_of_images, faults)
    except (TypeError, AttributeError, KeyError, IndexError) as error:  # content of a shape that nobody thought of
        raise ValueError(f"{path}: cannot be read as {name}: {type(error).__name__}: {error}") from error
    if not any(len(split.texts) for split in data.splits.values()):
        raise ValueError(f"{path}: read as {name}, but it holds no caption that can be used" + _first_of(data))
    return data


def recognised(path: Path) -> str:
    """The one format that fits; an error where none does, or several do."""
    fitting = [name for name, known in FORMATS.items() if known.recognise(path)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        known = "; ".join(f"{name}: {fmt.meaning}" for name, fmt in FORMATS.items())
        raise ValueError(f"{path}: not a format that is known ({known})")
    raise ValueError(f"{path} could be {' or '.join(fitting)}: name the file instead, or give --format")


def _first_of(data: DataSet) -> str:
    return f" (the first of {len(data.skipped)} faults: {data.skipped[0]})" if data.skipped else ""
