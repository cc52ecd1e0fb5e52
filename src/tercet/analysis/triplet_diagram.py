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
from tercet.objectives.custom import CustomGradient, CustomLoss
from tercet.objectives.hardest_triplet import TripletObjective, Triplets
from tercet.objectives.inputs import Rows, as_rows, hardest_negative
from tercet.types import PairMask, Similarity

MINED_SIMILARITY = 0.3  # assumed for mined negatives, which depend on a mined table
RELATIVE_TERM = 0.1  # assumed for mu and M of the -ms cells, which depend on a batch; as in GOAL's Figure 3
POINTS = 150  # per axis; chosen so that no point is exactly on a usual margin, where rounding would decide
MAX_TRIPLETS = 128  # per batch
DIGITS = 4


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
    if isinstance(objective, TripletObjective):
        pull, push = objective.pull_and_push(_triplets(objective, s_p, s_n, relative))
        return (0 - pull).expand_as(s_p), push.expand_as(s_p)
    similarity = torch.stack([s_p, s_n], dim=1)
    if isinstance(objective, CustomGradient | CustomLoss):
        # One call per point: a user's function may depend on the other rows.
        by_point = [objective.row_gradient(_queries(row[None])) for row in similarity]
        share = 0.5 if isinstance(objective, CustomLoss) else 1.0  # each direction is half of a loss
        gradient = torch.cat(by_point) * share
    else:
        rows = _queries(similarity)
        if isinstance(objective, AOQ):
            gradient = objective.anchor_gradients(rows, similarity.new_full((len(similarity), 4), mined))
        else:
            gradient = objective.row_gradient(rows)
    return gradient[:, 0], gradient[:, 1]


def _queries(similarity: Float[Tensor, "query 2"]) -> Rows:
    positives = torch.zeros_like(similarity, dtype=torch.bool)
    positives[:, 0] = True
    return as_rows(similarity, positives, None)


def _triplets(objective: TripletObjective, s_p: Tensor, s_n: Tensor, relative: float) -> Triplets:
    if objective.relative is None:
        return Triplets(s_p, s_n)
    fixed = torch.full_like(s_p, relative)
    return Triplets(s_p, s_n, fixed, fixed)


@torch.no_grad()
def batch_triplets(
    similarity: Similarity, positives: PairMask, ignored: PairMask | None = None
) -> dict[str, list[float | None]]:
    """The triplets of a batch's first positive pairs, rounded, for JSON.

    `s_p` is the similarity of the pair, `i2t` and `t2i` that of the hardest negative of the image and of the caption,
    or None if there is no negative.
    """
    rows = as_rows(similarity, positives, ignored)
    image, caption = (index[:MAX_TRIPLETS] for index in rows.positives.nonzero(as_tuple=True))
    triplets: dict[str, list[float | None]] = {"s_p": _rounded(rows.similarity[image, caption])}
    for direction, anchored, anchor in (("i2t", rows, image), ("t2i", rows.transposed(), caption)):
        hardest = hardest_negative(anchored)
        exists = hardest.exists[anchor].tolist()
        s_n = _rounded(hardest.similarity[anchor])
        triplets[direction] = [s if has_one else None for s, has_one in zip(s_n, exists, strict=True)]
    return triplets


def _rounded(similarity: Float[Tensor, " triplet"]) -> list[float | None]:
    return [round(s, DIGITS) for s in similarity.double().tolist()]
