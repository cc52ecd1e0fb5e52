"""The model's view of a split: an image source, a caption source, and the owner of each caption."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from tercet.data.dataset import Split


@runtime_checkable
class Source(Protocol):
    """Images or captions by index: features (`FeatureArray`), token ids (`TokenizedCaptions`) or `Pixels`."""

    def __len__(self) -> int: ...

    def take(self, items: Int[Tensor, " item"]) -> tuple[Shaped[Tensor, "item *rest"], Int[Tensor, " item"] | None]:
        """These items and, if they are padded, their lengths."""
        ...

    def subset(self, items: Int[np.ndarray, " kept"]) -> "Source": ...

    def checksum(self) -> str: ...


@dataclass(frozen=True)
class PairedData:
    """Images and captions of one split; `owners[j]` is the image that caption j describes."""

    name: str
    images: Source
    captions: Source
    owners: Int[Tensor, " caption"]
    texts: tuple[str, ...]
    truth: Callable[[Int[Tensor, " image"], Int[Tensor, " caption"]], Bool[Tensor, "image caption"]] | None = None
    split: Split | None = None
    """The split that it was made of, with names and image files."""

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
        )

    def pairing(self) -> str:
        """Checksum of the texts and owners; it does not depend on features, tokenizer or image preprocessing."""
        digest = hashlib.sha256(self.owners.numpy().tobytes())
        digest.update(f"{len(self.images)}\n".encode() + "\n".join(self.texts).encode())
        return digest.hexdigest()[:16]

    def checksum(self) -> str:
        """Checksum of everything that training and evaluation read."""
        digest = hashlib.sha256((self.images.checksum() + self.captions.checksum()).encode())
        digest.update(self.owners.numpy().tobytes())
        digest.update("\n".join(self.texts).encode())
        return digest.hexdigest()


def paired(name: str, split: Split, images: Source | None = None, captions: Source | None = None) -> PairedData:
    """A split with its frozen features, or with other sources in their place."""
    images, captions = images or split.features, captions or split.caption_features
    if images is None:
        raise ValueError(f"{name} has no image features: run `tercet features` first, or use a model that reads pixels")
    if captions is None:
        raise ValueError(
            f"{name} has no caption features: run `tercet features` first, or use a model that reads token ids"
        )
    return PairedData(name, images, captions, torch.from_numpy(split.owners), split.texts, split.truth, split)
