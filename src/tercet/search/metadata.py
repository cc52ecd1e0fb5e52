"""Metadata of an index: the path, captions and checksum of every image, and how to read the image again."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from tercet.data.dataset import DataSet, Split
from tercet.data.formats import open_data
from tercet.data.formats.builder import is_below, outside
from tercet.data.image_io import SUFFIXES, ImageFile, ImageSource, PassageText


@dataclass(frozen=True)
class Item:
    """An indexed image and its captions, or an indexed passage and its queries."""

    path: str
    """Absolute path; for an image inside a data file, that file and the name in it; the id of a passage."""
    captions: tuple[str, ...]
    size: int
    """Bytes."""
    modified: int | None
    """Modification time of the file in nanoseconds; None inside a data file."""
    checksum: str
    text: str | None = None
    """Of a passage."""

    @property
    def name(self) -> str:
        """The file name, or the id of a passage."""
        return Path(self.path).name if self.text is None else self.path


def checksum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_items(file: Path, items: Sequence[Item]) -> None:
    file.write_text("".join(json.dumps(asdict(item)) + "\n" for item in items), encoding="utf-8")


def read_items(file: Path) -> list[Item]:
    items = []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not index items: {error}") from error
    for line_number, line in enumerate(lines[:-1], start=1):
        try:
            content = json.loads(line)
            items.append(Item(**content | {"captions": tuple(content["captions"])}))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{file}, line {line_number}: not an index item: {error}") from error
    return items


@dataclass(frozen=True)
class RefusedImage:
    """An image that is not read; the reason is reported where it would be."""

    reason: str

    def content(self) -> bytes:
        raise ValueError(self.reason)

    def __str__(self) -> str:
        return self.reason


def images_in_folder(folder: Path, image_folder: Path | None = None) -> dict[str, tuple[ImageSource, tuple[str, ...]]]:
    """Return every image below a folder, sorted by path. Broken links are included: opening them reports the error.

    So are links to files that are neither below this folder nor below `image_folder`: they are not read.
    """
    candidates = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    paths = sorted(path for path in candidates if path.is_file() or path.is_symlink())
    roots = [os.path.realpath(root) for root in (folder, image_folder) if root is not None]
    images: dict[str, tuple[ImageSource, tuple[str, ...]]] = {}
    for path in paths:
        real = os.path.realpath(path)
        allowed = any(is_below(real, root) for root in roots)
        images[real] = (ImageFile(path) if allowed else RefusedImage(outside(str(path), real, folder)), ())
    return images


def images_in_dataset(data: DataSet, splits: Sequence[str] = ()) -> dict[str, tuple[ImageSource, tuple[str, ...]]]:
    """Return every image of a dataset, or of these splits, with its captions."""
    images: dict[str, tuple[ImageSource, tuple[str, ...]]] = {}
    for name in splits or data.splits:
        split = data.split(name)
        if split.image_texts is not None:
            _add_passages(images, split)
            continue
        image_files = split.images()
        if image_files is None:
            why = data.no_images or "it has no image files"
            raise ValueError(f"{data.path}: nothing to index in the split {name}: {why}; or give a folder of images")
        captions: list[list[str]] = [[] for _ in split.image_names]
        for text, owner in zip(split.texts, split.owners.tolist(), strict=True):
            captions[owner].append(text)
        for image_file, image_captions in zip(image_files, captions, strict=True):
            path = str(image_file.path.resolve()) if isinstance(image_file, ImageFile) else str(image_file)
            images[path] = (image_file, tuple(image_captions))
    return images


def _add_passages(images: dict[str, tuple[ImageSource, tuple[str, ...]]], split: Split) -> None:
    """Every passage, with its queries of all splits."""
    assert split.image_texts is not None
    queries: list[list[str]] = [[] for _ in split.image_names]
    for passage, query in split.pairs().tolist():
        queries[passage].append(split.texts[query])
    for name, text, own in zip(split.image_names, split.image_texts, queries, strict=True):
        known = images[name][1] if name in images else ()
        images[name] = PassageText(text, name), (*known, *own)


class IndexedImages:
    """Access to the images of an index. `dataset` is the dataset it was built from, opened only for images that are not
    files of their own.
    """

    def __init__(self, dataset: str | None) -> None:
        self.dataset = dataset

    def image_file(self, item: Item) -> ImageSource:
        """Return the source of an item's image; `ValueError` if it no longer exists."""
        if item.modified is not None:
            return ImageFile(Path(item.path))
        if item.path not in self._images_in_dataset:
            raise ValueError(f"{item.path}: no longer in {self.dataset}")
        return self._images_in_dataset[item.path]

    @cached_property
    def _images_in_dataset(self) -> dict[str, ImageSource]:
        if self.dataset is None:
            return {}
        return {path: image_file for path, (image_file, _) in images_in_dataset(open_data(self.dataset)).items()}
