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
    roots = _roots(path)
    _tell_of_others(path, roots, faults)
    for split, root in roots.items():
        collector = Collector(faults)
        files = _images(root)
        for file in files:
            _add(collector, split, root, file)
        for text in sorted(set(root.rglob("*.txt")) - {file.with_suffix(".txt") for file in files}):
            faults.found(str(text), "there is no image of that name beside it")
        for name, made in collector.splits(PictureFolder(root, (), ())).items():
            if name in splits:
                raise ValueError(f"{path} holds the split {name} twice, under two names")
            splits[name] = made
    return DataSet(path, "folder", splits, faults.listed)


def _tell_of_others(path: Path, roots: dict[str, Path], faults: Faults) -> None:
    """What lies beside the splits, or behind a link, is not read; so it is told."""
    if WITHOUT_SPLITS not in roots:
        for file in _images(path):
            if not any(root in file.parents for root in roots.values()):
                faults.found(str(file), f"lies outside the splits {', '.join(roots)}")
    for entry in sorted(path.rglob("*")):
        if entry.is_symlink() and entry.is_dir():
            faults.found(str(entry), "a link to a folder; such links are not followed")


def _roots(path: Path) -> dict[str, Path]:
    named = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and folder.name.lower() in SPLIT_NAMES]
    return {folder.name: folder for folder in named} if named else {WITHOUT_SPLITS: path}


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
