"""The relative terms of GOAL's -ms cells: how a triplet's similarities stand among other pairs of the batch.

For a triplet (anchor a, positive p, hardest negative n), m the smallest positive similarity of the batch:
- P = similarities R of every *other* positive pair of the batch with R < S_n + slack;
- N = similarities R of a's negatives other than n with R > m - slack.
Both comparisons are strict and both terms are means over the set.
"""

from collections.abc import Callable
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


def relative_to_positives(
    s_p: Float[Tensor, "*triplet"],
    s_n: Float[Tensor, "*#triplet"],
    pool: Float[Tensor, " pair"],
    settings: RelativeSettings,
) -> Float[Tensor, "*triplet"]:
    """mu+ or M+ of each triplet; `pool` is every positive pair of the batch, ascending, padded with +inf or not."""
    lowest = pool[0]
    if settings.kind == "gap":
        mean, found = _mean_over_others(s_p, s_n + settings.slack, pool, lambda s: s - lowest)
        return torch.where(found, s_p - lowest - mean, settings.empty)
    # exp(alpha (S_p - R)) = exp(alpha (S_p - m)) exp(alpha (m - R)), so that one sorted sum serves every triplet.
    mean, found = _mean_over_others(
        s_p, s_n + settings.slack, pool, lambda s: bounded_exp(settings.alpha * (lowest - s))
    )
    return torch.where(found, bounded_exp(settings.alpha * (s_p - lowest)) * mean, settings.empty)


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


def _mean_over_others(
    s_p: Tensor, limit: Tensor, pool: Tensor, term: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean of term(R) over the positive pairs with R < limit, the triplet's own left out, and whether there is any."""
    terms = term(pool)
    sums = torch.nn.functional.pad(terms.cumsum(dim=0), (1, 0))  # sums[k]: the k smallest
    # Terms fall as R grows (or are gaps): only the smallest pair's own can drown the others, so that it alone is left
    # out by not adding it, and every other one by subtracting it.
    without_first = torch.nn.functional.pad(terms[1:].cumsum(dim=0), (2, 0))
    below = torch.searchsorted(pool, limit)
    itself = s_p < limit
    others = below - itself.to(below.dtype)
    total = torch.where(s_p == pool[0], without_first[below], sums[below] - term(s_p) * itself)
    return total / others.clamp(min=1), others > 0
