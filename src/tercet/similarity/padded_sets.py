"""Sets of vectors (regions of images, words of captions): padded within a batch, ragged for a whole split.

A row of zeros is padding, and a real element is never all zeros; `zero_pad` ensures both. So an encoded set is a plain
tensor that can be sliced, concatenated and sent between processes, without separate lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Too small to affect any product, too large to be 0.
TINY_MARKER = 1e-30


@dataclass(frozen=True, eq=False)
class PaddedSets:
    """Padded sets with cached properties of the vectors, computed once however many sets they are compared with."""

    vectors: Float[Tensor, "item element dim"]
    """Zeros where padded."""
    real: Bool[Tensor, "item element"]
    """True where not padded."""

    @cached_property
    def gram(self) -> Float[Tensor, "item element element"]:
        """Dot products of each item's elements with each other."""
        return self.vectors @ self.vectors.mT

    @cached_property
    def position_major(self) -> Float[Tensor, "element_item dim"]:
        """The vectors ordered by position: the first element of every item, then the second of every item, ..."""
        return self.vectors.transpose(0, 1).flatten(0, 1)

    @cached_property
    def norms(self) -> Float[Tensor, " element_item"]:
        """L2 norms of the vectors, position-major."""
        return self.position_major.norm(dim=1)

    @cached_property
    def query_mask(self) -> Bool[Tensor, "1 element item"]:
        """`real` with the items last, in the layout of products with all items as queries."""
        return self.real.T[None]

    @classmethod
    def of(cls, encoded: Float[Tensor, "item element dim"]) -> "PaddedSets":
        return cls(encoded, _is_nonzero(encoded))

    def split(self, size: int) -> Sequence["PaddedSets"]:
        """Split into chunks of `size` items. (One backward node for all chunks; slicing would allocate a full-size
        gradient per chunk.)"""
        chunks = zip(self.vectors.split(size), self.real.split(size), strict=True)
        return [PaddedSets(vectors, real) for vectors, real in chunks]

    def trimmed(self) -> "PaddedSets":
        """Remove positions that are padding in every item; at least one position remains."""
        used = self.real.any(dim=0).nonzero()
        longest = int(used[-1].item()) + 1 if len(used) else 1
        return PaddedSets(self.vectors[:, :longest], self.real[:, :longest])


def zero_pad(
    vectors: Float[Tensor, "item element dim"], real: Bool[Tensor, "item element"]
) -> Float[Tensor, "item element dim"]:
    """Set padding to zeros, and mark real elements that are all zeros (regions without features) with a tiny value."""
    unmarked = real & ~_is_nonzero(vectors)
    markers = F.pad(unmarked[..., None].to(vectors.dtype) * TINY_MARKER, (0, vectors.shape[2] - 1))
    return torch.where(real[..., None], vectors + markers, 0)


def normalized_mean(sets: Float[Tensor, "item element dim"]) -> Float[Tensor, "item dim"]:
    """The L2-normalized mean over the elements of each set. Padding is zeros and does not change it."""
    total = sets.sum(dim=1)
    return total / total.norm(dim=1, keepdim=True).clamp(min=1e-12)


def _is_nonzero(vectors: Float[Tensor, "item element dim"]) -> Bool[Tensor, "item element"]:
    """Which vectors are not all zeros; NaN counts as nonzero."""
    return vectors.detach().abs().amax(dim=2) != 0


def concat_padded(batches: list[Float[Tensor, "_ _ dim"]]) -> Float[Tensor, "item element dim"]:
    """Concatenate batches of padded sets, padded to the longest."""
    longest = max(batch.shape[1] for batch in batches)
    return torch.cat([F.pad(batch, (0, 0, 0, longest - batch.shape[1])) for batch in batches])


class RaggedSets:
    """Sets of a whole split without padding, which would be as wide as the longest caption.

    Indexing with a slice gives a padded tensor; indexing with a tensor of indices gives another `RaggedSets`.
    """

    def __init__(
        self, vectors: Float[Tensor, "element dim"], lengths: Int[Tensor, " item"], starts: Int[Tensor, " item"]
    ):
        self.vectors, self.lengths, self.starts = vectors, lengths, starts

    @classmethod
    def of(cls, batches: Sequence[Float[Tensor, "_ _ dim"]]) -> "RaggedSets":
        """Concatenate batches of padded sets without their padding."""
        masks = [PaddedSets.of(batch).real for batch in batches]
        lengths = torch.cat([mask.sum(dim=1) for mask in masks])
        vectors = torch.cat([batch[mask] for batch, mask in zip(batches, masks, strict=True)])
        return cls(vectors, lengths, lengths.cumsum(0) - lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, items: slice) -> Float[Tensor, "item element dim"]: ...

    @overload
    def __getitem__(self, items: Int[Tensor, " chosen"]) -> "RaggedSets": ...

    def __getitem__(self, items: slice | Tensor) -> "Tensor | RaggedSets":
        selected = RaggedSets(self.vectors, self.lengths[items], self.starts[items])
        return selected.padded() if isinstance(items, slice) else selected

    def padded(self) -> Float[Tensor, "item element dim"]:
        """All items as one tensor, padded with zeros to the longest."""
        longest = max(1, int(self.lengths.max())) if len(self) else 1
        positions = torch.arange(longest, device=self.lengths.device)
        real = positions < self.lengths[:, None]
        padded = self.vectors.new_zeros(len(self), longest, self.vectors.shape[1])
        padded[real] = self.vectors[(self.starts[:, None] + positions)[real]]
        return padded
