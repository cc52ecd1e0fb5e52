"""Lists of records in JSON, as X-VLM and BLIP use: image, caption (a text or a list of them), perhaps image_id.

One file is one split, named in its file name; a folder of such files is a data set.
"""

from pathlib import Path
from typing import Any

from tercet.data.dataset import DataSet
from tercet.data.faults import Faults
from tercet.data.formats.collect import WITHOUT_SPLITS, Collector, PictureFolder, guessed_folders, split_in_name
from tercet.data.formats.karpathy import opening
from tercet.data.lines import read_json


def recognise(path: Path) -> bool:
    return any(opening(file).startswith("[") for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.json"))
    return [path] if path.suffix == ".json" and path.is_file() else []


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    collector = Collector(faults)
    files = files_of(path)
    for file in files:
        split = split_in_name(file.stem)
        if split is None and len(files) > 1:
            raise ValueError(
                f"{file}: its name tells no split; with several files each must hold train, val, test, ..."
            )
        _read_file(file, split or WITHOUT_SPLITS, collector)
    folder = PictureFolder(images, guessed_folders(path), collector.images())
    return DataSet(path, "json-list", collector.splits(folder), faults.listed)


def _read_file(file: Path, split: str, collector: Collector) -> None:
    records = read_json(file)
    if not isinstance(records, list):
        raise ValueError(f"{file}: expected a list of records with image and caption")
    id_of: dict[str, Any] = {}
    image_of: dict[Any, str] = {}
    for number, record in enumerate(records):
        place = f"{file}, record {number}"
        if not isinstance(record, dict) or "image" not in record or "caption" not in record:
            collector.faults.found(place, 'expected an object with "image" and "caption"')
            continue
        image, identity = record["image"], record.get("image_id")
        if isinstance(image, str) and isinstance(identity, (str, int)):
            clash = id_of.setdefault(image, identity) != identity or image_of.setdefault(identity, image) != image
            if clash:
                collector.faults.found(place, f"image {image} and image_id {identity} were paired otherwise before")
                continue
        captions = record["caption"] if isinstance(record["caption"], list) else [record["caption"]]
        if not captions:
            collector.faults.found(place, f"image {image} has no caption")
            continue
        collector.add(split, image, captions, place)
