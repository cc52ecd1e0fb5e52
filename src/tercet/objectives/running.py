"""What one direction remembers while tiles of S pass by. Anchors come as rows, positives as -inf."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.hardest import Hardest
from tercet.objectives.relative import RelativeSettings
from tercet.objectives.weights import MOST


class RunningHardest:
    """The most similar negative so far; among equals the lowest index, as tiles come in ascending order."""

    def __init__(self, anchors: int, like: Tensor) -> None:
        self.similarity = like.new_full((anchors,), -torch.inf)
        self.candidate = torch.zeros(anchors, dtype=torch.long, device=like.device)

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        self._keep(*tile.max(dim=1), anchors, first_candidate)

    def result(self) -> Hardest:
        exists = self.similarity > -torch.inf
        return Hardest(torch.where(exists, self.similarity, 0.0), self.candidate, exists)

    def _keep(
        self, best: Float[Tensor, " anchor"], place: Int[Tensor, " anchor"], anchors: slice, first_candidate: int
    ) -> None:
        if first_candidate == 0:  # nothing was there before
            self.similarity[anchors], self.candidate[anchors] = best, place
            return
        improved = best > self.similarity[anchors]
        self.candidate[anchors] = torch.where(improved, place + first_candidate, self.candidate[anchors])
        self.similarity[anchors] = torch.where(improved, best, self.similarity[anchors])


class RunningRelative(RunningHardest):
    """The hardest negative, and the relative term over the anchor's other negatives above a threshold."""

    def __init__(self, anchors: int, like: Tensor, settings: RelativeSettings, threshold: Float[Tensor, ""]) -> None:
        super().__init__(anchors, like)
        self.settings, self.threshold = settings, threshold
        self.count = like.new_zeros(anchors)
        self.total = like.new_zeros(anchors)  # gap: sum of R - threshold; ratio: sum of exp(beta (R - hardest))

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        before = self.similarity[anchors].clone()
        best, place = tile.max(dim=1)
        self._keep(best, place, anchors, first_candidate)
        now = self.similarity[anchors]
        # The hardest so far is not among the others: while they are summed it is hidden, if it is in this tile.
        hidden = torch.where(best > before, -torch.inf, best)
        tile.scatter_(1, place[:, None], hidden[:, None])
        members = tile > self.threshold
        count = members.sum(dim=1)
        if self.settings.kind == "gap":
            total = (tile - self.threshold).clamp_(min=0).sum(dim=1)  # who is no member is below
        else:
            level = now.clamp(min=torch.finfo(now.dtype).min)  # an anchor without a negative has none
            exponent = (tile - level[:, None]).mul_(self.settings.beta)
            total = exponent.exp_().mul_(members).sum(dim=1)
        tile.scatter_(1, place[:, None], best[:, None])
        if first_candidate == 0:
            self.count[anchors], self.total[anchors] = count.to(total.dtype), total
        else:
            self._merge(count, total, before, now, anchors)

    def _merge(self, count: Tensor, total: Tensor, before: Tensor, now: Tensor, anchors: slice) -> None:
        """Add this tile's sums to the earlier ones; a hardest that was dethroned joins the others."""
        dethroned = (now > before) & (before > self.threshold)
        self.count[anchors] += count + dethroned
        if self.settings.kind == "gap":
            self.total[anchors] += total + (before - self.threshold).masked_fill_(~dethroned, 0.0)
        else:
            level = now.clamp(min=torch.finfo(now.dtype).min)
            decay = (before - level).mul_(self.settings.beta).exp_()
            self.total[anchors] = (self.total[anchors] + dethroned) * decay + total

    def relative(self) -> Float[Tensor, " anchor"]:
        """mu- or M- of each anchor."""
        mean = self.total / self.count.clamp(min=1)
        if self.settings.kind == "gap":
            mean = self.result().similarity - self.threshold - mean
        else:
            # A term's bound of exp(-60) cannot be kept while the level moves. It tells where all terms are below it,
            # and there the mean is the bound itself.
            mean = mean.clamp(min=math.exp(-MOST))
        return torch.where(self.count > 0, mean, self.settings.empty)


class RunningLogSumExp:
    """log of the sum of exp over the candidates so far."""

    def __init__(self, anchors: int, like: Tensor) -> None:
        self.total = like.new_full((anchors,), -torch.inf)

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice) -> None:
        largest = tile.amax(dim=1)
        shift = torch.where(largest.isinf(), 0.0, largest)  # a row of hidden positives alone
        added = (tile - shift[:, None]).exp_().sum(dim=1).log_().add_(shift)
        self.total[anchors] = torch.logaddexp(self.total[anchors], added)
