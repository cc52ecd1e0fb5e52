"""Objectives on triplets with the hardest negative: the base class `TripletObjective`, and `triplet-sh`.

A triplet is a positive pair and its anchor's hardest negative. `triplet-sh` (the hinge of VSE++, and con/con of GOAL),
the cells of GOAL and a user's own weights differ in `pull_and_push` only. It is elementwise and broadcasts, so the
same code serves the matrix of all pairs (dense) and the list of positive pairs (streamed).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.base import MONITOR_MARGIN, RowObjective
from tercet.objectives.goal.weights import OtherPositives, RelativeSettings, relative_to_negatives
from tercet.objectives.inputs import Hardest, Rows, hardest_negative, hinge, require_numbers
from tercet.objectives.stacks import StackedPairs
from tercet.objectives.streaming.accumulators import DirectedPairs, RunningHardest, RunningRelative
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
    def takes_grades(self) -> bool:
        """A triplet of a positive of weight w counts w times; the relative sets of the -ms cells have no weights."""
        return self.relative is None

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
        if rows.grades is not None:
            pull, push = rows.grades * pull, rows.grades * push
        is_triplet = rows.positives & hardest.exists[:, None]
        pushes = torch.where(is_triplet, push, 0.0).sum(dim=1, keepdim=True)  # anchor 1
        return torch.where(is_triplet, 0 - pull, 0.0).scatter_add_(1, hardest.candidate[:, None], pushes)

    def _scalar(self, rows: Rows, hardest: Hardest) -> Float[Tensor, " anchor"]:
        value = self.triplet_scalar(rows.similarity, hardest.similarity[:, None])
        if rows.grades is not None:
            value = rows.grades * value
        return torch.where(rows.positives & hardest.exists[:, None], value, 0.0).sum(dim=1)

    def triplet_scalar(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        """The term of one triplet in the scalar: its loss if it exists, else the hinge of the monitor."""
        return self.triplet_value(s_p, s_n) if self.has_value else hinge(s_p, s_n, MONITOR_MARGIN)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass finds the hardest negatives; the rest needs one entry of G per pair and one per anchor.

        Both directions are on one axis, images as anchors first: half as many operations, which matters for the batch
        sizes of heads.
        """
        tracker = self._tracker(tiles)
        for tile in tiles.walk():
            tracker.update(tile)
        if isinstance(tracker, RunningRelative) and tracker.needs_exact_terms():
            tracker.restart()
            for tile in tiles.walk():
                tracker.add_exact(tile)
        pool, pairs = tiles.pair_similarity, DirectedPairs.of(tiles, self.reduction)
        if tiles.paired_by_rows and len(pool) > 1:
            s_n, is_triplet = tracker.similarity, None  # every anchor has a negative
        else:  # a user's weights may be NaN for an anchor without one
            hardest = tracker.result()
            s_n, is_triplet = pairs.per_pair(hardest.similarity), pairs.per_pair(hardest.exists)
        s_p = torch.cat([pool, pool])
        weights = pairs.weights if isinstance(pairs.weights, float) else pairs.per_pair(pairs.weights)
        scalar = _masked(weights * self.triplet_scalar(s_p, s_n), is_triplet).sum()
        if into is None or not len(s_p):
            return scalar
        relative_p = relative_n = None
        if self.relative is not None and isinstance(tracker, RunningRelative):
            relative_p = OtherPositives(pool.sort().values, self.relative).relative(s_p, s_n)
            relative_n = pairs.per_pair(tracker.relative())
        pull, push = self.pull_and_push(Triplets(s_p, s_n, relative_p, relative_n))
        weights = weights + 0 * scalar  # comparisons with NaN are false: hinges of a diverged model look satisfied
        pulls = _masked(weights * pull, is_triplet).view(2, -1).sum(dim=0)
        pushes = pairs.sum(_masked(weights * push, is_triplet), len(tracker.candidate))
        of_images, of_captions = tracker.candidate.split([len(tiles.images), len(tiles.captions)])
        images, captions = (
            tiles.pair_image if tiles.paired_by_rows else torch.arange(len(side), device=s_p.device)
            for side in (tiles.images, tiles.captions)
        )
        into.add_entries(
            torch.cat([tiles.pair_image, images, of_captions]),
            torch.cat([tiles.pair_caption, of_images, captions]),
            torch.cat([pulls.neg_(), pushes]),
        )
        return scalar

    def stacked_gradient(
        self, similarity: Float[Tensor, "run image caption"], pairs: StackedPairs
    ) -> tuple[Float[Tensor, " run"], Float[Tensor, "run image caption"]]:
        """As `stream`: one entry of G per pair and one per anchor; both directions on one axis, images first."""
        sides, run = (pairs.images, pairs.captions), pairs.run.repeat(2)
        hardest, entry = _stacked_hardest(similarity, pairs)
        anchor = torch.cat([pairs.images.of_pair, pairs.captions.of_pair + len(pairs.images.pair_count)])
        s_p = pairs.of_matrices(similarity).repeat(2)
        s_n, is_triplet = hardest.similarity[anchor], hardest.exists[anchor]
        weights = torch.cat([side.weights(self.reduction, s_p.dtype) for side in sides])[anchor]
        terms = _masked(weights * self.triplet_scalar(s_p, s_n), is_triplet)
        scalars = s_p.new_zeros(pairs.runs).index_add_(0, run, terms)
        relative_p = relative_n = None
        if self.relative is not None:
            relative_p, relative_n = _stacked_relative(similarity, pairs, hardest, (s_p, s_n, anchor), self.relative)
        pull, push = self.pull_and_push(Triplets(s_p, s_n, relative_p, relative_n))
        weights = weights + 0 * scalars[run]  # NaN for all of a diverged run, as in `stream`
        gradient = torch.zeros_like(similarity)
        gradient.view(-1).index_add_(
            0,
            torch.cat([pairs.entry, pairs.entry, entry[anchor]]),
            torch.cat([_masked(-weights * pull, is_triplet), _masked(weights * push, is_triplet)]),
        )
        return scalars, gradient

    def _tracker(self, tiles: TiledSimilarity) -> RunningHardest:
        if self.relative is None:
            return RunningHardest(tiles)
        return RunningRelative(tiles, self.relative, tiles.lowest_positive() - self.relative.slack)


def _masked(terms: Float[Tensor, " pair"], mask: Bool[Tensor, " pair"] | None) -> Float[Tensor, " pair"]:
    return terms if mask is None else torch.where(mask, terms, 0.0)


def _stacked_hardest(
    similarity: Float[Tensor, "run image caption"], pairs: StackedPairs
) -> tuple[Hardest, Int[Tensor, " anchor"]]:
    """Of the images of all runs, then of the captions of all runs; and the positions in the flattened S."""
    runs, images, captions = similarity.shape
    negatives = similarity.reshape(-1).index_fill(0, pairs.entry, -torch.inf).view_as(similarity)
    of_images, of_captions = negatives.max(dim=2), negatives.mT.contiguous().max(dim=2)
    first = torch.arange(runs, device=similarity.device)[:, None] * (images * captions)
    row, column = (torch.arange(count, device=similarity.device) for count in (images, captions))
    entries = first + row * captions + of_images.indices, first + column + of_captions.indices * captions
    best, candidate, entry = (
        torch.cat([of_image.flatten(), of_caption.flatten()])
        for of_image, of_caption in zip((*of_images, entries[0]), (*of_captions, entries[1]), strict=True)
    )
    exists = ~torch.isneginf(best)
    return Hardest(torch.where(exists, best, 0.0), candidate, exists), entry


def _stacked_relative(
    similarity: Float[Tensor, "run image caption"],
    pairs: StackedPairs,
    hardest: Hardest,
    triplets: tuple[Float[Tensor, " triplet"], Float[Tensor, " triplet"], Int[Tensor, " triplet"]],
    settings: RelativeSettings,
) -> tuple[Float[Tensor, " triplet"], Float[Tensor, " triplet"]]:
    """(mu+ or M+, mu- or M-) of every triplet; `triplets`: S_p, S_n and anchor."""
    s_p, s_n, anchor = triplets
    counts = pairs.run.bincount(minlength=pairs.runs).tolist()
    of_runs = (side.view(2, -1).split(counts, dim=1) for side in (s_p, s_n))
    relative_p, lowest = [], []
    for run_p, run_n in zip(*of_runs, strict=True):
        others = OtherPositives(run_p[0].sort().values if run_p.numel() else run_p.new_zeros(1), settings)
        relative_p.append(others.relative(run_p, run_n))
        lowest.append(others.pool[0])
    negatives, relative_n = ~pairs.mask(), []
    sides = (pairs.images, similarity, negatives), (pairs.captions, similarity.mT, negatives.mT)
    of_sides = zip(*(part.split([len(side.pair_count) for side, _, _ in sides]) for part in hardest), strict=True)
    for (side, view, mask), of_side in zip(sides, of_sides, strict=True):
        # Of one run it would be a view of columns, which are summed in another order.
        mask = mask.flatten(0, 1).contiguous()
        rows = Rows(view.flatten(0, 1).contiguous(), ~mask, mask)
        lowest_of_anchor = torch.stack(lowest).repeat_interleave(side.per_run)[:, None]
        relative_n.append(relative_to_negatives(rows, Hardest(*of_side), lowest_of_anchor, settings))
    return torch.cat(relative_p, dim=1).flatten(), torch.cat(relative_n)[anchor]


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

    Graded: L_q = sum over p of w_p max(0, margin + S_n - S_p); n is among the candidates of weight 0.

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
