"""Encoded sets of a whole split, without their padding: words of captions would be padded to the longest of all."""

from collections.abc import Sequence
from typing import overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.similarity.parts import Parts


class Ragged:
    """Sets of parts, one after the other. A slice is a padded tensor; an order of items is another one of these."""

    def __init__(self, parts: Float[Tensor, "part dim"], lengths: Int[Tensor, " item"], starts: Int[Tensor, " item"]):
        self.parts, self.lengths, self.starts = parts, lengths, starts

    @classmethod
    def of(cls, sets: Sequence[Float[Tensor, "_ _ dim"]]) -> "Ragged":
        """Of padded sets, one batch after the other."""
        real = [Parts.of(each).real for each in sets]
        lengths = torch.cat([each.sum(dim=1) for each in real])
        parts = torch.cat([each[these] for each, these in zip(sets, real, strict=True)])
        return cls(parts, lengths, lengths.cumsum(0) - lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, items: slice) -> Float[Tensor, "item part dim"]: ...

    @overload
    def __getitem__(self, items: Int[Tensor, " chosen"]) -> "Ragged": ...

    def __getitem__(self, items: slice | Tensor) -> "Tensor | Ragged":
        chosen = Ragged(self.parts, self.lengths[items], self.starts[items])
        return chosen.padded() if isinstance(items, slice) else chosen

    def padded(self) -> Float[Tensor, "item part dim"]:
        longest = max(1, int(self.lengths.max())) if len(self) else 1
        places = torch.arange(longest, device=self.lengths.device)
        real = places < self.lengths[:, None]
        padded = self.parts.new_zeros(len(self), longest, self.parts.shape[1])
        padded[real] = self.parts[(self.starts[:, None] + places)[real]]
        return padded
