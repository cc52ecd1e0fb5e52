"""Shapes of a pair gradient on a batch: which queries still say anything, and how a query's push is shared out."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.objectives.base import RowObjective

NEXT_TO_NOTHING = 0.01  # of what a query says while nothing has been learnt


class GradientShape(NamedTuple):
    """Queries of both directions, one after the other."""

    silent: Float[Tensor, " query"]
    """1 where a row is next to nothing beside the row it has while all similarities are equal; NaN where it has one."""
    evenness: Float[Tensor, " pushing"]
    """Of queries that push: entropy of the negatives' shares over its largest value. 1 all alike, 0 one alone."""
    hardest_share: Float[Tensor, " pushing"]
    """Of the largest weight, beyond an equal share of all: 1 one alone, 0 all alike, however many negatives."""


@torch.no_grad()
def gradient_shape(
    objective: RowObjective,
    similarity: Similarity,
    positives: PairMask,
    ignored: PairMask | None = None,
    mined: Float[Tensor, "pair 4"] | None = None,
) -> GradientShape:
    similarity, zeros = similarity.double(), torch.zeros_like(similarity, dtype=torch.float64)
    members = {} if mined is None else {"mined": mined.double()}
    now = objective.pair_gradients(similarity, positives, ignored, **members)
    unlearnt = objective.pair_gradients(
        zeros, positives, ignored, **{n: torch.zeros_like(m) for n, m in members.items()}
    )
    negatives = ~positives if ignored is None else ~positives & ~ignored
    sides = (
        _direction(now[0].abs(), unlearnt[0].abs(), negatives),
        _direction(now[1].abs().T, unlearnt[1].abs().T, negatives.T),
    )
    return GradientShape(*(torch.cat(each) for each in zip(*sides, strict=True)))


def _direction(
    row: Float[Tensor, "anchor candidate"],
    unlearnt: Float[Tensor, "anchor candidate"],
    negatives: Bool[Tensor, "anchor candidate"],
) -> GradientShape:
    size, at_first = row.sum(dim=1), unlearnt.sum(dim=1)
    # Some objectives say nothing while all is equal: then the loudest query is the measure.
    measure = torch.where(at_first > 0, at_first, size.max() if len(size) else 0.0)
    push = row * negatives
    pushing = (push.sum(dim=1) > 0) & (negatives.sum(dim=1) > 1)
    shares = push[pushing] / push[pushing].sum(dim=1, keepdim=True)
    count = negatives[pushing].sum(dim=1).to(shares.dtype)
    largest = shares.max(dim=1).values if len(shares) else count
    return GradientShape(
        (size <= NEXT_TO_NOTHING * measure).to(row.dtype).masked_fill(~size.isfinite(), torch.nan),
        torch.special.entr(shares).sum(dim=1) / count.log(),
        (largest - 1 / count) / (1 - 1 / count),
    )
