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
    top_negatives,
    uniform_query_weight,
)
from tercet.objectives.streaming.tiles import Tile, TiledSimilarity

Statistics = tuple[Shaped[Tensor, " anchor"], ...]
"""(similarity, candidate) of the hardest negatives; for -ms cells also (count, total) of the sets N."""


class RunningHardest:
    """The most similar negative so far of every anchor: images first, then captions, on one axis.

    The lowest index in a tie, since tiles come in ascending order.
    """

    def __init__(self, tiles: TiledSimilarity) -> None:
        self._images, self._captions = len(tiles.images), len(tiles.captions)
        self._statistics: Statistics = ()

    @property
    def similarity(self) -> Float[Tensor, " anchor"]:
        """Of the hardest negative; -inf if an anchor has none."""
        return self._statistics[0]

    @property
    def candidate(self) -> Int[Tensor, " anchor"]:
        return self._statistics[1]

    def update(self, tile: Tile) -> None:
        found = self._of_tile(tile)
        if tile.is_whole:
            self._statistics = found
            return
        if not self._statistics:
            self._statistics = tuple(values.new_empty(self._images + self._captions) for values in found)
        rows = len(tile.similarity)
        captions = slice(self._images + tile.captions.start, self._images + tile.captions.stop)
        for part, anchors, first_candidate in (
            (slice(0, rows), tile.images, tile.captions.start),
            (slice(rows, None), captions, tile.images.start),
        ):
            added = tuple(values[part] for values in found)
            if first_candidate:  # not the first tile of these anchors
                added = self._merged(tuple(values[anchors] for values in self._statistics), added)
            for values, new in zip(self._statistics, added, strict=True):
                values[anchors] = new

    def result(self) -> Hardest:
        exists = ~torch.isneginf(self.similarity)
        return Hardest(torch.where(exists, self.similarity, 0.0), self.candidate, exists)

    def _of_tile(self, tile: Tile) -> Statistics:
        """The statistics of the rows of a tile, then of its columns."""
        (best, index), (column_best, column_index) = largest(tile.similarity, 1), largest(tile.similarity, 0)
        if not tile.is_whole:
            index, column_index = index + tile.captions.start, column_index + tile.images.start
        return torch.cat([best, column_best]), torch.cat([index, column_index])

    def _merged(self, before: Statistics, added: Statistics) -> Statistics:
        """The statistics of anchors over the candidates of both."""
        improved = (added[0] > before[0]) | added[0].isnan()
        return torch.where(improved, added[0], before[0]), torch.where(improved, added[1], before[1])


BLOCK = 32  # candidates
SHORT_ROW = 256  # candidates


def largest(
    similarity: Float[Tensor, "image caption"], dim: int
) -> tuple[Float[Tensor, " anchor"], Int[Tensor, " anchor"]]:
    """The largest similarity of every anchor and the lowest index that has it; `dim` is the axis of the candidates."""
    candidates = similarity.shape[dim]
    if candidates < SHORT_ROW:
        best, index = similarity.max(dim=dim)
        return best, index
    # max with indices is not vectorized. Maxima of blocks are, if the matrix is not read transposed: the first block
    # that has the largest is then searched alone. The last block may overlap the one before, which wins a tie.
    in_blocks = candidates - candidates % BLOCK
    of_blocks = similarity.narrow(dim, 0, in_blocks).unflatten(dim, (-1, BLOCK)).amax(dim=dim + 1)
    if in_blocks < candidates:
        of_last = similarity.narrow(dim, candidates - BLOCK, BLOCK).amax(dim=dim, keepdim=True)
        of_blocks = torch.cat([of_blocks, of_last], dim=dim)
    best, block = of_blocks.max(dim=dim)
    first = (block * BLOCK).clamp_(max=candidates - BLOCK)
    within = torch.arange(BLOCK, device=first.device).unsqueeze(1 - dim)
    return best, first + similarity.gather(dim, first.unsqueeze(dim) + within).argmax(dim=dim)


class RunningRelative(RunningHardest):
    """The hardest negative, and mu- or M- of GOAL over the anchor's other negatives above a threshold.

    `total` over the set N: of R - threshold (gap), or of exp(beta (R - hardest)) (ratio).
    """

    def __init__(self, tiles: TiledSimilarity, settings: RelativeSettings, threshold: Float[Tensor, ""]) -> None:
        super().__init__(tiles)
        self.settings, self.threshold = settings, threshold

    def _of_tile(self, tile: Tile) -> Statistics:
        best, candidate = super()._of_tile(tile)
        rows, columns = tile.similarity.shape
        in_set = self._is_in_set(tile.similarity)
        if self.settings.kind == "gap":
            terms = (tile.similarity - self.threshold).relu_()  # 0 for negatives outside the set
        else:
            # One matrix of terms serves both directions: exp(beta (R - level)) differs from what an anchor needs by a
            # factor. Negatives below the level by more than the exponent's bound are seen by `needs_exact_terms`.
            level = best.amax().clamp_(min=torch.finfo(best.dtype).min)  # -inf if all pairs of the tile are positive
            terms = (tile.similarity - level).mul_(self.settings.beta).exp_().mul_(in_set)
        # The hardest is not in the set N: the sums leave out its term, which could be much larger than all others.
        of_row, of_column = candidate.split([rows, columns])
        if not tile.is_whole:
            of_row, of_column = of_row - tile.captions.start, of_column - tile.images.start
        of_row, of_column = of_row[:, None], of_column[None, :]
        own = terms.gather(1, of_row)
        row_total = terms.scatter_(1, of_row, 0.0).sum(dim=1)
        column_total = terms.scatter_(1, of_row, own).scatter_(0, of_column, 0.0).sum(dim=0)
        total = torch.cat([row_total, column_total])
        count = torch.cat([in_set.sum(dim=1), in_set.sum(dim=0)]).sub_(self._is_in_set(best))
        if self.settings.kind == "ratio":
            total *= ((level - best) * self.settings.beta).clamp_(max=MAX_EXPONENT).exp_()
        return best, candidate, count, total

    def _is_in_set(self, similarity: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """1 above the threshold, else 0; several times faster than a comparison to bool and its conversion."""
        return torch.gt(similarity, self.threshold, out=torch.empty_like(similarity))

    def _merged(self, before: Statistics, added: Statistics) -> Statistics:
        """The less similar of both hardest negatives joins the set N."""
        hardest, candidate = super()._merged(before, added)
        other = torch.minimum(before[0], added[0])
        joins = self._is_in_set(other)
        count = before[2] + added[2] + joins
        if self.settings.kind == "gap":
            return hardest, candidate, count, before[3] + added[3] + (other - self.threshold).relu_()
        level = hardest.clamp(min=torch.finfo(hardest.dtype).min)  # -inf for an anchor without a negative
        of_before, of_added, of_other = (
            terms * (similarity - level).mul_(self.settings.beta).exp_()
            for terms, similarity in ((before[3], before[0]), (added[3], added[0]), (joins, other))
        )
        return hardest, candidate, count, of_before + of_added + of_other

    def needs_exact_terms(self) -> bool:
        """Whether a term of M- may be below exp(-60), where the dense form bounds it: never for cosines."""
        if self.settings.kind == "gap" or not self._statistics:
            return False
        return self.settings.beta * (self.similarity.amax() - self.threshold).item() > MAX_EXPONENT

    def restart(self) -> None:
        """Sum the terms again, now that the hardest negatives are known: `add_exact` bounds each of them."""
        for sums in self._statistics[2:]:
            sums.zero_()

    def add_exact(self, tile: Tile) -> None:
        """Add the terms of a tile, each bounded as in the dense form."""
        captions = slice(self._images + tile.captions.start, self._images + tile.captions.stop)
        hardest, candidate, count, total = self._statistics
        for similarity, anchors, first_candidate in (
            (tile.similarity, tile.images, tile.captions.start),
            (tile.similarity.T, captions, tile.images.start),
        ):
            in_set = similarity > self.threshold
            own = candidate[anchors] - first_candidate
            here = (own >= 0) & (own < similarity.shape[1])
            in_set[here.nonzero().flatten(), own[here]] = False
            gap = hardest[anchors, None] - similarity
            total[anchors] += (bounded_exp(-self.settings.beta * gap) * in_set).sum(dim=1)
            count[anchors] += in_set.sum(dim=1)

    def relative(self) -> Float[Tensor, " anchor"]:
        """mu- or M- of each anchor."""
        count, total = self._statistics[2:]
        mean = total / count.clamp(min=1)
        if self.settings.kind == "gap":
            mean = self.similarity - self.threshold - mean
        return torch.where(count > 0, mean, self.settings.empty)


class RunningTop:
    """The k most similar negatives so far of every anchor of one direction, in the order of their candidates in a tie.

    Similarity -inf where an anchor has fewer.
    """

    def __init__(self, anchors: int, k: int, like: Tensor) -> None:
        self.similarity = like.new_full((anchors, k), -torch.inf)
        self.candidate = torch.zeros(anchors, k, dtype=torch.long, device=like.device)

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        chosen = top_negatives(tile, self.similarity.shape[1]).nonzero()[:, 1].view(len(tile), -1)
        before, candidates = self.similarity[anchors], self.candidate[anchors]
        # Tiles come in ascending order: where similarities are equal, a lower column is a lower candidate.
        similarity = torch.cat([before, tile.gather(1, chosen)], dim=1)
        candidates = torch.cat([candidates, chosen + first_candidate], dim=1)
        order = similarity.sort(dim=1, descending=True, stable=True).indices[:, : before.shape[1]]
        self.similarity[anchors], self.candidate[anchors] = similarity.gather(1, order), candidates.gather(1, order)


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
