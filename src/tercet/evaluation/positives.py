"""Positive pairs as lists of row indices."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from tercet.types import PairMask

Items = Int[np.ndarray, " pair"]


@dataclass(frozen=True)
class PositivePairs:
    """Unique positive pairs in the order of a mask's `nonzero()`: by image, then by caption."""

    image: Items
    caption: Items

    @staticmethod
    def of(pairs: Iterable[tuple[int, int]] | Int[np.ndarray, "pair 2"]) -> "PositivePairs":
        """Build from (image, caption) pairs in any order; duplicates are removed."""
        array = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64).reshape(-1, 2)
        unique = np.unique(array, axis=0)
        return PositivePairs(unique[:, 0].copy(), unique[:, 1].copy())

    def __or__(self, other: "PositivePairs") -> "PositivePairs":
        return PositivePairs.of(
            np.column_stack([np.append(self.image, other.image), np.append(self.caption, other.caption)])
        )


@dataclass(frozen=True)
class Positives:
    """Positive pairs per direction: annotations may differ between image queries (i2t) and caption queries (t2i)."""

    i2t: PositivePairs
    t2i: PositivePairs

    @property
    def symmetric(self) -> bool:
        return self.i2t is self.t2i

    @staticmethod
    def of_owners(owners: Int[Tensor, " caption"]) -> "Positives":
        """Pair every caption with its image."""
        rows = owners.cpu().numpy().astype(np.int64)
        order = np.argsort(rows, kind="stable")
        pairs = PositivePairs(rows[order], order)
        return Positives(pairs, pairs)

    @staticmethod
    def of_mask(positives: PairMask) -> "Positives":
        """Take the pairs of a boolean image x caption mask."""
        image, caption = positives.nonzero(as_tuple=True)
        pairs = PositivePairs(image.cpu().numpy(), caption.cpu().numpy())
        return Positives(pairs, pairs)
