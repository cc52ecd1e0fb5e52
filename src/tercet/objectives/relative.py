"""The relative terms of GOAL's -ms cells: how a triplet's similarities stand among other pairs of the batch.

For a triplet (anchor a, positive p, hardest negative n), m the smallest positive similarity of the batch:
- P = similarities R of every *other* positive pair of the batch with R < S_n + slack;
- N = similarities R of a's negatives other than n with R > m - slack.
Both comparisons are strict and both terms are means over the set. An empty set gives the `empty` term.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.objectives.hardest import Hardest
from tercet.objectives.masks import Rows
from tercet.objectives.weights import bounded_exp


def mean_gap_to_positives(
    rows: Rows, hardest: Hardest, slack: float, empty: float
) -> Float[Tensor, "anchor candidate"]:
    """mu+ = mean over P of (S_p - R), read at positive entries."""
    lowest = lowest_positive(rows)
    mean, found = _mean_over_other_positives(rows, hardest.similarity + slack, lambda s: s - lowest)
    return torch.where(found, rows.similarity - lowest - mean, empty)


def mean_ratio_to_positives(
    rows: Rows, hardest: Hardest, slack: float, alpha: float, empty: float
) -> Float[Tensor, "anchor candidate"]:
    """M+ = mean over P of exp(alpha (S_p - R)), read at positive entries."""
    # Factored as exp(alpha (S_p - m)) times a mean of exp(alpha (m - R)) <= 1, so that one sorted sum serves all.
    lowest = lowest_positive(rows)
    mean, found = _mean_over_other_positives(
        rows, hardest.similarity + slack, lambda s: bounded_exp(alpha * (lowest - s))
    )
    return torch.where(found, bounded_exp(alpha * (rows.similarity - lowest)) * mean, empty)


def mean_gap_to_negatives(rows: Rows, hardest: Hardest, slack: float, empty: float) -> Float[Tensor, "anchor 1"]:
    """mu- = mean over N of (S_n - R), at least 0."""
    return _mean_over_other_negatives(rows, hardest, slack, empty, lambda gap: gap)


def mean_ratio_to_negatives(
    rows: Rows, hardest: Hardest, slack: float, beta: float, empty: float
) -> Float[Tensor, "anchor 1"]:
    """M- = mean over N of exp(-beta (S_n - R)), at most 1."""
    return _mean_over_other_negatives(rows, hardest, slack, empty, lambda gap: bounded_exp(-beta * gap))


def lowest_positive(rows: Rows) -> Float[Tensor, ""]:
    """The smallest similarity of any positive pair; 0 where there is none (then nothing is read)."""
    lowest = rows.similarity.masked_fill(~rows.positives, torch.inf).min()
    return torch.where(lowest.isinf(), 0.0, lowest)


def _mean_over_other_positives(
    rows: Rows, limit: Float[Tensor, "anchor 1"], term: Callable[[Tensor], Tensor]
) -> tuple[Float[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
    """Mean of term(R) over the other positive pairs with R < limit, and whether there is any."""
    # A compiled graph cannot depend on how many positives there are: there the rest goes to the far end as +inf.
    if torch.compiler.is_compiling():
        pool = rows.similarity.masked_fill(~rows.positives, torch.inf).flatten()
    else:
        pool = rows.similarity[rows.positives]
    pool = pool.sort().values
    sums = torch.nn.functional.pad(term(pool).cumsum(dim=0), (1, 0))  # sums[k]: the k smallest
    below = torch.searchsorted(pool, limit)  # anchor 1
    itself = rows.similarity < limit  # anchor candidate: a pair is not among its own others
    others = below - itself.to(below.dtype)
    total = sums[below] - term(rows.similarity) * itself
    return total / others.clamp(min=1), others > 0


def _mean_over_other_negatives(
    rows: Rows, hardest: Hardest, slack: float, empty: float, term: Callable[[Tensor], Tensor]
) -> Float[Tensor, "anchor 1"]:
    members = rows.negatives & (rows.similarity > lowest_positive(rows) - slack)
    members = members.scatter(1, hardest.candidate, False)
    terms = torch.where(members, term(hardest.similarity - rows.similarity), 0.0)
    count = members.sum(dim=1, keepdim=True)
    return torch.where(count > 0, terms.sum(dim=1, keepdim=True) / count.clamp(min=1), empty)
