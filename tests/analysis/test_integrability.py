"""Circulation vanishes exactly if an objective has a value; known fields; jumps that a symmetric Jacobian misses."""

import pytest
import torch

import tercet
from tercet.analysis.integrability import (
    _batch_field,
    _circulation,
    _integrals,
    positive_circulation,
    triplet_circulation,
)
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS

CELLS = [
    pytest.param(f"{T}/{P}", reading, marks=pytest.mark.slow if reading == "code" else ())
    for reading in ("paper", "code")
    for P in PAIR_WEIGHTS
    for T in TRIPLET_WEIGHTS
]


@pytest.mark.parametrize(("cell", "reading"), CELLS)
def test_circulation_vanishes_where_and_only_where_a_cell_has_a_value(cell, reading):
    objective = tercet.objective(cell, reading=reading)
    vanishes = (
        triplet_circulation(objective, rectangles=20).vanishes
        and positive_circulation(objective, rectangles=2).vanishes
    )
    assert vanishes == objective.has_value


@pytest.mark.parametrize("name", ["triplet", "triplet-sh", "nt-xent", "smooth-ap", "sigmoid"])
def test_circulation_of_losses_vanishes(name):
    assert triplet_circulation(tercet.objective(name), rectangles=20).vanishes


def test_a_margin_gives_circulation_although_the_jacobian_is_symmetric():
    """con/lin: P+ does not depend on S_n nor P- on S_p, so the Jacobian is symmetric where it exists."""
    with_margin, without_margin = tercet.objective("con/lin"), tercet.objective("con/lin", margin=None)
    assert triplet_circulation(with_margin).largest > 0.05
    assert triplet_circulation(without_margin).vanishes


@pytest.mark.parametrize("other", [(0, 1), (1, 1)])
@pytest.mark.parametrize("cell", ["con/con", "nca/sig", "con/lin-ms", "cir/sig-ms"])
def test_vectorized_points_equal_single_points(cell, other):
    objective, generator = tercet.objective(cell), torch.Generator().manual_seed(0)
    x, y, background = (torch.rand(size, dtype=torch.float64, generator=generator) for size in (20, 20, (3, 3)))
    result = torch.stack(_batch_field(objective, background, other)(x, y), dim=1)
    for first, second, components in zip(x, y, result, strict=True):
        similarity = background.clone()
        similarity[0, 0], similarity[other] = first, second
        i2t, _ = objective.pair_gradients(similarity)
        # Not bit by bit: torch computes exp of several numbers by vector instructions, of one number without them.
        torch.testing.assert_close(components, torch.stack([i2t[0, 0], i2t[other]]), rtol=1e-14, atol=1e-16)


def test_a_user_defined_objective_is_called_point_by_point():
    objective = tercet.objective(lambda S, positives: S * float(S.detach().max()))  # float() fails under vmap
    assert positive_circulation(objective, rectangles=1).largest > 0


def test_a_known_field():
    """The circulation of (-y, x) around a rectangle is twice its area, that of (y, x) is zero."""
    corners = torch.tensor([[0.1, 0.2, 0.6, 0.9]], dtype=torch.float64).numpy()
    turning = _circulation(lambda x, y: (-y, x), corners)
    assert turning.largest == pytest.approx(2 * 0.5 * 0.7, abs=1e-12)
    assert not turning.vanishes
    assert _circulation(lambda x, y: (y, x), corners).vanishes


@pytest.mark.parametrize("jump", [0.5, 0.123456, 0.2500001, 0.999, 1e-3])
def test_a_jump_is_integrated_accurately_at_any_position(jump):
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    result, error = _integrals(lambda edge, t: (t > jump).double() * (1 + t), zero, one)
    assert result.item() == pytest.approx((1 - jump) + (1 - jump**2) / 2, abs=1e-8)
    assert error.item() < 1e-8


def test_rectangles_depend_on_the_seed_only():
    objective = tercet.objective("cir/con")
    assert triplet_circulation(objective) == triplet_circulation(objective)
    assert triplet_circulation(objective) != triplet_circulation(objective, seed=1)
