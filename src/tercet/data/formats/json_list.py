"""JSON lists of records, as in X-VLM and BLIP: image, caption (a string or a list of them), optional image_id.

One file is one split, named by the file name. A folder of such files is one dataset.
"""

from pathlib import Path
from typing import Any

from tercet.data.dataset import DataSet
from tercet.data.formats.builder import DEFAULT_SPLIT, DatasetBuilder, ImageFolder, candidate_folders, split_in_name
from tercet.data.formats.karpathy import file_start
from tercet.data.textio import ErrorPolicy, read_json


def recognise(path: Path) -> bool:
    return any(file_start(file).startswith("[") for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.json"))
    return [path] if path.suffix == ".json" and path.is_file() else []


def read(path: Path, images: Path | None, errors: ErrorPolicy) -> DataSet:
    builder = DatasetBuilder(errors)
    files = files_of(path)
    for file in files:
        split = split_in_name(file.stem)
        if split is None and len(files) > 1:
            raise ValueError(
                f"{file}: no split in the file name: with several files, each name must contain train, val, test, ..."
            )
        _read_file(file, split or DEFAULT_SPLIT, builder)
    folder = ImageFolder(images, candidate_folders(path), builder.images())
    return DataSet(path, "json-list", builder.splits(folder), errors.messages, builder.no_images(folder))


def _read_file(file: Path, split: str, builder: DatasetBuilder) -> None:
    records = read_json(file)
    if not isinstance(records, list):
        raise ValueError(f"{file}: expected a JSON list of records with image and caption")
    id_of: dict[str, Any] = {}
    image_of: dict[Any, str] = {}
    for index, record in enumerate(records):
        location = f"{file}, record {index}"
        if not isinstance(record, dict) or "image" not in record or "caption" not in record:
            builder.errors.report(location, 'expected an object with "image" and "caption"')
            continue
        image, image_id = record["image"], record.get("image_id")
        if isinstance(image, str) and isinstance(image_id, (str, int)):
            conflict = id_of.setdefault(image, image_id) != image_id or image_of.setdefault(image_id, image) != image
            if conflict:
                builder.errors.report(location, f"image {image} with image_id {image_id} contradicts an earlier record")
                continue
        captions = record["caption"] if isinstance(record["caption"], list) else [record["caption"]]
        if not captions:
            builder.errors.report(location, f"image {image} has no caption")
            continue
        builder.add(split, image, captions, location)
