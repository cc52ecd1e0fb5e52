"""A data set: splits of images and captions, whatever format they came from."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.data.faults import Faults
from tercet.data.pictures import Pictures
from tercet.data.rows import Rows

# Names people give to splits, and the one that Tercet uses.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "restval": "restval",
    "val": "val",
    "dev": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
    "testall": "testall",
}


def split_name(given: object) -> str:
    """The one name for what people call it. It becomes part of file names: `ValueError` where it cannot."""
    name = given.strip() if isinstance(given, str) else ""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"expected the name of a split such as train, val or test, got {given!r}")
    return SPLIT_NAMES.get(name.lower(), name)


@dataclass(frozen=True)
class Split:
    """Images and captions; `owners[j]` is the image that caption j describes. Any number of captions an image."""

    image_names: tuple[str, ...]
    texts: tuple[str, ...]
    owners: Int[np.ndarray, " caption"]
    pictures: Pictures | None = None
    """Pixels, where there are files."""
    features: Rows | None = None
    """Frozen features of images: (image dim) or (image region dim)."""
    caption_features: Rows | None = None
    """Frozen features of captions."""
    boxes: Rows | None = None
    """Of regions, (image region 4): left, top, right, bottom as shares of the image's sides."""
    truth: Callable[[Int[Tensor, " image"], Int[Tensor, " caption"]], Bool[Tensor, "image caption"]] | None = None
    """Which captions are true of which images, own or not, where that is known."""

    def __post_init__(self) -> None:
        if len(self.owners) != len(self.texts):
            raise ValueError(f"{len(self.texts)} captions but {len(self.owners)} owners: each caption has one")
        if len(self.owners) and (self.owners[0] < 0 or self.owners[-1] >= len(self.image_names)):
            raise ValueError(f"owners must be rows of the {len(self.image_names)} images")
        if (np.diff(self.owners) < 0).any():
            raise ValueError("owners must ascend: the captions of an image stand together, in the order of the images")
        if len(set(self.image_names)) < len(self.image_names):
            raise ValueError("an image is named twice")
        if (self.captions_each() == 0).any():
            raise ValueError(f"image {self.image_names[int(self.captions_each().argmin())]} has no caption")
        for part, count in (
            (self.pictures, len(self.image_names)),
            (self.features, len(self.image_names)),
            (self.boxes, len(self.image_names)),
            (self.caption_features, len(self.texts)),
        ):
            if part is not None and len(part) != count:
                raise ValueError(f"{count} items but {len(part)} rows of {type(part).__name__.lower()}")

    def captions_each(self) -> Int[np.ndarray, " image"]:
        return np.bincount(self.owners, minlength=len(self.image_names))


@dataclass(frozen=True)
class DataSet:
    """What a path held. `skipped` lists every item that was left out, and why."""

    path: Path
    format: str
    splits: Mapping[str, Split]
    skipped: Sequence[str] = field(default=())

    def split(self, name: str) -> Split:
        """A split by name; `train+restval` joins two, as COCO's users do."""
        parts = [SPLIT_NAMES.get(part.lower(), part) for part in name.split("+")]
        for part in parts:
            if part not in self.splits:
                near = get_close_matches(part, self.splits, n=1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise ValueError(f"{self.path} has no split {part!r}{hint}; it has: {', '.join(self.splits)}")
        if len(set(parts)) < len(parts):
            raise ValueError(f"the split {name!r} names one part twice")
        return join([self.splits[part] for part in parts])


def without_bad_features(data: DataSet, faults: Faults) -> DataSet:
    """Every feature is read; an image with NaN or infinity in any of its own is reported, and left out if wanted."""
    splits = {}
    for name, split in data.splits.items():
        bad: set[int] = set()
        for rows, of_captions in ((split.features, False), (split.boxes, False), (split.caption_features, True)):
            for item in rows.bad_items() if rows is not None else ():
                assert rows is not None
                faults.found(f"{rows.place}, row {rows.row(item)}", "NaN or infinity")
                bad.add(int(split.owners[item]) if of_captions else item)
        kept = np.array([image for image in range(len(split.image_names)) if image not in bad], dtype=np.int64)
        if len(kept):
            splits[name] = split if not bad else only(split, kept)
    if not splits:
        raise ValueError(f"{data.path}: no image has features that can be used; the first fault: {faults.listed[0]}")
    return DataSet(data.path, data.format, splits, [*data.skipped, *faults.listed])


def only_splits(data: DataSet, names: Sequence[str]) -> DataSet:
    """The data set with these splits alone."""
    made = {SPLIT_NAMES.get(name.lower(), name): data.split(name) for name in names}
    return DataSet(data.path, data.format, made, data.skipped)


def first_captions(data: DataSet, most: int) -> DataSet:
    """Every image with its first captions alone, as the published files of COCO have them."""
    if most < 1:
        raise ValueError(f"expected to keep at least 1 caption of each image, got {most}")
    splits = {}
    for name, split in data.splits.items():
        starts = np.searchsorted(split.owners, split.owners)  # where the captions of each one's image begin
        kept = np.flatnonzero(np.arange(len(split.owners)) - starts < most)
        splits[name] = replace(
            split,
            texts=tuple(split.texts[caption] for caption in kept),
            owners=split.owners[kept],
            caption_features=split.caption_features and split.caption_features.only(kept),
            truth=None,
        )
    return DataSet(data.path, data.format, splits, data.skipped)


def only(split: Split, images: Int[np.ndarray, " kept"]) -> Split:
    """The split with these images alone (ascending), and their captions."""
    position = np.full(len(split.image_names), -1)
    position[images] = np.arange(len(images))
    captions = np.flatnonzero(position[split.owners] >= 0)
    truth = split.truth
    return Split(
        image_names=tuple(split.image_names[image] for image in images),
        texts=tuple(split.texts[caption] for caption in captions),
        owners=position[split.owners[captions]],
        pictures=split.pictures and Pictures([split.pictures.sources[image] for image in images]),
        features=split.features and split.features.only(images),
        caption_features=split.caption_features and split.caption_features.only(captions),
        boxes=split.boxes and split.boxes.only(images),
        truth=truth and (lambda i, c: truth(torch.from_numpy(images)[i], torch.from_numpy(captions)[c])),
    )


def join(splits: Sequence[Split]) -> Split:
    """Several splits as one, in the order given."""
    if len(splits) == 1:
        return splits[0]
    starts = np.cumsum([0, *(len(split.image_names) for split in splits)])
    names = [name for split in splits for name in split.image_names]
    twice = next((name for name, count in zip(*np.unique(names, return_counts=True), strict=True) if count > 1), None)
    if twice is not None:
        raise ValueError(f"image {twice} is in two of the splits that are to be joined")
    return Split(
        image_names=tuple(names),
        texts=tuple(text for split in splits for text in split.texts),
        owners=np.concatenate([split.owners + start for split, start in zip(splits, starts[:-1], strict=True)]),
        pictures=_all_or_none([split.pictures for split in splits], Pictures.joined),
        features=_all_or_none([split.features for split in splits], Rows.joined),
        caption_features=_all_or_none([split.caption_features for split in splits], Rows.joined),
        boxes=_all_or_none([split.boxes for split in splits], Rows.joined),
    )


_Part = TypeVar("_Part")


def _all_or_none(parts: Sequence[_Part | None], joined: Callable[[Sequence[_Part]], _Part]) -> _Part | None:
    present = [part for part in parts if part is not None]
    if present and len(present) < len(parts):
        raise ValueError(f"some of the splits that are to be joined have {type(present[0]).__name__}, others have none")
    return joined(present) if present else None
