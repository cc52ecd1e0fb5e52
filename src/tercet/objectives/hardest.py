"""Triplets made of each positive pair and its anchor's hardest negative: what triplet-sh and GOAL share."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.masks import Rows


class Hardest(NamedTuple):
    """The most similar negative of every anchor; similarity 0 where an anchor has none."""

    similarity: Float[Tensor, "anchor 1"]
    candidate: Int[Tensor, "anchor 1"]
    exists: Bool[Tensor, "anchor 1"]


def hardest_negative(rows: Rows) -> Hardest:
    """The lowest index wins among equals."""
    # max returns the first of equal maxima; gather rather than its values keeps the place differentiable alone.
    index = rows.similarity.detach().masked_fill(~rows.negatives, -torch.inf).max(dim=1, keepdim=True).indices
    exists = rows.negatives.any(dim=1, keepdim=True)
    found = rows.similarity.gather(1, index)
    return Hardest(torch.where(exists, found, torch.zeros_like(found)), index, exists)


def hinge_of_hardest(rows: Rows, margin: float) -> Float[Tensor, " anchor"]:
    """Sum over an anchor's positives of max(0, margin + S_n - S_p)."""
    hardest = hardest_negative(rows)
    violation = (margin + hardest.similarity - rows.similarity).relu()
    return torch.where(rows.positives & hardest.exists, violation, torch.zeros_like(violation)).sum(dim=1)


def triplet_gradient(
    rows: Rows,
    hardest: Hardest,
    pull: Float[Tensor, "anchor candidate"],
    push: Float[Tensor, "anchor candidate"],
) -> Float[Tensor, "anchor candidate"]:
    """-pull at every positive; the sum of its anchor's pushes at the hardest negative.

    Both are weights of the triplet (anchor, that positive, hardest negative) and are read at positives only.
    """
    triplets = rows.positives & hardest.exists
    nothing = torch.zeros_like(pull)
    pushes = torch.where(triplets, push, nothing).sum(dim=1, keepdim=True)  # anchor 1
    return torch.where(triplets, 0 - pull, nothing).scatter_add(1, hardest.candidate, pushes)
