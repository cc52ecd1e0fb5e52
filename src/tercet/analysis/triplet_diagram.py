"""Triplet diagrams: an objective's gradient as a function of positive similarity (x) and negative similarity (y).

After GOAL (Figures 2 and 3) and Xuan et al., "Hard negative examples are hard, but useful" (ECCV 2020). A triplet is a
point (S_p, S_n); at each point the diagram shows the pull on the positive and the push on the negative.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.aoq import AOQ
from tercet.objectives.base import RowObjective
from tercet.objectives.composed import Composed
from tercet.objectives.custom import CustomGradient, CustomLoss
from tercet.objectives.hardest_triplet import TripletObjective, Triplets
from tercet.objectives.inputs import Rows, as_rows

MINED_SIMILARITY = 0.3  # assumed for mined negatives, which depend on a mined table
RELATIVE_TERM = 0.1  # assumed for mu and M of the -ms cells, which depend on a batch; as in GOAL's Figure 3
POINTS = 150  # per axis; chosen so that no point is exactly on a usual margin, where rounding would decide


@dataclass(frozen=True)
class Plane:
    """The values of a diagram: rows are negative similarities, columns positive similarities, both ascending."""

    s_p: Float[Tensor, " x"]
    s_n: Float[Tensor, " y"]
    pull: Float[Tensor, "y x"]
    """|dL/dS_p| of a query with one positive and one negative, before reduction."""
    push: Float[Tensor, "y x"]
    """|dL/dS_n|."""
    triplet_weight: Float[Tensor, "y x"] | None = None
    """T, if the objective is a product of weights."""
    positive_weight: Float[Tensor, " x"] | None = None
    negative_weight: Float[Tensor, " y"] | None = None

    def content(self) -> dict[str, Any]:
        """The fields as lists, for JSON."""
        return {name: None if tensor is None else tensor.tolist() for name, tensor in vars(self).items()}


def plane(
    objective: RowObjective,
    *,
    low: float = 0.0,
    high: float = 1.0,
    points: int = POINTS,
    relative: float = RELATIVE_TERM,
    mined: float = MINED_SIMILARITY,
) -> Plane:
    """Compute the diagram of an objective on points x points similarities from `low` to `high`.

    `relative` is the value of the relative terms of the -ms cells, which need a batch; `mined` is the similarity of all
    mined negatives, for objectives that take them.
    """
    if points < 2 or not low < high:
        raise ValueError(f"a diagram needs at least 2 points from low to high, got {points} from {low} to {high}")
    axis = torch.linspace(low, high, points, dtype=torch.float64)
    s_n, s_p = torch.meshgrid(axis, axis, indexing="ij")
    if not isinstance(objective, TripletObjective):
        pull, push = gradient_at(objective, s_p.flatten(), s_n.flatten(), mined=mined)
        return Plane(axis, axis, pull.abs().view_as(s_p), push.abs().view_as(s_p))
    triplets = _triplets(objective, s_p, s_n, relative)
    pull, push = (strength.abs().expand_as(s_p) for strength in objective.pull_and_push(triplets))
    factors = objective.weights(triplets)
    if factors is None:
        return Plane(axis, axis, pull, push)
    weight, positive, negative = (torch.as_tensor(factor, dtype=axis.dtype).expand_as(s_p) for factor in factors)
    return Plane(axis, axis, pull, push, weight, positive[0], negative[:, 0])


def gradient_at(
    objective: RowObjective,
    s_p: Float[Tensor, " point"],
    s_n: Float[Tensor, " point"],
    relative: float = RELATIVE_TERM,
    mined: float = MINED_SIMILARITY,
) -> tuple[Float[Tensor, " point"], Float[Tensor, " point"]]:
    """(dL/dS_p, dL/dS_n) of queries with one positive and one negative, before reduction."""
    if isinstance(objective, Composed):
        return _gradient_of_sum(objective, s_p, s_n, relative, mined)
    if isinstance(objective, TripletObjective):
        pull, push = objective.pull_and_push(_triplets(objective, s_p, s_n, relative))
        return (0 - pull).expand_as(s_p), push.expand_as(s_p)
    similarity = torch.stack([s_p, s_n], dim=1)
    if isinstance(objective, CustomGradient | CustomLoss):
        # One call per point: a user's function may depend on the other rows.
        # A loss has both directions; the captions of a single image have no negatives.
        gradient = torch.cat([objective.row_gradient(_queries(row[None])) for row in similarity])
    else:
        rows = _queries(similarity)
        if isinstance(objective, AOQ):
            gradient = objective.anchor_gradients(rows, similarity.new_full((len(similarity), 4), mined))
        else:
            gradient = objective.row_gradient(rows)
    return gradient[:, 0], gradient[:, 1]


def _gradient_of_sum(
    objective: Composed, s_p: Float[Tensor, " point"], s_n: Float[Tensor, " point"], relative: float, mined: float
) -> tuple[Float[Tensor, " point"], Float[Tensor, " point"]]:
    if len({term.reduction for _, term in objective.terms}) > 1:
        raise ValueError(
            f"{objective.name}: the terms have different reductions, whose ratio depends on the batch size; for a "
            "diagram give all the same, as in triplet:reduction=mean"
        )
    parts = [
        [weight * part for part in gradient_at(term, s_p, s_n, relative, mined)] for weight, term in objective.terms
    ]
    pulls, pushes = zip(*parts, strict=True)
    return torch.stack(pulls).sum(dim=0), torch.stack(pushes).sum(dim=0)


def _queries(similarity: Float[Tensor, "query 2"]) -> Rows:
    positives = torch.zeros_like(similarity, dtype=torch.bool)
    positives[:, 0] = True
    return as_rows(similarity, positives, None)


def _triplets(objective: TripletObjective, s_p: Tensor, s_n: Tensor, relative: float) -> Triplets:
    if objective.relative is None:
        return Triplets(s_p, s_n)
    fixed = torch.full_like(s_p, relative)
    return Triplets(s_p, s_n, fixed, fixed)
