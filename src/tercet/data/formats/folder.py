"""A folder of images with a text file of the same name beside each, one caption a line.

Sub-folders called train, val, test, ... are splits; any others are part of an image's name.
"""

from pathlib import Path

from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.faults import Faults
from tercet.data.formats.collect import WITHOUT_SPLITS, Collector, PictureFolder
from tercet.data.lines import numbered_lines
from tercet.data.pictures import SUFFIXES


def recognise(path: Path) -> bool:
    if not path.is_dir():
        return False
    return any(file.with_suffix(".txt").is_file() for root in _roots(path).values() for file in _images(root))


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    if images is not None:
        raise ValueError(f"{path} holds its own images: --images has no meaning for a folder")
    splits: dict[str, Split] = {}
    for split, root in _roots(path).items():
        collector = Collector(faults)
        for file in _images(root):
            _add(collector, split, root, file)
        for text in sorted(root.rglob("*.txt")):
            if not any(text.with_suffix(suffix).is_file() for suffix in _with_capitals()):
                faults.found(str(text), "there is no image of that name beside it")
        splits |= collector.splits(PictureFolder(root, (), None))
    return DataSet(path, "folder", splits, faults.listed)


def _roots(path: Path) -> dict[str, Path]:
    named = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and folder.name in SPLIT_NAMES]
    return {folder.name: folder for folder in named} if named else {WITHOUT_SPLITS: path}


def _with_capitals() -> list[str]:
    return [*SUFFIXES, *(suffix.upper() for suffix in SUFFIXES)]


def _images(root: Path) -> list[Path]:
    return [file for file in sorted(root.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()]


def _add(collector: Collector, split: str, root: Path, file: Path) -> None:
    text = file.with_suffix(".txt")
    if not text.is_file():
        collector.faults.found(str(file), f"there is no {text.name} with its captions beside it")
        return
    captions = [line for _, line in numbered_lines(text, collector.faults) if line is not None and line.strip()]
    if not captions:
        collector.faults.found(str(text), "no caption in it; expected one a line")
        return
    collector.add(split, file.relative_to(root).as_posix(), captions, str(text))
