"""A stack of batches of equal size, one for each of several runs: S[run image caption] and its positive pairs.

The anchors of all runs are on one axis, and so are the entries of S: an objective computes the gradients of all runs
with the operations of one batch (`RowObjective.on_stack`). Runs do not mix: NaN in one does not reach another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tercet.objectives.inputs import Reduction, uniform_query_weight


@dataclass(frozen=True)
class StackedAnchors:
    """One direction of a stack: the anchors of all runs on one axis."""

    runs: int
    per_run: int
    of_pair: Int[Tensor, " pair"]
    """The anchor of every positive pair."""

    @cached_property
    def pair_count(self) -> Int[Tensor, " anchor"]:
        """The number of positive pairs of every anchor."""
        return self.of_pair.bincount(minlength=self.runs * self.per_run)

    def weights(self, reduction: Reduction, dtype: torch.dtype) -> Float[Tensor, " anchor"]:
        """The weight of each anchor in the scalar of its run, as in `query_weights`."""
        is_query = self.pair_count > 0
        if reduction == "mean" and not bool(is_query.all()):
            queries = is_query.view(self.runs, -1).sum(dim=1, keepdim=True).clamp(min=1)
            return (0.5 * is_query.view(self.runs, -1).to(dtype) / queries).flatten()
        return uniform_query_weight(self.per_run, reduction) * is_query.to(dtype)

    def slots(self) -> Iterator[Int[Tensor, " slot_pair"]]:
        """Indices of the first pair of every anchor that has one, then of the second pairs, and so on."""
        order = self.of_pair.argsort(stable=True)
        first = self.pair_count.cumsum(dim=0) - self.pair_count
        slot = torch.arange(len(order), device=order.device) - first[self.of_pair[order]]
        for number in range(int(self.pair_count.max())):
            yield order[slot == number]


@dataclass(frozen=True)
class StackedPairs:
    """The positive pairs of a stack of batches, in the order of `positives.nonzero()`."""

    run: Int[Tensor, " pair"]
    entry: Int[Tensor, " pair"]
    """Position in the flattened S[run image caption]."""
    images: StackedAnchors
    captions: StackedAnchors

    @classmethod
    def of(cls, positives: Sequence[Bool[Tensor, "image caption"]]) -> "StackedPairs":
        """`positives`: the mask of every run. Runs with the same batch have the same tensor, which is searched once."""
        images, captions = positives[0].shape
        found = {id(mask): mask.reshape(-1).nonzero().flatten() for mask in positives}
        entries = [found[id(mask)] for mask in positives]
        device, runs = positives[0].device, len(entries)
        counts = torch.tensor([len(entry) for entry in entries], device=device)
        run = torch.arange(runs, device=device).repeat_interleave(counts)
        entry = torch.cat(entries) + run * (images * captions)
        image = entry.div(captions, rounding_mode="floor")
        caption = entry - image * captions + run * captions
        return cls(run, entry, StackedAnchors(runs, images, image), StackedAnchors(runs, captions, caption))

    @property
    def runs(self) -> int:
        return self.images.runs

    def of_matrices(self, matrices: Shaped[Tensor, "run image caption"]) -> Shaped[Tensor, " pair"]:
        """The entries of the pairs."""
        return matrices.reshape(-1)[self.entry]

    def sum(self, terms: Float[Tensor, " pair"]) -> Float[Tensor, " run"]:
        """Sum over the pairs of each run."""
        return terms.new_zeros(self.runs).index_add_(0, self.run, terms)

    def mask(self) -> Bool[Tensor, "run image caption"]:
        shape = self.runs, self.images.per_run, self.captions.per_run
        mask = torch.zeros(shape, dtype=torch.bool, device=self.entry.device)
        mask.view(-1)[self.entry] = True
        return mask
