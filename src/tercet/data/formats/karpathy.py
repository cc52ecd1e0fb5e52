"""Karpathy's JSON: `{"images": [{"filename", "split", "sentences": [{"raw"}]}]}`, of COCO, Flickr30k and Flickr8k."""

from pathlib import Path
from typing import Any

from tercet.data.dataset import DataSet
from tercet.data.faults import Faults
from tercet.data.formats.collect import Collector, PictureFolder, guessed_folders
from tercet.data.lines import read_json


def recognise(path: Path) -> bool:
    """From its first bytes: COCO's file is too large to parse twice."""
    return path.suffix == ".json" and path.is_file() and opening(path).startswith("{")


def opening(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(4096).decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    content = read_json(path)
    records = content.get("images") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise ValueError(f'{path}: expected an object with a list "images", as in dataset_flickr8k.json')
    collector = Collector(faults)
    for number, record in enumerate(records):
        _add(collector, record, f"{path}, images[{number}]")
    folder = PictureFolder(images, guessed_folders(path), collector.images())
    return DataSet(path, "karpathy", collector.splits(folder), faults.listed)


def _add(collector: Collector, record: Any, place: str) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("sentences"), list):
        collector.faults.found(place, 'expected an object with "filename", "split" and a list "sentences"')
        return
    split, name = record.get("split"), record.get("filename")
    if not isinstance(split, str) or not split:
        collector.faults.found(place, f'expected a "split" such as train, restval, val or test, got {split!r}')
        return
    if isinstance(name, str) and record.get("filepath"):
        name = f"{record['filepath']}/{name}"  # COCO keeps two folders
    if isinstance(name, str) and collector.has(split, name):
        collector.faults.found(place, f"image {name} comes twice in the split {split}")
        return
    if not record["sentences"]:
        collector.faults.found(place, f"image {name} has no caption")
        return
    collector.add(split, name, (_raw(sentence) for sentence in record["sentences"]), place)


def _raw(sentence: Any) -> Any:
    return sentence.get("raw") if isinstance(sentence, dict) else sentence
