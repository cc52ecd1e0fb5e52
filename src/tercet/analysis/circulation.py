"""Is there a loss behind a gradient? Only if its line integral round every closed curve is zero.

The gradient is integrated round random rectangles in two entries of S. Symmetry of the Jacobian, point by point, would
not do: it holds on both sides of a margin and says nothing about the jump between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.analysis.diagram import gradient_at
from tercet.objectives.base import RowObjective
from tercet.objectives.goal import Goal
from tercet.objectives.masks import as_rows


def _lobatto(count: int) -> tuple[Float[Tensor, " node"], Float[Tensor, " node"]]:
    """Nodes and weights on -1..1. Both ends are nodes: a jump just inside of one does not go unseen."""
    last = np.polynomial.legendre.Legendre.basis(count - 1)
    nodes = np.array([-1.0, *last.deriv().roots(), 1.0])
    return torch.from_numpy(nodes), torch.from_numpy(2 / (count * (count - 1) * last(nodes) ** 2))


Field = Callable[[Float[Tensor, " point"], Float[Tensor, " point"]], tuple[Tensor, Tensor]]
"""(x, y) -> the gradient's two components there."""

TOLERANCE = 1e-9  # a panel's error, where a gradient is smooth
HALVINGS = 40  # a jump is closed in on until it lies between neighbouring numbers
PANELS = 4
NODES, WEIGHTS = _lobatto(8)
IN_BATCHES = 6  # rectangles, where every point is a batch of its own
PAIRS = 3  # of the small batch in which relative sets are not empty


@dataclass(frozen=True)
class Circulation:
    """Largest over the rectangles; `error` is what quadrature may have left."""

    largest: float
    error: float

    @property
    def vanishes(self) -> bool:
        return self.largest <= max(10 * self.error, 1e-7)


def round_triplets(objective: RowObjective, *, rectangles: int = 60, seed: int = 0) -> Circulation:
    """In (S_p, S_n) of a query with one positive and one negative; half of them lie across S_p - S_n = 0.2.

    Where weights are relative to other pairs: in small batches whose other similarities are fixed.
    """
    drawn = np.random.default_rng(seed)
    corners = _rectangles(drawn, rectangles)
    across = drawn.uniform(0.15, 0.85, rectangles // 2)
    corners[: rectangles // 2] = np.stack([across, across, across + 0.35, across + 0.35], axis=1) + drawn.uniform(
        -0.15, 0.15, (rectangles // 2, 4)
    )
    corners[: rectangles // 2, [1, 3]] -= 0.2
    if getattr(objective, "relative", None) is not None:
        return _in_batches(objective, _ordered(corners)[:: max(1, rectangles // IN_BATCHES)], (0, 1), drawn)
    return _circulation(lambda s_p, s_n: gradient_at(objective, s_p, s_n), _ordered(corners))


def round_positives(objective: RowObjective, *, rectangles: int = IN_BATCHES, seed: int = 0) -> Circulation:
    """In (S_p of one pair, S_p of another) of small batches whose other similarities are fixed."""
    drawn = np.random.default_rng(seed)
    return _in_batches(objective, _rectangles(drawn, rectangles), (1, 1), drawn)


def _in_batches(
    objective: RowObjective,
    corners: Float[np.ndarray, "rectangle 4"],
    other: tuple[int, int],
    drawn: np.random.Generator,
) -> Circulation:
    """In the first pair's similarity and `other`, image queries alone; a batch a rectangle."""
    found = []
    for each in corners:
        # Negatives among the positives: relative sets are not empty, and members come and go along the way.
        background = torch.from_numpy(drawn.uniform(0.1, 0.9, (PAIRS, PAIRS)))
        found.append(_circulation(_batch_field(objective, background, other), each[None]))
    return Circulation(max(each.largest for each in found), max(each.error for each in found))


def _batch_field(objective: RowObjective, background: Float[Tensor, "pair pair"], other: tuple[int, int]) -> Field:
    is_first, is_second = (torch.zeros_like(background, dtype=torch.bool) for _ in range(2))
    is_first[0, 0] = is_second[other] = True

    def at_point(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        similarity = torch.where(is_second, second, torch.where(is_first, first, background))
        gradient = objective.row_gradient(as_rows(similarity, None, None))
        return gradient[0, 0], gradient[other]

    def one_by_one(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        along_x, along_y = zip(*map(at_point, x, y), strict=True)
        return torch.stack(along_x), torch.stack(along_y)

    # All points at once, to the same digits; functions of one's own need not be fit for that.
    return torch.vmap(at_point) if isinstance(objective, Goal) else one_by_one


def _rectangles(drawn: np.random.Generator, count: int) -> Float[np.ndarray, "rectangle 4"]:
    """Left, bottom, right, top, within what similarities of real models are."""
    return _ordered(drawn.uniform(-0.1, 0.95, (count, 4)))


def _ordered(corners: Float[np.ndarray, "rectangle 4"]) -> Float[np.ndarray, "rectangle 4"]:
    return np.concatenate([np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1)


def _circulation(field: Field, corners: Float[np.ndarray, "rectangle 4"]) -> Circulation:
    """Along the bottom and up the right side, back along the top and down the left one."""
    left, bottom, right, top = torch.from_numpy(corners).T

    def along(x: Tensor, edge: Tensor, t: Tensor) -> Tensor:
        return field(t, x[edge])[0]

    def up(y: Tensor, edge: Tensor, t: Tensor) -> Tensor:
        return field(y[edge], t)[1]

    edges = (
        (1, _integrals(partial(along, bottom), left, right)),
        (1, _integrals(partial(up, right), bottom, top)),
        (-1, _integrals(partial(along, top), left, right)),
        (-1, _integrals(partial(up, left), bottom, top)),
    )
    total, error = sum(sign * part for sign, (part, _) in edges), sum(left_over for _, (_, left_over) in edges)
    return Circulation(float(torch.as_tensor(total).abs().max()), float(torch.as_tensor(error).max()))


def _integrals(
    f: Callable[[Tensor, Tensor], Tensor], low: Float[Tensor, " edge"], high: Float[Tensor, " edge"]
) -> tuple[Float[Tensor, " edge"], Float[Tensor, " edge"]]:
    """Of f(edge, t) over each edge, with the error left. Panels are halved where halves and whole disagree."""
    edge = torch.arange(len(low)).repeat_interleave(PANELS)
    share = torch.arange(PANELS, dtype=low.dtype).repeat(len(low)) / PANELS
    width = (high - low)[edge] / PANELS
    start = low[edge] + share * (high - low)[edge]
    total, error = torch.zeros_like(low), torch.zeros_like(low)
    whole = _panels(f, edge, start, width)
    for halving in range(HALVINGS + 1):
        halves = [_panels(f, edge, start, width / 2), _panels(f, edge, start + width / 2, width / 2)]
        apart = (whole - halves[0] - halves[1]).abs()
        done = (apart <= TOLERANCE) | (halving == HALVINGS)
        total.index_add_(0, edge[done], (halves[0] + halves[1])[done])
        error.index_add_(0, edge[done], apart[done])
        if done.all():
            break
        whole = torch.cat([half[~done] for half in halves])
        edge, width = edge[~done].repeat(2), (width[~done] / 2).repeat(2)
        start = torch.cat([start[~done], start[~done] + width[: len(width) // 2]])
    return total, error


def _panels(f: Callable[[Tensor, Tensor], Tensor], edge: Tensor, start: Tensor, width: Tensor) -> Tensor:
    t = start[:, None] + width[:, None] * (NODES + 1) / 2
    values = f(edge.repeat_interleave(len(NODES)), t.flatten()).view_as(t)
    return (values * WEIGHTS).sum(dim=1) * width / 2
