"""The most similar negative of every anchor, and the hinge on it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.masks import Rows


class Hardest(NamedTuple):
    """The most similar negative of every anchor; similarity 0 where an anchor has none."""

    similarity: Float[Tensor, " anchor"]
    candidate: Int[Tensor, " anchor"]
    exists: Bool[Tensor, " anchor"]


def hardest_negative(rows: Rows) -> Hardest:
    """The lowest index wins among equals."""
    # max returns the first of equal maxima, and its gradient goes there alone.
    found, candidate = torch.where(rows.negatives, rows.similarity, -torch.inf).max(dim=1)
    exists = found > -torch.inf
    return Hardest(torch.where(exists, found, 0.0), candidate, exists)


def hinge(s_p: Float[Tensor, "..."], s_n: Float[Tensor, "..."], margin: float) -> Float[Tensor, "..."]:
    """max(0, margin + S_n - S_p)."""
    return (margin + s_n - s_p).relu()


def hinge_of_hardest(rows: Rows, margin: float) -> Float[Tensor, " anchor"]:
    """Sum over an anchor's positives of the hinge on its hardest negative."""
    hardest = hardest_negative(rows)
    violation = hinge(rows.similarity, hardest.similarity[:, None], margin)
    return (violation * (rows.positives & hardest.exists[:, None])).sum(dim=1)
