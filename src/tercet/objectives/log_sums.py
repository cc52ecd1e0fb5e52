"""`LogSumObjective`: losses of two log-sums per query, A over its positives and B over its negatives.

A = log sum over p of w_p exp(z_p) and B = log sum over n of exp(z_n), where the exponent z of a pair depends on its
similarity only and w_p is 1 or the weight of a graded positive. `circle` and `multi-similarity` differ in the exponents
and in how A and B are combined.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import MONITOR_MARGIN, RowObjective, row_monitor
from tercet.objectives.inputs import Rows, hinge
from tercet.objectives.streaming.accumulators import Direction, RunningLogSumExp, both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


class LogSums(NamedTuple):
    """The exponents of both sides, very low where a pair is not in the sum; A and B."""

    z_p: Float[Tensor, "anchor candidate"]
    z_n: Float[Tensor, "anchor candidate"]
    positive: Float[Tensor, " anchor"]
    negative: Float[Tensor, " anchor"]


@dataclass(frozen=True, kw_only=True, repr=False)
class LogSumObjective(RowObjective):
    """dL/dS_p = (dL/dA) softmax_p(z) z'(S_p), and dL/dS_n with B alike."""

    @property
    def takes_grades(self) -> bool:
        return True

    @property
    def mined_within(self) -> float | None:
        """Only positives less similar than the hardest negative plus this, and negatives more similar than the least
        similar positive minus this, are in the sums; None: all are."""
        return None

    @abstractmethod
    def positive_exponent(self, s_p: Tensor) -> tuple[Tensor, Tensor]:
        """(z, dz/dS) of positives."""

    @abstractmethod
    def negative_exponent(self, s_n: Tensor) -> tuple[Tensor, Tensor]:
        """(z, dz/dS) of negatives."""

    @abstractmethod
    def combined(self, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(L, dL/dA, dL/dB) of A and B."""

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        sums = self._log_sums(rows)
        return self.combined(sums.positive, sums.negative)[0]

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self.row_scalar_and_gradient(rows)[1]

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        sums = self._log_sums(rows)
        value, of_positive, of_negative = self.combined(sums.positive, sums.negative)
        pulls = (sums.z_p - sums.positive[:, None]).exp() * self.positive_exponent(rows.similarity)[1]
        pushes = (sums.z_n - sums.negative[:, None]).exp() * self.negative_exponent(rows.similarity)[1]
        gradient = of_positive[:, None] * pulls + of_negative[:, None] * pushes
        return value if self.has_value else row_monitor(rows), gradient

    def _log_sums(self, rows: Rows) -> LogSums:
        s, positives, negatives = rows.similarity, rows.positives, rows.negatives
        if self.mined_within is not None:
            within, fixed = self.mined_within, s.detach()
            hardest = torch.where(rows.negatives, fixed, -torch.inf).amax(dim=1, keepdim=True)
            least_positive = torch.where(rows.positives, fixed, torch.inf).amin(dim=1, keepdim=True)
            positives = rows.positives & (fixed < hardest + within)
            negatives = rows.negatives & (fixed > least_positive - within)
        z_p, z_n = self.positive_exponent(s)[0], self.negative_exponent(s)[0]
        if rows.grades is not None:
            z_p = z_p + rows.grades.clamp(min=torch.finfo(s.dtype).tiny).log()
        z_p, z_n = z_p.masked_fill(~positives, absent(s)), z_n.masked_fill(~negatives, absent(s))
        return LogSums(z_p, z_n, z_p.logsumexp(dim=1), z_n.logsumexp(dim=1))

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """Two passes: the log-sums, then the gradient; with mining another one before, for what decides it."""
        directions = both_directions(tiles, self.reduction)
        hardest = [torch.full_like(direction.weights, -torch.inf) for direction in directions]
        if self.mined_within is not None or not self.has_value:
            for tile in tiles.walk():
                for direction, largest in zip(directions, hardest, strict=True):
                    view, anchors, _ = direction.view(tile)
                    largest[anchors] = torch.maximum(largest[anchors], view.amax(dim=1))
        sides = [_Side(each, largest, _lowest(each, tiles)) for each, largest in zip(directions, hardest, strict=True)]
        sums = [RunningLogSumExp(len(side.least_positive), tiles.pair_similarity) for side in sides]
        for tile in tiles.walk():
            for side, negative in zip(sides, sums, strict=True):
                view, anchors, _ = side.direction.view(tile)
                negative.update(self._of_negatives(view, side.least_positive[anchors])[0], anchors)
        s_p = tiles.pair_similarity
        scalar, on_pairs, pushes = s_p.new_zeros(()), torch.zeros_like(s_p), []
        for side, negative in zip(sides, sums, strict=True):
            of_side, pull, push = self._of_pairs(side, s_p, negative.total)
            scalar, on_pairs = scalar + of_side, on_pairs + pull
            pushes.append((push, negative.total))
        if into is not None:
            for tile in tiles.walk():
                gradient = torch.zeros_like(tile.similarity)
                for side, (weights, total) in zip(sides, pushes, strict=True):
                    view, anchors, _ = side.direction.view(tile)
                    z, slope = self._of_negatives(view, side.least_positive[anchors])
                    push = (z - total[anchors, None]).exp_().mul_(slope).mul_(weights[anchors, None])
                    gradient += push if side.direction.image_anchors else push.T
                gradient[tile.pair_positions] = on_pairs[tile.pairs]
                into.add_tile(tile.images, tile.captions, gradient)
        return scalar

    def _of_pairs(
        self, side: "_Side", s_p: Float[Tensor, " pair"], negative: Float[Tensor, " anchor"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " pair"], Float[Tensor, " anchor"]]:
        """(the scalar of a direction, the gradient of its positive pairs, weight x dL/dB of its anchors)."""
        direction, s_n = side.direction, side.direction.per_pair(side.hardest)
        z, slopes = self.positive_exponent(s_p)
        if self.mined_within is not None:
            z = z.masked_fill(s_p >= s_n + self.mined_within, absent(s_p))
        positive = direction.logsumexp(z)
        positive = torch.where(positive.isneginf(), absent(s_p), positive)  # not a query
        value, of_positive, of_negative = self.combined(positive, negative)
        if self.has_value:
            scalar = torch.dot(torch.where(direction.weights > 0, value, 0.0), direction.weights)
        else:
            violation = torch.where(s_n.isneginf(), 0.0, hinge(s_p, s_n, MONITOR_MARGIN))
            scalar = torch.dot(violation, direction.per_pair(direction.weights))
        pull = direction.per_pair(direction.weights * of_positive) * (z - direction.per_pair(positive)).exp()
        return scalar, pull * slopes, direction.weights * of_negative

    def _of_negatives(
        self, view: Float[Tensor, "anchor candidate"], lowest_positive: Float[Tensor, " anchor"]
    ) -> tuple[Float[Tensor, "anchor candidate"], Float[Tensor, "anchor candidate"]]:
        """(z, dz/dS) of a tile in which positives are -inf."""
        z, slope = self.negative_exponent(view)
        left_out = view.isneginf()
        if self.mined_within is not None:
            left_out |= view <= lowest_positive[:, None] - self.mined_within  # NaN stays
        return z.masked_fill(left_out, absent(view)), slope


class _Side(NamedTuple):
    """A streamed direction, with the most similar negative and the least similar positive of its anchors."""

    direction: Direction
    hardest: Float[Tensor, " anchor"]
    least_positive: Float[Tensor, " anchor"]


def absent(like: Tensor) -> float:
    """The exponent of a pair that is not in a sum: finite, so that the sum over none has a gradient of 0, not NaN."""
    return torch.finfo(like.dtype).min / 4


def softplus(exponent: Tensor) -> Tensor:
    """log(1 + exp(exponent)), exact also where `F.softplus` is linear."""
    return -F.logsigmoid(-exponent)


def _lowest(direction: Direction, tiles: TiledSimilarity) -> Float[Tensor, " anchor"]:
    """The similarity of the least similar positive of every anchor, after a walk; inf if it has none."""
    lowest = torch.full_like(direction.weights, torch.inf)
    return lowest.scatter_reduce_(0, direction.pair_anchor, tiles.pair_similarity, "amin")
