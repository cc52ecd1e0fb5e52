"""What one direction remembers while tiles of S pass by. Anchors come as rows, positives as -inf."""

import torch
from jaxtyping import Float
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
        best, place = tile.max(dim=1)
        improved = best > self.similarity[anchors]
        self.candidate[anchors] = torch.where(improved, place + first_candidate, self.candidate[anchors])
        self.similarity[anchors] = torch.where(improved, best, self.similarity[anchors])

    def result(self) -> Hardest:
        exists = ~self.similarity.isinf()
        return Hardest(torch.where(exists, self.similarity, 0.0), self.candidate, exists)


class RunningRelative(RunningHardest):
    """The hardest negative, and the relative term over the anchor's other negatives above a threshold."""

    def __init__(self, anchors: int, like: Tensor, settings: RelativeSettings, threshold: Float[Tensor, ""]) -> None:
        super().__init__(anchors, like)
        self.settings, self.threshold = settings, threshold
        self.count = like.new_zeros(anchors)
        self.total = like.new_zeros(anchors)  # gap: sum of R - threshold; ratio: sum of exp(beta (R - hardest))

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice, first_candidate: int) -> None:
        before = self.similarity[anchors].clone()
        super().update(tile, anchors, first_candidate)
        now = self.similarity[anchors]
        # The old hardest joins the others when a new one takes its place; the new one is left out of this tile's sum.
        improved = (now > before).nonzero()[:, 0]
        place = self.candidate[anchors][improved] - first_candidate
        kept = tile[improved, place]
        tile[improved, place] = -torch.inf
        dethroned = (before > self.threshold) & (now > before)
        members = tile > self.threshold
        self.count[anchors] += members.sum(dim=1) + dethroned
        if self.settings.kind == "gap":
            gap = torch.where(members, tile - self.threshold, 0.0).sum(dim=1)
            self.total[anchors] += gap + torch.where(dethroned, before - self.threshold, 0.0)
        else:
            beta = self.settings.beta
            finite = torch.where(now.isinf(), 0.0, now)
            terms = (tile - finite[:, None]).mul_(beta).clamp_(min=-MOST).exp_().mul_(members).sum(dim=1)
            decay = (beta * (torch.where(before.isinf(), finite, before) - finite)).clamp(min=-MOST).exp()
            self.total[anchors] = (self.total[anchors] + dethroned) * decay + terms
        tile[improved, place] = kept

    def relative(self) -> Float[Tensor, " anchor"]:
        """mu- or M- of each anchor."""
        mean = self.total / self.count.clamp(min=1)
        if self.settings.kind == "gap":
            mean = self.result().similarity - self.threshold - mean
        return torch.where(self.count > 0, mean, self.settings.empty)


class RunningLogSumExp:
    """log of the sum of exp over the candidates so far."""

    def __init__(self, anchors: int, like: Tensor) -> None:
        self.total = like.new_full((anchors,), -torch.inf)

    def update(self, tile: Float[Tensor, "anchor candidate"], anchors: slice) -> None:
        self.total[anchors] = torch.logaddexp(self.total[anchors], tile.logsumexp(dim=1))
