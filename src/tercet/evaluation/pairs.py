"""Which pairs are positive, as lists of rows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from tercet.contracts import PairMask

Items = Int[np.ndarray, " pair"]


@dataclass(frozen=True)
class Pairs:
    """Positive pairs, each once, in the order of a mask's `nonzero()`: by image, then by caption."""

    image: Items
    caption: Items

    @staticmethod
    def of(pairs: Iterable[tuple[int, int]] | Int[np.ndarray, "pair 2"]) -> "Pairs":
        """Of (image, caption) in any order; what is listed twice counts once."""
        listed = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64).reshape(-1, 2)
        unique = np.unique(listed, axis=0)
        return Pairs(unique[:, 0].copy(), unique[:, 1].copy())

    def __or__(self, other: "Pairs") -> "Pairs":
        return Pairs.of(np.column_stack([np.append(self.image, other.image), np.append(self.caption, other.caption)]))


@dataclass(frozen=True)
class Positives:
    """Which pairs are positive when an image is the query, and when a caption is: annotations may differ."""

    i2t: Pairs
    t2i: Pairs

    @property
    def symmetric(self) -> bool:
        return self.i2t is self.t2i

    @staticmethod
    def of_owners(owners: Int[Tensor, " caption"]) -> "Positives":
        """Every caption with its image."""
        rows = owners.cpu().numpy().astype(np.int64)
        order = np.argsort(rows, kind="stable")
        pairs = Pairs(rows[order], order)
        return Positives(pairs, pairs)

    @staticmethod
    def of_mask(positives: PairMask) -> "Positives":
        image, caption = positives.nonzero(as_tuple=True)
        pairs = Pairs(image.cpu().numpy(), caption.cpu().numpy())
        return Positives(pairs, pairs)
