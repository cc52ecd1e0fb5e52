"""Datasets: named splits of images and captions, independent of the file format; and a split as a model reads it."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from tercet.data.feature_array import FeatureArray
from tercet.data.image_io import ImageFiles
from tercet.names import suggest
from tercet.types import IMAGE_TEXT, Sides

# Common split names -> the name that Tercet uses.
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


def split_name(value: object) -> str:
    """Tercet's name for a split. It becomes part of file names: `ValueError` if it cannot."""
    name = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"expected a split name such as train, val or test, got {value!r}")
    return SPLIT_NAMES.get(name.lower(), name)


@dataclass(frozen=True, repr=False)
class Split:
    """Images and captions; `owners[j]` is the image that caption j describes. Any number of captions per image.

    If both sides are texts, passages are the images and queries the captions: `image_texts` are the passages, of which
    any number may have no query (distractors), and `more_pairs` the further passages of queries that have several.
    """

    image_names: tuple[str, ...]
    texts: tuple[str, ...]
    owners: Int[np.ndarray, " caption"]
    image_files: ImageFiles | None = None
    """Image files, if there are any."""
    features: FeatureArray | None = None
    """Precomputed image features: (image dim) or (image region dim)."""
    caption_features: FeatureArray | None = None
    """Precomputed caption features."""
    boxes: FeatureArray | None = None
    """Region boxes (image region 4): left, top, right, bottom as fractions of the image width and height."""
    truth: Callable[[Int[Tensor, " image"], Int[Tensor, " caption"]], Bool[Tensor, "image caption"]] | None = None
    """Which captions are true of which images, their own or others', if known."""
    find_images: Callable[[Sequence[str]], ImageFiles | None] | None = None
    """Finds image files by name in the dataset that the features were extracted from."""
    image_texts: tuple[str, ...] | None = None
    """The texts on the image side, if both sides are texts."""
    caption_names: tuple[str, ...] | None = None
    """Ids of the captions, if they have any."""
    more_pairs: Int[np.ndarray, "pair 2"] | None = None
    """(image, caption) of the positive pairs besides those of `owners`, sorted; None if there are none."""
    sides: Sides = IMAGE_TEXT

    def images(self) -> ImageFiles | None:
        """The image files, also those of the dataset that the features were extracted from, if it is still there."""
        if self.image_files is not None or self.find_images is None:
            return self.image_files
        return self.find_images(self.image_names)

    def __post_init__(self) -> None:
        if len(self.owners) != len(self.texts):
            raise ValueError(
                f"expected one owner per caption, got {len(self.texts)} captions and {len(self.owners)} owners"
            )
        if len(self.owners) and (self.owners[0] < 0 or self.owners[-1] >= len(self.image_names)):
            given = f"{self.owners[0]} to {self.owners[-1]}"
            raise ValueError(f"owners must be image indices from 0 to {len(self.image_names) - 1}, got {given}")
        if (np.diff(self.owners) < 0).any():
            raise ValueError("owners must ascend: captions are grouped by image, in the order of the images")
        if len(set(self.image_names)) < len(self.image_names):
            duplicate = next(name for name, count in Counter(self.image_names).items() if count > 1)
            raise ValueError(f"duplicate image name {duplicate}")
        if self.image_texts is None and (self.captions_per_image() == 0).any():
            raise ValueError(f"image {self.image_names[int(self.captions_per_image().argmin())]} has no caption")
        for rows, count in (
            (self.image_files, len(self.image_names)),
            (self.features, len(self.image_names)),
            (self.boxes, len(self.image_names)),
            (self.caption_features, len(self.texts)),
            (self.image_texts, len(self.image_names)),
            (self.caption_names, len(self.texts)),
        ):
            if rows is not None and len(rows) != count:
                raise ValueError(f"expected {count} rows of {type(rows).__name__.lower()}, got {len(rows)}")

    def __repr__(self) -> str:
        return f"Split({self.size()})"

    def size(self) -> str:
        sides = self.sides
        return f"{len(self.image_names):,} {sides.images}, {len(self.texts):,} {sides.captions}"

    def pairs(self) -> Int[np.ndarray, "pair 2"]:
        """All positive (image, caption) pairs: those of the owners by caption, then `more_pairs`."""
        own = np.column_stack([self.owners, np.arange(len(self.owners))])
        return own if self.more_pairs is None else np.concatenate([own, self.more_pairs])

    def captions_per_image(self) -> Int[np.ndarray, " image"]:
        return np.bincount(self.pairs()[:, 0], minlength=len(self.image_names))

    def captions_of(self, image: int) -> list[int]:
        """The captions that match an image, ascending."""
        pairs = self.pairs()
        return sorted(pairs[pairs[:, 0] == image, 1].tolist())


@dataclass(frozen=True, repr=False)
class DataSet:
    """An opened dataset. `skipped` lists every skipped item with the reason."""

    path: Path
    format: str
    splits: Mapping[str, Split]
    skipped: Sequence[str] = field(default=())
    no_images: str = ""
    """Why no image file was found, where data names some and all are missing; empty otherwise."""

    def __repr__(self) -> str:
        sizes = [f"{name} {split.size()}" for name, split in list(self.splits.items())[:4]]
        more = [f"{len(self.splits) - 4} more splits"] if len(self.splits) > 4 else []
        return f"DataSet({'; '.join([str(self.path)[-80:], *sizes, *more])})"

    @property
    def sides(self) -> Sides:
        """What its two sides are called: the same in all splits."""
        return next((split.sides for split in self.splits.values()), IMAGE_TEXT)

    def split(self, name: str) -> Split:
        """A split by name. `train+restval` joins two splits, as is usual for COCO."""
        names = [SPLIT_NAMES.get(part.lower(), part) for part in name.split("+")]
        for part in names:
            if part not in self.splits:
                hint = suggest(part, self.splits)
                raise ValueError(f"{self.path} has no split {part!r}{hint}; it has: {', '.join(self.splits)}")
        if len(set(names)) < len(names):
            raise ValueError(f"the split {name!r} names the same split twice")
        return join([self.splits[part] for part in names])


def select_splits(data: DataSet, names: Sequence[str]) -> DataSet:
    """The dataset with only these splits."""
    splits = {SPLIT_NAMES.get(name.lower(), name): data.split(name) for name in names}
    return replace(data, splits=splits)


def limit_captions(data: DataSet, limit: int) -> DataSet:
    """Keep the first `limit` captions of every image, as in the published COCO files."""
    if limit < 1:
        raise ValueError(f"--limit-captions must be at least 1, got {limit}")
    splits = {}
    for name, split in data.splits.items():
        if split.image_texts is not None:
            raise ValueError(f"--limit-captions is for captions of images; {data.path} has passages and queries")
        starts = np.searchsorted(split.owners, split.owners)  # the first caption of the same image
        kept = np.flatnonzero(np.arange(len(split.owners)) - starts < limit)
        splits[name] = replace(
            split,
            texts=tuple(split.texts[caption] for caption in kept),
            owners=split.owners[kept],
            caption_features=split.caption_features and split.caption_features.subset(kept),
            truth=None,
        )
    return replace(data, splits=splits)


def subset(split: Split, images: Int[np.ndarray, " kept"]) -> Split:
    """Only these images (ascending) and their captions."""
    position = np.full(len(split.image_names), -1)
    position[images] = np.arange(len(images))
    captions = np.flatnonzero(position[split.owners] >= 0)
    truth = split.truth
    return Split(
        image_names=tuple(split.image_names[image] for image in images),
        texts=tuple(split.texts[caption] for caption in captions),
        owners=position[split.owners[captions]],
        image_files=split.image_files and ImageFiles([split.image_files.sources[image] for image in images]),
        features=split.features and split.features.subset(images),
        caption_features=split.caption_features and split.caption_features.subset(captions),
        boxes=split.boxes and split.boxes.subset(images),
        truth=truth and (lambda i, c: truth(torch.from_numpy(images)[i], torch.from_numpy(captions)[c])),
        find_images=split.find_images,
        image_texts=split.image_texts and tuple(split.image_texts[image] for image in images),
        caption_names=split.caption_names and tuple(split.caption_names[caption] for caption in captions),
        more_pairs=_kept_pairs(split.more_pairs, images, captions),
        sides=split.sides,
    )


def _kept_pairs(
    pairs: Int[np.ndarray, "pair 2"] | None, images: Int[np.ndarray, " kept"], captions: Int[np.ndarray, " kept2"]
) -> Int[np.ndarray, "kept_pair 2"] | None:
    """The pairs of which both items are kept, by their new rows; None if there are none."""
    if pairs is None:
        return None
    both = np.isin(pairs[:, 0], images) & np.isin(pairs[:, 1], captions)
    kept = np.column_stack([np.searchsorted(images, pairs[both, 0]), np.searchsorted(captions, pairs[both, 1])])
    return kept if len(kept) else None


def join(splits: Sequence[Split]) -> Split:
    """Concatenate splits."""
    if len(splits) == 1:
        return splits[0]
    if any(split.image_texts is not None for split in splits):
        raise ValueError("splits of passages and queries share their passages and cannot be joined: join their qrels")
    starts = np.cumsum([0, *(len(split.image_names) for split in splits)])
    names = [name for split in splits for name in split.image_names]
    duplicate = next(
        (name for name, count in zip(*np.unique(names, return_counts=True), strict=True) if count > 1), None
    )
    if duplicate is not None:
        raise ValueError(f"image {duplicate} is in two of the joined splits")
    return Split(
        image_names=tuple(names),
        texts=tuple(text for split in splits for text in split.texts),
        owners=np.concatenate([split.owners + start for split, start in zip(splits, starts[:-1], strict=True)]),
        image_files=_all_or_none([split.image_files for split in splits], ImageFiles.concatenate),
        features=_all_or_none([split.features for split in splits], FeatureArray.concatenate),
        caption_features=_all_or_none([split.caption_features for split in splits], FeatureArray.concatenate),
        boxes=_all_or_none([split.boxes for split in splits], FeatureArray.concatenate),
    )


_Rows = TypeVar("_Rows")


def _all_or_none(rows: Sequence[_Rows | None], concatenate: Callable[[Sequence[_Rows]], _Rows]) -> _Rows | None:
    present = [each for each in rows if each is not None]
    if present and len(present) < len(rows):
        raise ValueError(f"some of the joined splits have {type(present[0]).__name__}, others have none")
    return concatenate(present) if present else None


def shared_texts(texts: Sequence[str], pairs: Iterable[Sequence[int]]) -> dict[str, list[int]]:
    """Map every text of several captions that belong to more than one image to these images, ascending."""
    repeated = {text for text, count in Counter(texts).items() if count > 1}
    images: dict[str, set[int]] = {}
    for image, caption in pairs:
        if texts[caption] in repeated:
            images.setdefault(texts[caption], set()).add(image)
    return {text: sorted(owned) for text, owned in images.items() if len(owned) > 1}


@runtime_checkable
class Source(Protocol):
    """Images or captions by index: features (`FeatureArray`), token ids (`TokenizedCaptions`) or `Pixels`."""

    def __len__(self) -> int: ...

    def take(self, items: Int[Tensor, " item"]) -> tuple[Shaped[Tensor, "item *rest"], Int[Tensor, " item"] | None]:
        """These items and, if they are padded, their lengths."""
        ...

    def subset(self, items: Int[np.ndarray, " kept"]) -> "Source": ...

    def checksum(self) -> str: ...


@dataclass(frozen=True, repr=False)
class PairedData:
    """Images and captions of one split; `owners[j]` is the image that caption j describes.

    `pairs` are all positive pairs: those of the owners, and `more_pairs` where captions match several images.
    """

    name: str
    images: Source
    captions: Source
    owners: Int[Tensor, " caption"]
    texts: tuple[str, ...]
    truth: Callable[[Int[Tensor, " image"], Int[Tensor, " caption"]], Bool[Tensor, "image caption"]] | None = None
    split: Split | None = None
    """The split that it was made of, with names and image files."""
    more_pairs: Int[Tensor, "pair 2"] | None = None
    """(image, caption) of the positive pairs besides those of `owners`; None if there are none."""
    sides: Sides = IMAGE_TEXT

    def __repr__(self) -> str:
        sizes = f"{len(self.images):,} {self.sides.images}, {len(self.texts):,} {self.sides.captions}"
        return f"PairedData({self.name}, {sizes})"

    @cached_property
    def pairs(self) -> Int[Tensor, "pair 2"]:
        """All positive (image, caption) pairs: those of the owners by caption, then `more_pairs`."""
        own = torch.stack([self.owners, torch.arange(len(self.owners))], dim=1)
        return own if self.more_pairs is None else torch.cat([own, self.more_pairs])

    def positives(
        self, images: Int[Tensor, " image"], captions: Int[Tensor, " caption"]
    ) -> Bool[Tensor, "image caption"]:
        """Mask of the positive pairs of these images and captions."""
        own = images[:, None] == self.owners[captions][None, :]
        if self.more_pairs is None:
            return own
        pairs = self.more_pairs[:, 0] * len(self.owners) + self.more_pairs[:, 1]
        return own | torch.isin(images[:, None] * len(self.owners) + captions[None, :], pairs)

    @cached_property
    def shared_texts(self) -> dict[str, list[int]]:
        """Texts that caption more than one image -> these images; found once for all runs that share the data."""
        return shared_texts(self.texts, self.pairs.tolist())

    def subset(self, images: Int[Tensor, " kept"]) -> "PairedData":
        """Only these images (ascending) and their captions."""
        position = torch.full((len(self.images),), -1)
        position[images] = torch.arange(len(images))
        captions = (position[self.owners] >= 0).nonzero().flatten()
        truth = self.truth
        return PairedData(
            self.name,
            self.images.subset(images.numpy()),
            self.captions.subset(captions.numpy()),
            position[self.owners[captions]],
            tuple(self.texts[caption] for caption in captions.tolist()),
            truth and (lambda i, c: truth(images[i], captions[c])),
            more_pairs=self._kept_pairs(images, captions),
            sides=self.sides,
        )

    def _kept_pairs(self, images: Int[Tensor, " kept"], captions: Int[Tensor, " kept2"]) -> Tensor | None:
        pairs = None if self.more_pairs is None else self.more_pairs.numpy()
        kept = _kept_pairs(pairs, images.numpy(), captions.numpy())
        return None if kept is None else torch.from_numpy(kept)

    def pairing(self) -> str:
        """Checksum of the texts and owners; it does not depend on features, tokenizer or image preprocessing."""
        digest = hashlib.sha256(self._positives())
        digest.update(f"{len(self.images)}\n".encode() + "\n".join(self.texts).encode())
        return digest.hexdigest()[:16]

    def checksum(self) -> str:
        """Checksum of everything that training and evaluation read."""
        digest = hashlib.sha256((self.images.checksum() + self.captions.checksum()).encode())
        digest.update(self._positives())
        digest.update("\n".join(self.texts).encode())
        return digest.hexdigest()

    def _positives(self) -> bytes:
        return self.owners.numpy().tobytes() + (b"" if self.more_pairs is None else self.more_pairs.numpy().tobytes())


def paired(name: str, split: Split, images: Source | None = None, captions: Source | None = None) -> PairedData:
    """A split with its frozen features, or with other sources in their place."""
    sides = split.sides
    images, captions = images or split.features, captions or split.caption_features
    if images is None:
        reads = "text" if sides.image_is_text else "pixels"
        raise ValueError(
            f"{name} has no {sides.image} features: run `tercet features` first, or use a model that reads {reads}"
        )
    if captions is None:
        raise ValueError(
            f"{name} has no {sides.caption} features: run `tercet features` first, or use a model that reads token ids"
        )
    more_pairs = None if split.more_pairs is None else torch.from_numpy(split.more_pairs)
    owners = torch.from_numpy(split.owners)
    return PairedData(name, images, captions, owners, split.texts, split.truth, split, more_pairs, sides)
