"""The side table of an index: what each number is."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from tercet.data.dataset import DataSet
from tercet.data.formats import open_data
from tercet.data.pictures import SUFFIXES, Picture, PictureFile


@dataclass(frozen=True)
class Item:
    """A picture file, and what is said about it."""

    path: str
    """Absolute; of a picture inside a data file, that file and the name in it."""
    captions: tuple[str, ...]
    size: int
    """Bytes."""
    modified: int | None
    """When the file was last written, in nanoseconds; None inside a data file."""
    checksum: str


def printable(name: str) -> str:
    """On one line and in UTF-8, whatever signs a file's name may have."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n").replace("\r", "\\r")


def checksum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def write_items(file: Path, items: Sequence[Item]) -> None:
    file.write_text("".join(json.dumps(asdict(item)) + "\n" for item in items), encoding="utf-8")


def read_items(file: Path) -> list[Item]:
    items = []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"{file}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            content = json.loads(line)
            items.append(Item(**content | {"captions": tuple(content["captions"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file}, line {number}: not an item of an index: {error}") from error
    return items


def pictures_of_folder(folder: Path) -> dict[str, tuple[PictureFile, tuple[str, ...]]]:
    """Every picture below a folder, in the order of their names; links that lead nowhere are told when opened."""
    there = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    found = sorted(path for path in there if path.is_file() or path.is_symlink())
    return {str(path.resolve()): (PictureFile(path), ()) for path in found}


def pictures_of_data(data: DataSet, splits: Sequence[str] = ()) -> dict[str, tuple[Picture, tuple[str, ...]]]:
    """Every picture of a data set, of these splits or all, with its captions."""
    found: dict[str, tuple[Picture, tuple[str, ...]]] = {}
    for name in splits or data.splits:
        split = data.split(name)
        if split.pictures is None:
            raise ValueError(f"{data.path} has no pictures in its split {name}: an index shows them; give a folder")
        captions: list[list[str]] = [[] for _ in split.image_names]
        for text, owner in zip(split.texts, split.owners.tolist(), strict=True):
            captions[owner].append(text)
        for picture, said in zip(split.pictures, captions, strict=True):
            place = str(picture.path.resolve()) if isinstance(picture, PictureFile) else str(picture)
            found[place] = (picture, tuple(said))
    return found


class SourceOfPictures:
    """Where the pictures of an index are found again. `name` is its data set, asked only for what is no file."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def picture(self, item: Item) -> Picture:
        """`ValueError` where it is gone."""
        if item.modified is not None:
            return PictureFile(Path(item.path))
        if item.path not in self._of_data:
            raise ValueError(f"{item.path}: not in {self.name} any more")
        return self._of_data[item.path]

    @cached_property
    def _of_data(self) -> dict[str, Picture]:
        if self.name is None:
            return {}
        return {place: picture for place, (picture, _) in pictures_of_data(open_data(self.name)).items()}
