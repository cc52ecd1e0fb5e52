"""Objectives on triplets with the hardest negative: the base class `TripletObjective`, and `triplet-sh`.

A triplet is a positive pair and its anchor's hardest negative. `triplet-sh` (the hinge of VSE++, and con/con of GOAL),
the cells of GOAL and a user's own weights differ in `pull_and_push` only. It is elementwise and broadcasts, so the
same code serves the matrix of all pairs (dense) and the list of positive pairs (streamed).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import MONITOR_MARGIN, RowObjective
from tercet.objectives.goal.weights import OtherPositives, RelativeSettings, relative_to_negatives
from tercet.objectives.inputs import Hardest, Rows, hardest_negative, hinge, require_numbers
from tercet.objectives.streaming.accumulators import Direction, RunningHardest, RunningRelative, both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


class Triplets(NamedTuple):
    """Similarities of triplets, and their relative terms (mu or M of GOAL) if the objective uses them."""

    s_p: Float[Tensor, "..."]
    s_n: Float[Tensor, "..."]
    relative_p: Float[Tensor, "..."] | None = None
    relative_n: Float[Tensor, "..."] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class TripletObjective(RowObjective):
    """dL/dS_p = -pull and dL/dS_n = +push; (pull, push) = `pull_and_push(triplets)` are constants to autograd.

    On embeddings this is GOAL's Eq. 3, with the term that Eq. 3 omits: the gradient that an image or caption gets as
    the hardest negative of other anchors.
    """

    @property
    def relative(self) -> RelativeSettings | None:
        """The relative terms that `pull_and_push` needs, or None."""
        return None

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor | float, Tensor | float] | None:
        """(T, P+, P-) of each triplet if `pull_and_push` is the product (T P+, T P-), else None."""
        return None

    @abstractmethod
    def pull_and_push(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        """(pull on the positive, push on the negative) of each triplet."""

    def triplet_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        """The loss of one triplet, if it exists."""
        raise ValueError(f"{self.name} has no value: its gradient is not that of any loss")

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
        pull, push = self.pull_and_push(Triplets(rows.similarity, hardest.similarity[:, None], relative_p, relative_n))
        is_triplet = rows.positives & hardest.exists[:, None]
        pushes = torch.where(is_triplet, push, 0.0).sum(dim=1, keepdim=True)  # anchor 1
        return torch.where(is_triplet, 0 - pull, 0.0).scatter_add_(1, hardest.candidate[:, None], pushes)

    def _scalar(self, rows: Rows, hardest: Hardest) -> Float[Tensor, " anchor"]:
        value = self.triplet_scalar(rows.similarity, hardest.similarity[:, None])
        return torch.where(rows.positives & hardest.exists[:, None], value, 0.0).sum(dim=1)

    def triplet_scalar(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        """The term of one triplet in the scalar: its loss if it exists, else the hinge of the monitor."""
        return self.triplet_value(s_p, s_n) if self.has_value else hinge(s_p, s_n, MONITOR_MARGIN)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass finds the hardest negatives; the rest needs one entry of G per pair and one per anchor."""
        directions = both_directions(tiles, self.reduction)
        trackers = self._trackers(tiles)
        for tile in tiles.walk():
            for direction, tracker in zip(directions, trackers, strict=True):
                tracker.update(*direction.view(tile))
        self._sum_terms_again(tiles, directions, trackers)
        s_p = tiles.pair_similarity
        on_pairs = torch.zeros_like(s_p)
        scalar = s_p.new_zeros(())
        others = OtherPositives(s_p.sort().values, self.relative) if self.relative and len(s_p) else None
        for direction, tracker in zip(directions, trackers, strict=True):
            hardest = tracker.result()
            s_n = direction.per_pair(hardest.similarity)
            weights = direction.per_pair(direction.weights * hardest.exists)
            is_triplet = weights != 0  # a user's weights may be NaN for an anchor without a negative
            scalar += torch.where(is_triplet, weights * self.triplet_scalar(s_p, s_n), 0.0).sum()
            if into is None or not len(s_p):
                continue
            relative_p = relative_n = None
            if others is not None and isinstance(tracker, RunningRelative):
                relative_p = others.relative(s_p, s_n)
                relative_n = direction.per_pair(tracker.relative())
            pull, push = self.pull_and_push(Triplets(s_p, s_n, relative_p, relative_n))
            # Comparisons with NaN are false: hinges of a diverged model would look satisfied.
            weights = torch.where((s_p + s_n).isnan(), torch.nan, weights)
            on_pairs -= torch.where(is_triplet, weights * pull, 0.0)
            pushes = direction.sum(torch.where(is_triplet, weights * push, 0.0))
            anchors = torch.arange(len(direction.weights), device=s_p.device)
            entry = (anchors, hardest.candidate) if direction.image_anchors else (hardest.candidate, anchors)
            into.add_entries(*entry, pushes)
        if into is not None:
            into.add_entries(tiles.pair_image, tiles.pair_caption, on_pairs)
        return scalar

    @staticmethod
    def _sum_terms_again(
        tiles: TiledSimilarity, directions: Sequence[Direction], trackers: Sequence[RunningHardest]
    ) -> None:
        """A second pass for the terms M-, if the similarities are so far apart that the bound of a term matters."""
        again = [
            (direction, tracker)
            for direction, tracker in zip(directions, trackers, strict=True)
            if isinstance(tracker, RunningRelative) and tracker.needs_exact_terms()
        ]
        for _, tracker in again:
            tracker.restart()
        for tile in tiles.walk() if again else ():
            for direction, tracker in again:
                tracker.add_exact(*direction.view(tile))

    def _trackers(self, tiles: TiledSimilarity) -> list[RunningHardest]:
        like, anchors = tiles.pair_similarity, (len(tiles.images), len(tiles.captions))
        if self.relative is None:
            return [RunningHardest(count, like) for count in anchors]
        threshold = tiles.lowest_positive() - self.relative.slack
        return [RunningRelative(count, like, self.relative, threshold) for count in anchors]


def positive_pool(rows: Rows) -> Float[Tensor, " pair"]:
    """The similarities of all positive pairs, ascending; a placeholder if there is none."""
    # The shape in a compiled graph cannot depend on the number of positives: there the rest is padded with +inf.
    if torch.compiler.is_compiling():
        return rows.similarity.masked_fill(~rows.positives, torch.inf).flatten().sort().values
    pool = rows.similarity[rows.positives].sort().values
    return pool if len(pool) else rows.similarity.new_zeros(1)


@dataclass(frozen=True, kw_only=True, repr=False)
class HardestTriplet(TripletObjective):
    """L_q = sum over positives p of max(0, margin + S_n - S_p), n the query's most similar negative.

    The hinge of VSE++; GOAL, Eq. 4; Bleeker and de Rijke (ECIR 2022), Eq. 1 and 2, with gradient Eq. 9a.

    In a tie the negative with the lowest index is pushed. A query without a negative gives zero.
    All similarities equal: every query is active and pushes its first negative.

    >>> import torch
    >>> similarity = torch.tensor([[0.5, 0.4, 0.35], [0.0, 0.1, 0.9]])
    >>> positives = torch.tensor([[True, False, False], [False, True, True]])
    >>> HardestTriplet().pair_gradients(similarity, positives)[0]
    tensor([[-1.,  1.,  0.],
            [ 1., -1.,  0.]])
    """

    name = "triplet-sh"

    margin: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "margin")

    def pull_and_push(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        active = (self.margin + triplets.s_n > triplets.s_p).to(triplets.s_p.dtype)
        return active, active

    def triplet_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        return hinge(s_p, s_n, self.margin)
