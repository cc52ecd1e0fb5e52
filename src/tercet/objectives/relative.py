"""The relative terms of GOAL's -ms cells: how a triplet's similarities stand among other pairs of the batch.

For a triplet (anchor a, positive p, hardest negative n), m the smallest positive similarity of the batch:
- P = similarities R of every *other* positive pair of the batch with R < S_n + slack;
- N = similarities R of a's negatives other than n with R > m - slack.
Both comparisons are strict and both terms are means over the set.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.hardest import Hardest
from tercet.objectives.masks import Rows
from tercet.objectives.weights import bounded_exp


class RelativeSettings(NamedTuple):
    """`gap`: means of S - R (lin-ms); `ratio`: of exp(alpha (S_p - R)) over P, exp(-beta (S_n - R)) over N (sig-ms)."""

    kind: Literal["gap", "ratio"]
    slack: float
    alpha: float
    beta: float
    empty: float


class OtherPositives:
    """Means over the positive pairs below a limit, each triplet's own left out; sorted and summed once for a batch."""

    def __init__(self, pool: Float[Tensor, " pair"], settings: RelativeSettings) -> None:
        """`pool` is every positive pair of the batch, ascending; +inf may follow."""
        self.pool, self.settings = pool, settings
        terms = self._term(pool)
        self._sums = torch.nn.functional.pad(terms.cumsum(dim=0), (1, 0))  # [k]: of the k smallest
        # Terms fall as R grows (or are gaps): only the smallest pair's own can drown the others, so that it alone is
        # left out by not adding it, and every other one by subtracting it.
        self._without_first = torch.nn.functional.pad(terms[1:].cumsum(dim=0), (2, 0))

    def relative(self, s_p: Float[Tensor, "*triplet"], s_n: Float[Tensor, "*#triplet"]) -> Float[Tensor, "*triplet"]:
        """mu+ or M+ of each triplet."""
        limit = s_n + self.settings.slack
        below = torch.searchsorted(self.pool, limit)
        itself = s_p < limit
        others = below - itself.to(below.dtype)
        own = self._term(s_p)
        subtracted = self._sums[below] - own * itself
        total = torch.where(s_p == self.pool[0], self._without_first[below], subtracted)
        mean = total / others.clamp(min=1)
        # own is S_p - m, or 1 / exp(alpha (S_p - m))
        relative = own - mean if self.settings.kind == "gap" else mean / own
        return torch.where(others > 0, relative, self.settings.empty)

    def _term(self, s: Tensor) -> Tensor:
        """R - m, or exp(alpha (m - R)): exp(alpha (S_p - R)) without the factor that belongs to the triplet."""
        if self.settings.kind == "gap":
            return s - self.pool[0]
        return bounded_exp(self.settings.alpha * (self.pool[0] - s))


def relative_to_negatives(
    rows: Rows, hardest: Hardest, lowest_positive: Float[Tensor, ""], settings: RelativeSettings
) -> Float[Tensor, " anchor"]:
    """mu- (at least 0) or M- (at most 1) of each anchor."""
    members = rows.negatives & (rows.similarity > lowest_positive - settings.slack)
    members = members.scatter(1, hardest.candidate[:, None], False)
    gap = hardest.similarity[:, None] - rows.similarity
    term = gap if settings.kind == "gap" else bounded_exp(-settings.beta * gap)
    count = members.sum(dim=1)
    return torch.where(count > 0, (term * members).sum(dim=1) / count.clamp(min=1), settings.empty)
