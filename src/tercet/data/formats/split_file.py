"""Split file: which images of a dataset belong to which split, for data that has no splits of its own.

    {"what": "tercet split", "data": "/photos.csv", "seed": 0, "splits": {"train": ["a.jpg", ...], "val": ...}, ...}

The dataset stays as it is and is read through this file: it can be given wherever a dataset can. Written by `tercet
data split`, and by commands that need splits, beside their runs. Images that could not be read are listed as left out.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tercet.data.dataset import DataSet, Split, subset
from tercet.data.formats.builder import sort_splits
from tercet.data.formats.columns import Columns
from tercet.data.formats.karpathy import file_start, is_split_file
from tercet.data.image_io import ImageFile
from tercet.data.textio import ErrorPolicy, read_json
from tercet.storage import check_format

WHAT = "tercet split"
LISTED = 5  # images that a message names
KINDS = {
    "equal_files": "equal files",
    "equal_images": "nearly equal images",
    "equal_captions": "equal captions",
    "near_captions": "captions of nearly the same words",
}
"""What keeps images on one side, the strongest first."""


@dataclass(frozen=True)
class DataSource:
    """How to open a dataset again."""

    path: str
    format: str | None = None
    images: str | None = None
    skip_bad: bool = False
    columns: dict[str, str | None] | None = None
    """Those that the user named."""


def recognise(path: Path) -> bool:
    """The first key says what it is."""
    return path.suffix == ".json" and path.is_file() and is_split_file(file_start(path))


def read(path: Path, images: Path | None, errors: ErrorPolicy) -> DataSet:
    from tercet.data.formats import open_data  # it imports this module

    content = read_split_file(path)
    source = DataSource(**content["source"])
    data = open_data(
        source.path,
        format=source.format,
        images=source.images if images is None else images,
        skip_bad=source.skip_bad or errors.skip,
        columns=Columns(**(source.columns or {})),
    )
    return apply(data, content["splits"], content["left_out"], path)


def read_split_file(path: Path) -> dict[str, Any]:
    """The content; `ValueError` if it is not one of a split file."""
    content = read_json(path)
    valid = isinstance(content, dict) and content.get("what") == WHAT
    if valid:
        check_format(content.get("format_version"), path)
        lists = content.get("splits")
        valid = isinstance(lists, dict) and all(isinstance(names, list) for names in lists.values())
        valid &= isinstance(content.get("source"), dict) and isinstance(content["source"].get("path"), str)
        valid &= isinstance(content.get("left_out"), list)
    if not valid:
        raise ValueError(f"{path}: not a split file of `tercet data split`, or damaged: split the data again")
    return dict(content)


def apply(data: DataSet, names: dict[str, list[str]], left_out: Sequence[str], path: Path) -> DataSet:
    """The images of each split, from the split of the same name or from the only one. `ValueError` if one is gone."""
    splits: dict[str, Split] = {}
    known: set[str] = set(left_out)
    for name in sort_splits(names):
        whole = data.splits[name] if name in data.splits else next(iter(data.splits.values()))
        rows = {image: row for row, image in enumerate(whole.image_names)}
        gone = [image for image in names[name] if image not in rows]
        if gone:
            raise _changed(path, data.path, "no longer has", gone)
        known.update(names[name])
        if names[name]:
            splits[name] = subset(whole, np.array(sorted(rows[image] for image in names[name]), dtype=np.int64))
    new = [image for split in data.splits.values() for image in split.image_names if image not in known]
    if new:
        raise _changed(path, data.path, "has new images,", new)
    return DataSet(path, "split", splits, data.skipped)


def _changed(path: Path, data: Path, what: str, images: Sequence[str]) -> ValueError:
    return ValueError(f"{data} has changed since {path} was made: it {what} {some_of(images)}: split it again")


def some_of(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"{', '.join(names[:LISTED])}{more}"


def checksum(data: DataSet, seed: int) -> str:
    """What automatic splits depend on: place, names, captions and state of the images, and the seed.

    The state of a file is its size and time of change: its content would have to be read each time.
    """
    digest = hashlib.sha256(json.dumps([seed, os.path.abspath(data.path), _state(data.path)]).encode())
    for name, split in data.splits.items():
        digest.update(json.dumps([name, split.image_names, split.texts, split.owners.tolist()]).encode())
        files = (source for source in split.images() or () if isinstance(source, ImageFile))
        digest.update(json.dumps([[str(file.path), _state(file.path)] for file in files]).encode())
    return digest.hexdigest()[:10]


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class SplitFileSummary:
    """What a split file was made of, and a line that says it."""

    sizes: dict[str, int]
    left_out: int
    together: Sequence[str]
    apart: Sequence[str]
    seed: int

    def __str__(self) -> str:
        sizes = " / ".join(f"{size:,}" for size in self.sizes.values())
        parts = [f"{sizes} images of {' / '.join(self.sizes)}"]
        if self.together:
            parts.append(f"{_kinds(self.together)} on one side")
        if self.apart:
            parts.append(f"too many {_kinds(self.apart)} to keep these on one side")
        if self.left_out:
            parts.append(f"{self.left_out:,} unreadable left out")
        return f"{', '.join(parts)} (seed {self.seed})"


def _kinds(kinds: Sequence[str]) -> str:
    words = [KINDS[kind] for kind in kinds]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def is_made_of(path: Path, source: DataSource, seed: int) -> bool:
    """Whether this split file was made of this data with this seed."""
    content = read_split_file(path)
    return DataSource(**content["source"]) == source and content["seed"] == seed


def read_skipped(path: Path) -> list[str]:
    """The messages of what could not be read."""
    return [str(message) for message in read_split_file(path)["skipped"]]


def read_summary(path: Path) -> SplitFileSummary:
    content = read_split_file(path)
    sizes = {name: len(images) for name, images in content["splits"].items()}
    return SplitFileSummary(sizes, len(content["left_out"]), content["together"], content["apart"], content["seed"])
