"""Karpathy's JSON of COCO, Flickr30k and Flickr8k: `{"images": [{"filename", "split", "sentences": [{"raw"}]}]}`."""

from pathlib import Path
from typing import Any

from tercet.data.dataset import DataSet
from tercet.data.formats.builder import DatasetBuilder, ImageFolder, candidate_folders
from tercet.data.textio import ErrorPolicy, read_json


def recognise(path: Path) -> bool:
    """Checks only the first bytes: the COCO file is too large to parse twice."""
    start = file_start(path) if path.suffix == ".json" and path.is_file() else ""
    return start.startswith("{") and not is_split_file(start)


def is_split_file(start: str) -> bool:
    """Whether a file that starts so is a split file of `tercet data split`: its first key says what it is."""
    return start[1:].lstrip().startswith('"what": "tercet split"')


def file_start(path: Path) -> str:
    """The first 4 KB as text, without leading white space."""
    with path.open("rb") as stream:
        return stream.read(4096).decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")


def read(path: Path, images: Path | None, errors: ErrorPolicy) -> DataSet:
    content = read_json(path)
    records = content.get("images") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise ValueError(f'{path}: expected an object with the list "images", as in dataset_flickr8k.json')
    builder = DatasetBuilder(errors)
    for index, record in enumerate(records):
        _add(builder, record, f"{path}, images[{index}]")
    folder = ImageFolder(images, candidate_folders(path), builder.images())
    return DataSet(path, "karpathy", builder.splits(folder), errors.messages, builder.no_images(folder))


def _add(builder: DatasetBuilder, record: Any, location: str) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("sentences"), list):
        builder.errors.report(location, 'expected an object with "filename", "split" and the list "sentences"')
        return
    split, name = record.get("split"), record.get("filename")
    if not isinstance(split, str) or not split:
        builder.errors.report(location, f'expected a "split" such as train, restval, val or test, got {split!r}')
        return
    if isinstance(name, str) and record.get("filepath"):
        name = f"{record['filepath']}/{name}"  # COCO has two image folders
    if isinstance(name, str) and builder.has(split, name):
        builder.errors.report(location, f"duplicate image {name} in the split {split}")
        return
    if not record["sentences"]:
        builder.errors.report(location, f"image {name} has no caption")
        return
    builder.add(split, name, (_raw(sentence) for sentence in record["sentences"]), location)


def _raw(sentence: Any) -> Any:
    return sentence.get("raw") if isinstance(sentence, dict) else sentence
