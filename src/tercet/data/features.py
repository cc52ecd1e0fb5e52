"""Images and captions as frozen features: what heads are trained on."""

import hashlib
import itertools
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class FeatureSet:
    """Frozen features of one split; `owners[j]` is the image that caption j describes."""

    name: str
    images: Float[Tensor, "image dim"]
    captions: Float[Tensor, "caption word_dim"]
    owners: Int[Tensor, " caption"]
    texts: tuple[str, ...]

    def checksum(self) -> str:
        """Of everything that training and evaluation see."""
        digest = hashlib.sha256()
        for part in (self.images, self.captions, self.owners):
            digest.update(part.contiguous().numpy().tobytes())
        digest.update("\n".join(self.texts).encode())
        return digest.hexdigest()


def bag_of_words_features(texts: list[str], dim: int) -> Float[Tensor, "caption dim"]:
    """A frozen text encoder that needs no weights: random vectors of words and of neighbouring words, added up."""
    buckets = 1 << 14
    table = np.random.default_rng(0).standard_normal((buckets, dim), dtype=np.float32)
    features = np.zeros((len(texts), dim), dtype=np.float32)
    for row, text in enumerate(texts):
        words = text.split()
        pieces = words + [f"{first} {second}" for first, second in itertools.pairwise(words)]
        features[row] = table[[zlib.crc32(piece.encode()) % buckets for piece in pieces]].sum(axis=0)
    return torch.nn.functional.normalize(torch.from_numpy(features), dim=1)
