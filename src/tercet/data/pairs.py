"""What a model sees of a split: two sides to match, and which caption belongs to which image."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from tercet.data.dataset import Split
from tercet.data.rows import Rows


@runtime_checkable
class Source(Protocol):
    """Items of one side by number: features (`Rows`), numbers of words (`Tokens`), pixels."""

    def __len__(self) -> int: ...

    def take(self, items: Int[Tensor, " item"]) -> tuple[Shaped[Tensor, "item *rest"], Int[Tensor, " item"] | None]:
        """These items and, where they are padded, their lengths."""
        ...

    def only(self, items: Int[np.ndarray, " kept"]) -> "Source": ...

    def checksum(self) -> str: ...


@dataclass(frozen=True)
class PairedData:
    """Both sides of one split; `owners[j]` is the image that caption j describes."""

    name: str
    images: Source
    captions: Source
    owners: Int[Tensor, " caption"]
    texts: tuple[str, ...]
    truth: Callable[[Int[Tensor, " image"], Int[Tensor, " caption"]], Bool[Tensor, "image caption"]] | None = None

    def only(self, images: Int[Tensor, " kept"]) -> "PairedData":
        """These images alone (ascending), and their captions."""
        position = torch.full((len(self.images),), -1)
        position[images] = torch.arange(len(images))
        captions = (position[self.owners] >= 0).nonzero().flatten()
        truth = self.truth
        return PairedData(
            self.name,
            self.images.only(images.numpy()),
            self.captions.only(captions.numpy()),
            position[self.owners[captions]],
            tuple(self.texts[caption] for caption in captions.tolist()),
            truth and (lambda i, c: truth(images[i], captions[c])),
        )

    def pairing(self) -> str:
        """A checksum of the texts and of whose they are: the same however images and captions are read."""
        digest = hashlib.sha256(self.owners.numpy().tobytes())
        digest.update(f"{len(self.images)}\n".encode() + "\n".join(self.texts).encode())
        return digest.hexdigest()[:16]

    def checksum(self) -> str:
        """Of everything that training and evaluation see."""
        digest = hashlib.sha256((self.images.checksum() + self.captions.checksum()).encode())
        digest.update(self.owners.numpy().tobytes())
        digest.update("\n".join(self.texts).encode())
        return digest.hexdigest()


def paired(name: str, split: Split, images: Source | None = None, captions: Source | None = None) -> PairedData:
    """A split with its frozen features, or with other sources in their place."""
    if images is None and split.features is None:
        raise ValueError(f"{name} has no features of images: run `tercet features` first, or take a model of pixels")
    if captions is None and split.caption_features is None:
        raise ValueError(f"{name} has no features of captions: run `tercet features` first, or take a model of words")
    sides = (images or split.features, captions or split.caption_features)
    assert sides[0] is not None
    assert sides[1] is not None
    return PairedData(name, sides[0], sides[1], torch.from_numpy(split.owners), split.texts, split.truth)


def feature_dims(data: PairedData) -> tuple[int, int]:
    """Channels of both sides, where both are features."""
    if not isinstance(data.images, Rows) or not isinstance(data.captions, Rows):
        raise ValueError(f"{data.name}: heads are trained on frozen features of images and captions")
    return data.images.shape[-1], data.captions.shape[-1]
