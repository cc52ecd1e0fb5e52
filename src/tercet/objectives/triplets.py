"""Objectives on triplets: every positive pair with its anchor's hardest negative, weighed from their similarities.

`triplet-sh`, the cells of GOAL and a user's own weights differ in `weigh` alone. What goes in is elementwise and
broadcasts, so that a matrix of all pairs and a list of positive pairs are weighed by the same lines.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import MONITOR_MARGIN, RowObjective
from tercet.objectives.hardest import Hardest, hardest_negative, hinge
from tercet.objectives.masks import Rows
from tercet.objectives.relative import OtherPositives, RelativeSettings, relative_to_negatives
from tercet.objectives.running import RunningHardest, RunningRelative
from tercet.objectives.sides import both_sides
from tercet.objectives.streaming import EmbeddingGradient
from tercet.objectives.tiles import TiledSimilarity


class Triplets(NamedTuple):
    """Similarities of triplets, with the relative terms where the objective asks for them."""

    s_p: Float[Tensor, "..."]
    s_n: Float[Tensor, "..."]
    relative_p: Float[Tensor, "..."] | None = None
    relative_n: Float[Tensor, "..."] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class TripletObjective(RowObjective):
    """dL/dS_p = -pull and dL/dS_n = +push, where (pull, push) = `weigh(triplets)` are constants."""

    @property
    def relative(self) -> RelativeSettings | None:
        """Which relative terms `weigh` needs, if any."""
        return None

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor | float, Tensor | float] | None:
        """(T, P+, P-) of each triplet, where `weigh` is (T P+, T P-); None where no such factors are declared."""
        return None

    @abstractmethod
    def weigh(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        """(pull on the positive, push on the negative) of each triplet."""

    def triplet_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        """The loss of one triplet, where one exists."""
        raise ValueError(f"{self.name} has no value: its gradient belongs to no loss")

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self._gradient(rows, hardest_negative(rows))

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return self._scalar(rows, hardest_negative(rows))

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        hardest = hardest_negative(rows)
        return self._scalar(rows, hardest), self._gradient(rows, hardest)

    def _gradient(self, rows: Rows, hardest: Hardest) -> Float[Tensor, "anchor candidate"]:
        relative_p = relative_n = None
        if self.relative is not None:
            others = OtherPositives(positive_pool(rows), self.relative)
            relative_p = others.relative(rows.similarity, hardest.similarity[:, None])
            relative_n = relative_to_negatives(rows, hardest, others.pool[0], self.relative)[:, None]
        pull, push = self.weigh(Triplets(rows.similarity, hardest.similarity[:, None], relative_p, relative_n))
        is_triplet = rows.positives & hardest.exists[:, None]
        pushes = torch.where(is_triplet, push, 0.0).sum(dim=1, keepdim=True)  # anchor 1
        return torch.where(is_triplet, 0 - pull, 0.0).scatter_add_(1, hardest.candidate[:, None], pushes)

    def _scalar(self, rows: Rows, hardest: Hardest) -> Float[Tensor, " anchor"]:
        value = self.shown_value(rows.similarity, hardest.similarity[:, None])
        return torch.where(rows.positives & hardest.exists[:, None], value, 0.0).sum(dim=1)

    def shown_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        """What a triplet adds to the scalar: its loss, or its hinge where there is none."""
        return self.triplet_value(s_p, s_n) if self.has_value else hinge(s_p, s_n, MONITOR_MARGIN)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass finds the hardest negatives; what follows touches one entry a pair and one an anchor."""
        sides = both_sides(tiles, self.reduction)
        trackers = self._trackers(tiles)
        for tile in tiles.walk():
            for side, tracker in zip(sides, trackers, strict=True):
                tracker.update(*side.view(tile))
        s_p = tiles.pair_similarity
        on_pairs = torch.zeros_like(s_p)
        scalar = s_p.new_zeros(())
        others = OtherPositives(s_p.sort().values, self.relative) if self.relative and len(s_p) else None
        for side, tracker in zip(sides, trackers, strict=True):
            hardest = tracker.result()
            s_n = side.of_pairs(hardest.similarity)
            weights = side.of_pairs(side.weights * hardest.exists)
            is_triplet = weights > 0  # what a weight says of an anchor without a negative must not spread
            scalar += torch.where(is_triplet, weights * self.shown_value(s_p, s_n), 0.0).sum()
            if into is None or not len(s_p):
                continue
            relative_p = relative_n = None
            if others is not None and isinstance(tracker, RunningRelative):
                relative_p = others.relative(s_p, s_n)
                relative_n = side.of_pairs(tracker.relative())
            pull, push = self.weigh(Triplets(s_p, s_n, relative_p, relative_n))
            on_pairs -= torch.where(is_triplet, weights * pull, 0.0)
            pushes = side.sum(torch.where(is_triplet, weights * push, 0.0))
            anchors = torch.arange(len(side.weights), device=s_p.device)
            entry = (anchors, hardest.candidate) if side.is_image else (hardest.candidate, anchors)
            into.add_entries(*entry, pushes)
        if into is not None:
            into.add_entries(tiles.pair_image, tiles.pair_caption, on_pairs)
        return scalar

    def _trackers(self, tiles: TiledSimilarity) -> list[RunningHardest]:
        like, anchors = tiles.pair_similarity, (len(tiles.images), len(tiles.captions))
        if self.relative is None:
            return [RunningHardest(count, like) for count in anchors]
        threshold = tiles.lowest_positive() - self.relative.slack
        return [RunningRelative(count, like, self.relative, threshold) for count in anchors]


def positive_pool(rows: Rows) -> Float[Tensor, " pair"]:
    """The similarities of all positive pairs, ascending; where there is none, nothing is read from it."""
    # A compiled graph cannot depend on how many there are: there the rest goes to the far end as +inf.
    if torch.compiler.is_compiling():
        return rows.similarity.masked_fill(~rows.positives, torch.inf).flatten().sort().values
    pool = rows.similarity[rows.positives].sort().values
    return pool if len(pool) else rows.similarity.new_zeros(1)
