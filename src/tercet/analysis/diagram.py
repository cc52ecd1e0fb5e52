"""The triplet diagram: an objective's gradient over the plane of positive (x) and negative (y) similarity.

After GOAL (its Figures 2 and 3) and Xuan et al., "Hard negative examples are hard, but useful": a triplet is a point,
and an objective says how strongly it pulls the positive and pushes the negative of a triplet that lies there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.objectives.base import RowObjective
from tercet.objectives.hardest import hardest_negative
from tercet.objectives.masks import Rows, as_rows
from tercet.objectives.own import OwnGradient, OwnLoss
from tercet.objectives.triplets import TripletObjective, Triplets

MINED = 0.3  # of offline members, whose similarities depend on a table
RELATIVE = 0.1  # of the -ms cells, whose relative terms depend on a batch: as in the caption of GOAL's Figure 3
POINTS = 150  # of an axis; no multiple of a usual margin, on which rounding would decide
TRIPLETS = 128  # of a batch that are kept for a diagram
DIGITS = 4


@dataclass(frozen=True)
class Plane:
    """Rows are negative similarities, columns positive ones, both ascending."""

    s_p: Float[Tensor, " x"]
    s_n: Float[Tensor, " y"]
    pull: Float[Tensor, "y x"]
    """|dL/dS_p| of a query with this one positive and this one negative, before reduction."""
    push: Float[Tensor, "y x"]
    """|dL/dS_n|."""
    triplet_weight: Float[Tensor, "y x"] | None = None
    """T, where the objective declares it."""
    positive_weight: Float[Tensor, " x"] | None = None
    negative_weight: Float[Tensor, " y"] | None = None

    def content(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {name: None if part is None else part.tolist() for name, part in vars(self).items()}


def plane(
    objective: RowObjective,
    *,
    low: float = 0.0,
    high: float = 1.0,
    points: int = POINTS,
    relative: float = RELATIVE,
    mined: float = MINED,
) -> Plane:
    """`relative` stands for the relative terms of the -ms cells, which need a batch; `mined` is the similarity of all
    offline members, for objectives that take them.
    """
    if points < 2 or not low < high:
        raise ValueError(f"a diagram needs at least 2 points from low to high, got {points} from {low} to {high}")
    axis = torch.linspace(low, high, points, dtype=torch.float64)
    s_n, s_p = torch.meshgrid(axis, axis, indexing="ij")
    if not isinstance(objective, TripletObjective):
        pull, push = gradient_at(objective, s_p.flatten(), s_n.flatten(), mined=mined)
        return Plane(axis, axis, pull.abs().view_as(s_p), push.abs().view_as(s_p))
    triplets = _triplets(objective, s_p, s_n, relative)
    pull, push = (each.abs().expand_as(s_p) for each in objective.weigh(triplets))
    declared = objective.weights(triplets)
    if declared is None:
        return Plane(axis, axis, pull, push)
    weight, positive, negative = (torch.as_tensor(each, dtype=axis.dtype).expand_as(s_p) for each in declared)
    return Plane(axis, axis, pull, push, weight, positive[0], negative[:, 0])


def gradient_at(
    objective: RowObjective,
    s_p: Float[Tensor, " point"],
    s_n: Float[Tensor, " point"],
    relative: float = RELATIVE,
    mined: float = MINED,
) -> tuple[Float[Tensor, " point"], Float[Tensor, " point"]]:
    """(dL/dS_p, dL/dS_n) of queries that have one positive and one negative, before reduction."""
    if isinstance(objective, TripletObjective):
        pull, push = objective.weigh(_triplets(objective, s_p, s_n, relative))
        return (0 - pull).expand_as(s_p), push.expand_as(s_p)
    similarity = torch.stack([s_p, s_n], dim=1)
    if isinstance(objective, OwnGradient | OwnLoss):  # who knows what it makes of other rows: each point by itself
        rows = [objective.row_gradient(_query(row[None])) for row in similarity]
        gradient = torch.cat(rows) * (0.5 if isinstance(objective, OwnLoss) else 1.0)  # half a direction
    else:
        members = similarity.new_full((len(similarity), 4), mined) if objective.takes_mined else None
        gradient = objective.row_gradient(_query(similarity, members))
    return gradient[:, 0], gradient[:, 1]


def _query(similarity: Float[Tensor, "query 2"], mined: Float[Tensor, "query 4"] | None = None) -> Rows:
    positives = torch.zeros_like(similarity, dtype=torch.bool)
    positives[:, 0] = True
    return as_rows(similarity, positives, None, mined)


def _triplets(objective: TripletObjective, s_p: Tensor, s_n: Tensor, relative: float) -> Triplets:
    if objective.relative is None:
        return Triplets(s_p, s_n)
    fixed = torch.full_like(s_p, relative)
    return Triplets(s_p, s_n, fixed, fixed)


@torch.no_grad()
def batch_triplets(
    similarity: Similarity, positives: PairMask, ignored: PairMask | None = None
) -> dict[str, list[float | None]]:
    """Of a batch's first positive pairs: their similarity, and that of the hardest negative of either anchor.

    None where an anchor has no negative.
    """
    rows = as_rows(similarity, positives, ignored)
    image, caption = (index[:TRIPLETS] for index in rows.positives.nonzero(as_tuple=True))
    found: dict[str, list[float | None]] = {"s_p": _rounded(rows.similarity[image, caption])}
    for side, anchored, anchor in (("i2t", rows, image), ("t2i", rows.transposed(), caption)):
        hardest = hardest_negative(anchored)
        numbers = _rounded(hardest.similarity[anchor])
        found[side] = [x if there else None for x, there in zip(numbers, hardest.exists[anchor].tolist(), strict=True)]
    return found


def _rounded(numbers: Float[Tensor, " triplet"]) -> list[float | None]:
    return [round(number, DIGITS) for number in numbers.double().tolist()]
