"""Sets of parts: the regions of images and the words of captions, as one padded tensor.

A row of zeros is padding, and what is real is never all zeros: `padded_with_zeros` sees to both. So an encoded set is
a plain tensor that can be sliced, joined and sent anywhere, and nothing has to carry its lengths beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

# Too small to be seen in any product, too large to be 0.
SPECK = 1e-30


@dataclass(frozen=True, eq=False)
class Parts:
    """What follows from the vectors alone is found once, however many sets they are compared with."""

    vectors: Float[Tensor, "item part dim"]
    """Zeros where padded."""
    real: Bool[Tensor, "item part"]

    @cached_property
    def gram(self) -> Float[Tensor, "item part part"]:
        """Products of each item's parts with each other."""
        return self.vectors @ self.vectors.mT

    @cached_property
    def by_place(self) -> Float[Tensor, "part_item dim"]:
        """The first part of every item, then the second of every item, and so on."""
        return self.vectors.transpose(0, 1).flatten(0, 1)

    @cached_property
    def lengths(self) -> Float[Tensor, " part_item"]:
        """Of the vectors, by place."""
        return self.by_place.norm(dim=1)

    @cached_property
    def by_query(self) -> Bool[Tensor, "1 part item"]:
        """What is real, as those see it who meet all items at once."""
        return self.real.T[None]

    @classmethod
    def of(cls, encoded: Float[Tensor, "item part dim"]) -> "Parts":
        return cls(encoded, _is_something(encoded))

    def split(self, side: int) -> Sequence["Parts"]:
        """So many items at a time. (Autograd joins the gradients of all pieces once; each slice would make a whole.)"""
        pieces = zip(self.vectors.split(side), self.real.split(side), strict=True)
        return [Parts(vectors, real) for vectors, real in pieces]

    def trimmed(self) -> "Parts":
        """Without what is padding in every item; one part is left where all of them are empty."""
        used = self.real.any(dim=0).nonzero()
        longest = int(used[-1].item()) + 1 if len(used) else 1
        return Parts(self.vectors[:, :longest], self.real[:, :longest])


def padded_with_zeros(
    vectors: Float[Tensor, "item part dim"], real: Bool[Tensor, "item part"]
) -> Float[Tensor, "item part dim"]:
    """Zeros where padded; a speck in what is real and all zeros, such as a region without features."""
    empty = real & ~_is_something(vectors)
    specks = F.pad(empty[..., None].to(vectors.dtype) * SPECK, (0, vectors.shape[2] - 1))
    return torch.where(real[..., None], vectors + specks, 0)


def _is_something(vectors: Float[Tensor, "item part dim"]) -> Bool[Tensor, "item part"]:
    """Not all zeros; NaN is something."""
    return vectors.detach().abs().amax(dim=2) != 0


def joined(sets: list[Float[Tensor, "_ _ dim"]]) -> Float[Tensor, "item part dim"]:
    """One after the other, padded to the longest."""
    longest = max(each.shape[1] for each in sets)
    return torch.cat([F.pad(each, (0, 0, 0, longest - each.shape[1])) for each in sets])
