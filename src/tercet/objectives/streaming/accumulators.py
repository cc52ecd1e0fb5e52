"""Running statistics per anchor over tiles of S, and the two directions of a streamed batch.

Tiles come with anchors as rows and positives masked as -inf. `Direction` hides whether images or captions are the
anchors, so that an objective's `stream` is written once for both.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
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
    """The most similar negative so far; the lowest index in a tie, since tiles come in ascending order."""

    def __init__(self, anchors: int, like: Tensor) -> None:
        self.similarity = like.new_full((anchors,), -torch.inf)
        self.candidate = torch.zeros(anchors, dtype=torch.long, device=like.device)

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        self._update_hardest(*tile.max(dim=1), anchors, first_candidate)

    def result(self) -> Hardest:
        exists = ~torch.isneginf(self.similarity)
        return Hardest(torch.where(exists, self.similarity, 0.0), self.candidate, exists)

    def _update_hardest(
        self, best: Float[Tensor, " anchor"], column: Int[Tensor, " anchor"], anchors: slice, first_candidate: int
    ) -> None:
        if first_candidate == 0:  # the first tile of these anchors
            self.similarity[anchors], self.candidate[anchors] = best, column
            return
        improved = (best > self.similarity[anchors]) | best.isnan()
        self.candidate[anchors] = torch.where(improved, column + first_candidate, self.candidate[anchors])
        self.similarity[anchors] = torch.where(improved, best, self.similarity[anchors])


class RunningRelative(RunningHardest):
    """The hardest negative, and mu- or M- of GOAL over the anchor's other negatives above a threshold."""

    def __init__(self, anchors: int, like: Tensor, settings: RelativeSettings, threshold: Float[Tensor, ""]) -> None:
        super().__init__(anchors, like)
        self.settings, self.threshold = settings, threshold
        self.count = like.new_zeros(anchors)
        self.total = like.new_zeros(anchors)  # gap: sum of R - threshold; ratio: sum of exp(beta (R - hardest))

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        before = self.similarity[anchors].clone()
        best, column = tile.max(dim=1)
        self._update_hardest(best, column, anchors, first_candidate)
        now = self.similarity[anchors]
        # The hardest so far is not in the set N: if it is in this tile, it is masked during the sum.
        hidden = torch.where(best > before, -torch.inf, best)
        tile.scatter_(1, column[:, None], hidden[:, None])
        in_set = tile > self.threshold
        count = in_set.sum(dim=1)
        if self.settings.kind == "gap":
            total = (tile - self.threshold).clamp_(min=0).sum(dim=1)  # 0 for negatives outside the set
        else:
            level = now.clamp(min=torch.finfo(now.dtype).min)  # -inf for an anchor without a negative
            exponent = (tile - level[:, None]).mul_(self.settings.beta)
            total = exponent.exp_().mul_(in_set).sum(dim=1)
        tile.scatter_(1, column[:, None], best[:, None])
        if first_candidate == 0:
            self.count[anchors], self.total[anchors] = count.to(total.dtype), total
        else:
            self._merge(count, total, before, now, anchors)

    def _merge(self, count: Tensor, total: Tensor, before: Tensor, now: Tensor, anchors: slice) -> None:
        """Add the sums of this tile; a previous hardest negative that was replaced joins the set N."""
        replaced = (now > before) & (before > self.threshold)
        self.count[anchors] += count + replaced
        if self.settings.kind == "gap":
            self.total[anchors] += total + (before - self.threshold).masked_fill_(~replaced, 0.0)
        else:
            level = now.clamp(min=torch.finfo(now.dtype).min)
            decay = (before - level).mul_(self.settings.beta).exp_()
            self.total[anchors] = (self.total[anchors] + replaced) * decay + total

    def needs_exact_terms(self) -> bool:
        """Whether a term of M- may be below exp(-60), where the dense form bounds it: never for cosines."""
        span = self.settings.beta * (self.result().similarity - self.threshold)
        return self.settings.kind == "ratio" and bool((span > MAX_EXPONENT).any())

    def restart(self) -> None:
        """Sum the terms again, now that the hardest negatives are known: `add_exact` bounds each of them."""
        self.count.zero_()
        self.total.zero_()

    def add_exact(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        """Add the terms of a tile, each bounded as in the dense form."""
        in_set = tile > self.threshold
        own = self.candidate[anchors] - first_candidate
        here = (own >= 0) & (own < tile.shape[1])
        in_set[here.nonzero().flatten(), own[here]] = False
        gap = self.similarity[anchors, None] - tile
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
