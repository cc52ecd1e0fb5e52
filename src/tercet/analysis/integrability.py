"""Integrability: whether a gradient field is the gradient of a loss, tested by circulation.

A field G is the gradient of a loss only if its line integral along every closed curve (its circulation) is zero. The
gradient is integrated around random rectangles in the plane of two entries of S, the others fixed. A symmetric Jacobian
at every point would not be enough: it can hold on both sides of a margin and miss the jump between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.analysis.triplet_diagram import gradient_at
from tercet.objectives.base import RowObjective
from tercet.objectives.goal.cells import Goal
from tercet.objectives.inputs import as_rows


def _lobatto(count: int) -> tuple[Float[Tensor, " node"], Float[Tensor, " node"]]:
    """Gauss-Lobatto nodes and weights on [-1, 1]. Both ends are nodes, so that a jump near one is not missed."""
    last = np.polynomial.legendre.Legendre.basis(count - 1)
    nodes = np.array([-1.0, *last.deriv().roots(), 1.0])
    return torch.from_numpy(nodes), torch.from_numpy(2 / (count * (count - 1) * last(nodes) ** 2))


Field = Callable[[Float[Tensor, " point"], Float[Tensor, " point"]], tuple[Tensor, Tensor]]
"""(x, y) -> the two components of the gradient at these points."""

TOLERANCE = 1e-9  # quadrature error per panel where the gradient is smooth
MAX_HALVINGS = 40  # panels at a jump are halved down to floating-point resolution
PANELS = 4  # initial panels per edge
NODES, WEIGHTS = _lobatto(8)
BATCH_RECTANGLES = 6  # rectangles if every point needs its own batch
PAIRS = 3  # size of these batches; large enough that relative sets are not empty


@dataclass(frozen=True)
class Circulation:
    """Largest absolute circulation over the rectangles, and the largest estimated quadrature error."""

    largest: float
    error: float

    @property
    def vanishes(self) -> bool:
        """Whether the circulation is zero up to quadrature error, so that a loss can exist."""
        return self.largest <= max(10 * self.error, 1e-7)


def triplet_circulation(objective: RowObjective, *, rectangles: int = 60, seed: int = 0) -> Circulation:
    """Circulation in the plane (S_p, S_n) of a query with one positive and one negative.

    Half of the rectangles cross the margin S_p - S_n = 0.2. For weights that are relative to other pairs (-ms cells),
    the plane is that of two entries of small batches whose other similarities are fixed.
    """
    generator = np.random.default_rng(seed)
    corners = _rectangles(generator, rectangles)
    offset = generator.uniform(0.15, 0.85, rectangles // 2)
    corners[: rectangles // 2] = np.stack([offset, offset, offset + 0.35, offset + 0.35], axis=1) + generator.uniform(
        -0.15, 0.15, (rectangles // 2, 4)
    )
    corners[: rectangles // 2, [1, 3]] -= 0.2
    if getattr(objective, "relative", None) is not None:
        return _in_batches(objective, _ordered(corners)[:: max(1, rectangles // BATCH_RECTANGLES)], (0, 1), generator)
    return _circulation(lambda s_p, s_n: gradient_at(objective, s_p, s_n), _ordered(corners))


def positive_circulation(objective: RowObjective, *, rectangles: int = BATCH_RECTANGLES, seed: int = 0) -> Circulation:
    """Circulation in the plane (S_p of one pair, S_p of another) of small batches, other similarities fixed."""
    generator = np.random.default_rng(seed)
    return _in_batches(objective, _rectangles(generator, rectangles), (1, 1), generator)


def _in_batches(
    objective: RowObjective,
    corners: Float[np.ndarray, "rectangle 4"],
    other: tuple[int, int],
    generator: np.random.Generator,
) -> Circulation:
    """Circulation in the entries S[0, 0] and S[other] for i2t; a new random batch per rectangle."""
    circulations = []
    for rectangle in corners:
        # Negatives and positives of equal range: relative sets are not empty, and change along the edges.
        background = torch.from_numpy(generator.uniform(0.1, 0.9, (PAIRS, PAIRS)))
        circulations.append(_circulation(_batch_field(objective, background, other), rectangle[None]))
    return Circulation(max(c.largest for c in circulations), max(c.error for c in circulations))


def _batch_field(objective: RowObjective, background: Float[Tensor, "pair pair"], other: tuple[int, int]) -> Field:
    """The field (dL/dS[0, 0], dL/dS[other]) as a function of these two entries; the others are `background`."""
    is_first, is_second = (torch.zeros_like(background, dtype=torch.bool) for _ in range(2))
    is_first[0, 0] = is_second[other] = True

    def at_point(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        similarity = torch.where(is_second, second, torch.where(is_first, first, background))
        gradient = objective.row_gradient(as_rows(similarity, None, None))
        return gradient[0, 0], gradient[other]

    def one_by_one(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        along_x, along_y = zip(*map(at_point, x, y), strict=True)
        return torch.stack(along_x), torch.stack(along_y)

    # GOAL is vectorized over points, with bit-identical results; a user's function may not support vmap.
    return torch.vmap(at_point) if isinstance(objective, Goal) else one_by_one


def _rectangles(generator: np.random.Generator, count: int) -> Float[np.ndarray, "rectangle 4"]:
    """Random (left, bottom, right, top), in the range of similarities of real models."""
    return _ordered(generator.uniform(-0.1, 0.95, (count, 4)))


def _ordered(corners: Float[np.ndarray, "rectangle 4"]) -> Float[np.ndarray, "rectangle 4"]:
    """Sort the corners so that left < right and bottom < top."""
    return np.concatenate([np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1)


def _circulation(field: Field, corners: Float[np.ndarray, "rectangle 4"]) -> Circulation:
    """Integrate around each rectangle: bottom edge, right edge, then back along the top and left edges."""
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
    total, error = sum(sign * integral for sign, (integral, _) in edges), sum(e for _, (_, e) in edges)
    return Circulation(float(torch.as_tensor(total).abs().max()), float(torch.as_tensor(error).max()))


def _integrals(
    f: Callable[[Tensor, Tensor], Tensor], low: Float[Tensor, " edge"], high: Float[Tensor, " edge"]
) -> tuple[Float[Tensor, " edge"], Float[Tensor, " edge"]]:
    """(integrals of f(edge, t) over each edge, estimated errors), by adaptive quadrature.

    A panel is halved while its integral differs from the sum of its halves by more than TOLERANCE.
    """
    edge = torch.arange(len(low)).repeat_interleave(PANELS)
    share = torch.arange(PANELS, dtype=low.dtype).repeat(len(low)) / PANELS
    width = (high - low)[edge] / PANELS
    start = low[edge] + share * (high - low)[edge]
    total, error = torch.zeros_like(low), torch.zeros_like(low)
    integral = _panels(f, edge, start, width)
    for halving in range(MAX_HALVINGS + 1):
        halves = [_panels(f, edge, start, width / 2), _panels(f, edge, start + width / 2, width / 2)]
        difference = (integral - halves[0] - halves[1]).abs()
        done = (difference <= TOLERANCE) | (halving == MAX_HALVINGS)
        total.index_add_(0, edge[done], (halves[0] + halves[1])[done])
        error.index_add_(0, edge[done], difference[done])
        if done.all():
            break
        integral = torch.cat([half[~done] for half in halves])
        edge, width = edge[~done].repeat(2), (width[~done] / 2).repeat(2)
        start = torch.cat([start[~done], start[~done] + width[: len(width) // 2]])
    return total, error


def _panels(f: Callable[[Tensor, Tensor], Tensor], edge: Tensor, start: Tensor, width: Tensor) -> Tensor:
    """The integral over each panel by Gauss-Lobatto quadrature."""
    t = start[:, None] + width[:, None] * (NODES + 1) / 2
    values = f(edge.repeat_interleave(len(NODES)), t.flatten()).view_as(t)
    return (values * WEIGHTS).sum(dim=1) * width / 2
