"""Running statistics per anchor over tiles of S, and the two directions of a streamed batch.

Tiles come with anchors as rows and positives masked as -inf. `Direction` hides whether images or captions are the
anchors, so that an objective's `stream` is written once for both.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from tercet.objectives.goal.weights import RelativeSettings
from tercet.objectives.inputs import (
    MAX_EXPONENT,
    Hardest,
    Reduction,
    bounded_exp,
    query_weights,
    uniform_query_weight,
)
from tercet.objectives.streaming.tiles import Tile, TiledSimilarity


class RunningHardest:
    """The most similar negative so far of every anchor: images first, then captions, on one axis.

    The lowest index in a tie, since tiles come in ascending order.
    """

    def __init__(self, tiles: TiledSimilarity) -> None:
        self._images, self._captions = len(tiles.images), len(tiles.captions)
        self.similarity = tiles.pair_similarity.new_full((self._images + self._captions,), -torch.inf)
        self.candidate = torch.zeros_like(self.similarity, dtype=torch.long)

    def update(self, tile: Tile) -> None:
        views = self._views(tile)
        if tile.is_whole:
            best, index = zip(*(view.largest() for view in views), strict=True)
            self.similarity, self.candidate = torch.cat(best), torch.cat(index)
            return
        for view in views:
            self._update_hardest(view, *view.largest())

    def result(self) -> Hardest:
        exists = ~torch.isneginf(self.similarity)
        return Hardest(torch.where(exists, self.similarity, 0.0), self.candidate, exists)

    def _views(self, tile: Tile) -> tuple["AnchorView", "AnchorView"]:
        captions = slice(self._images + tile.captions.start, self._images + tile.captions.stop)
        return (
            AnchorView(tile.similarity, True, tile.images, tile.captions.start),
            AnchorView(tile.similarity, False, captions, tile.images.start),
        )

    def _update_hardest(
        self, view: "AnchorView", best: Float[Tensor, " anchor"], index: Int[Tensor, " anchor"]
    ) -> None:
        anchors, first_candidate = view.anchors, view.first_candidate
        if first_candidate == 0:  # the first tile of these anchors
            self.similarity[anchors], self.candidate[anchors] = best, index
            return
        improved = (best > self.similarity[anchors]) | best.isnan()
        self.candidate[anchors] = torch.where(improved, index + first_candidate, self.candidate[anchors])
        self.similarity[anchors] = torch.where(improved, best, self.similarity[anchors])


COLUMN_BLOCK = 32  # rows
SMALL_TILE = 256  # rows


class AnchorView(NamedTuple):
    """A tile of S as one direction sees it: `anchors` are its rows or its columns."""

    similarity: Float[Tensor, "image caption"]
    by_row: bool
    anchors: slice
    first_candidate: int

    def of(self, matrix: Tensor) -> Tensor:
        """A matrix of the shape of the tile, with anchors as rows."""
        return matrix if self.by_row else matrix.T

    def largest(self) -> tuple[Float[Tensor, " anchor"], Int[Tensor, " anchor"]]:
        """The largest similarity of every anchor and the lowest index that has it."""
        tile = self.similarity
        if self.by_row or len(tile) <= SMALL_TILE:
            return tile.max(dim=1 if self.by_row else 0)
        # max(dim=0) with indices is not vectorized. Maxima of blocks of rows are: the first block that has the
        # largest is then searched alone. Rows past the last are repetitions of it, which lose ties to it.
        best, block = torch.stack([rows.amax(dim=0) for rows in tile.split(COLUMN_BLOCK)]).max(dim=0)
        row = block * COLUMN_BLOCK + torch.arange(COLUMN_BLOCK, device=tile.device)[:, None]
        within = tile.gather(0, row.clamp_(max=len(tile) - 1)).T.contiguous().argmax(dim=1)
        return best, block * COLUMN_BLOCK + within


class RunningRelative(RunningHardest):
    """The hardest negative, and mu- or M- of GOAL over the anchor's other negatives above a threshold."""

    def __init__(self, tiles: TiledSimilarity, settings: RelativeSettings, threshold: Float[Tensor, ""]) -> None:
        super().__init__(tiles)
        self.settings, self.threshold = settings, threshold
        self.count = torch.zeros_like(self.similarity)
        self.total = torch.zeros_like(self.similarity)  # gap: sum of R - threshold; ratio: of exp(beta (R - hardest))

    def update(self, tile: Tile) -> None:
        views = self._views(tile)
        largest = [view.largest() for view in views]
        in_set = (tile.similarity > self.threshold).to(tile.similarity.dtype)
        lowest = torch.finfo(in_set.dtype).min
        # One matrix of terms serves both directions: exp(beta (R - level)) differs from what an anchor needs by a
        # factor. A level above the hardest negative by more than the exponent's bound is seen by `needs_exact_terms`.
        level = largest[0][0].nan_to_num(nan=lowest, neginf=lowest).amax()
        if self.settings.kind == "gap":
            terms = (tile.similarity - self.threshold).clamp_(min=0)  # 0 for negatives outside the set
        else:
            terms = (tile.similarity - level).mul_(self.settings.beta).exp_().mul_(in_set)
        for view, (best, index) in zip(views, largest, strict=True):
            self._add_terms(view, best, index, view.of(terms), view.of(in_set), level)

    def _add_terms(
        self,
        view: AnchorView,
        best: Float[Tensor, " anchor"],
        index: Int[Tensor, " anchor"],
        terms: Float[Tensor, "anchor candidate"],
        in_set: Float[Tensor, "anchor candidate"],
        level: Float[Tensor, ""],
    ) -> None:
        before = self.similarity[view.anchors].clone()
        self._update_hardest(view, best, index)
        now = self.similarity[view.anchors]
        # The hardest so far is not in the set N: if it is in this tile, its term is left out of the sum.
        is_hardest = best > before
        own = terms.gather(1, index[:, None])
        terms.scatter_(1, index[:, None], own.masked_fill(is_hardest[:, None], 0.0))
        total = terms.sum(dim=1)
        terms.scatter_(1, index[:, None], own)
        count = in_set.sum(dim=1) - (is_hardest & (best > self.threshold)).to(total.dtype)
        if self.settings.kind == "ratio":
            total *= ((level - now) * self.settings.beta).clamp_(max=MAX_EXPONENT).exp_()
        if view.first_candidate == 0:
            self.count[view.anchors], self.total[view.anchors] = count, total
        else:
            self._merge(count, total, before, now, view.anchors)

    def _merge(self, count: Tensor, total: Tensor, before: Tensor, now: Tensor, anchors: slice) -> None:
        """Add the sums of this tile; a previous hardest negative that was replaced joins the set N."""
        replaced = (now > before) & (before > self.threshold)
        self.count[anchors] += count + replaced
        if self.settings.kind == "gap":
            self.total[anchors] += total + (before - self.threshold).masked_fill_(~replaced, 0.0)
        else:
            level = now.clamp(min=torch.finfo(now.dtype).min)  # -inf for an anchor without a negative
            decay = (before - level).mul_(self.settings.beta).exp_()
            self.total[anchors] = (self.total[anchors] + replaced) * decay + total

    def needs_exact_terms(self) -> bool:
        """Whether a term of M- may be below exp(-60), where the dense form bounds it: never for cosines."""
        if self.settings.kind == "gap" or not len(self.similarity):
            return False
        return bool(self.settings.beta * (self.similarity.amax() - self.threshold) > MAX_EXPONENT)

    def restart(self) -> None:
        """Sum the terms again, now that the hardest negatives are known: `add_exact` bounds each of them."""
        self.count.zero_()
        self.total.zero_()

    def add_exact(self, tile: Tile) -> None:
        """Add the terms of a tile, each bounded as in the dense form."""
        for view in self._views(tile):
            similarity, anchors = view.of(tile.similarity), view.anchors
            in_set = similarity > self.threshold
            own = self.candidate[anchors] - view.first_candidate
            here = (own >= 0) & (own < similarity.shape[1])
            in_set[here.nonzero().flatten(), own[here]] = False
            gap = self.similarity[anchors, None] - similarity
            self.total[anchors] += (bounded_exp(-self.settings.beta * gap) * in_set).sum(dim=1)
            self.count[anchors] += in_set.sum(dim=1)

    def relative(self) -> Float[Tensor, " anchor"]:
        """mu- or M- of each anchor."""
        mean = self.total / self.count.clamp(min=1)
        if self.settings.kind == "gap":
            mean = self.result().similarity - self.threshold - mean
        return torch.where(self.count > 0, mean, self.settings.empty)


class RunningLogSumExp:
    """logsumexp over the candidates so far."""

    def __init__(self, anchors: int, like: Tensor) -> None:
        self.total = like.new_full((anchors,), -torch.inf)

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice) -> None:
        largest = tile.amax(dim=1)
        shift = torch.where(largest.isinf(), 0.0, largest)  # a row of masked positives only
        added = (tile - shift[:, None]).exp_().sum(dim=1).log_().add_(shift)
        self.total[anchors] = torch.logaddexp(self.total[anchors], added)


class Direction(NamedTuple):
    """One direction: the anchor of every positive pair, and the number of pairs and the weight of every anchor."""

    image_anchors: bool
    pair_anchor: Int[Tensor, " pair"]
    pair_count: Int[Tensor, " anchor"]
    weights: Float[Tensor, " anchor"]
    paired_by_rows: bool

    def view(self, tile: Tile) -> tuple[Float[Tensor, "anchor candidate"], slice, int]:
        """(the tile with anchors as rows, the slice of anchors, the index of the first candidate)."""
        if self.image_anchors:
            return tile.similarity, tile.images, tile.captions.start
        return tile.similarity.T, tile.captions, tile.images.start

    # Conversions between per-anchor and per-pair tensors; both are the same if row i of both is a pair.

    def per_pair(self, per_anchor: Float[Tensor, " anchor"]) -> Float[Tensor, " pair"]:
        """The value of each pair's anchor."""
        return per_anchor if self.paired_by_rows else per_anchor[self.pair_anchor]

    def sum(self, terms: Float[Tensor, " pair"]) -> Float[Tensor, " anchor"]:
        """Sum over the pairs of each anchor."""
        if self.paired_by_rows:
            return terms
        return terms.new_zeros(len(self.weights)).index_add_(0, self.pair_anchor, terms)

    def logsumexp(self, terms: Float[Tensor, " pair"]) -> Float[Tensor, " anchor"]:
        """logsumexp over the pairs of each anchor; -inf if it has none."""
        if self.paired_by_rows:
            return terms
        largest = terms.new_full((len(self.weights),), -torch.inf)
        largest = largest.scatter_reduce_(0, self.pair_anchor, terms, "amax")
        return largest + self.sum((terms - largest[self.pair_anchor]).exp()).log()


def both_directions(tiles: TiledSimilarity, reduction: Reduction) -> tuple[Direction, Direction]:
    """(i2t, t2i)."""
    like = tiles.pair_similarity

    def build(image_anchors: bool, pair_anchor: Tensor, anchors: int) -> Direction:
        if tiles.paired_by_rows:
            weight = uniform_query_weight(anchors, reduction)
            return Direction(
                image_anchors, pair_anchor, torch.ones_like(pair_anchor), torch.full_like(like, weight), True
            )
        count = pair_anchor.bincount(minlength=anchors)
        return Direction(image_anchors, pair_anchor, count, query_weights(count > 0, reduction, like.dtype), False)

    return build(True, tiles.pair_image, len(tiles.images)), build(False, tiles.pair_caption, len(tiles.captions))


class DirectedPairs(NamedTuple):
    """Both directions on one axis: every positive pair once with its image as anchor, then once with its caption."""

    anchor: Int[Tensor, " directed_pair"] | None
    """Anchor of each pair, images before captions; None if row i of both sides is a pair: then it is the identity."""
    weights: Float[Tensor, " anchor"] | float

    @classmethod
    def of(cls, tiles: TiledSimilarity, reduction: Reduction) -> "DirectedPairs":
        if tiles.paired_by_rows:
            return cls(None, uniform_query_weight(len(tiles.images), reduction))
        images, captions = both_directions(tiles, reduction)
        anchor = torch.cat([tiles.pair_image, tiles.pair_caption + len(tiles.images)])
        return cls(anchor, torch.cat([images.weights, captions.weights]))

    def per_pair(self, per_anchor: Shaped[Tensor, " anchor"]) -> Shaped[Tensor, " directed_pair"]:
        """The value of each pair's anchor."""
        return per_anchor if self.anchor is None else per_anchor[self.anchor]

    def sum(self, terms: Float[Tensor, " directed_pair"], anchors: int) -> Float[Tensor, " anchor"]:
        """Sum over the pairs of each anchor."""
        return terms if self.anchor is None else terms.new_zeros(anchors).index_add_(0, self.anchor, terms)
