"""A loss exists just where the catalogue says so; known fields; jumps that point-by-point symmetry would miss."""

import pytest
import torch

import tercet
from tercet.analysis.circulation import _batch_field, _circulation, _integrals, round_positives, round_triplets
from tercet.objectives.goal import PAIR_WEIGHTS, TRIPLET_WEIGHTS

CELLS = [(f"{T}/{P}", reading) for reading in ("paper", "code") for P in PAIR_WEIGHTS for T in TRIPLET_WEIGHTS]


@pytest.mark.parametrize(("cell", "reading"), CELLS)
def test_circulation_vanishes_where_and_only_where_a_cell_has_a_value(cell, reading):
    made = tercet.objective(cell, reading=reading)
    vanishes = round_triplets(made, rectangles=20).vanishes and round_positives(made, rectangles=2).vanishes
    assert vanishes == made.has_value


@pytest.mark.parametrize("name", ["triplet", "triplet-sh", "nt-xent", "smooth-ap", "sigmoid"])
def test_losses_have_none(name):
    assert round_triplets(tercet.objective(name), rectangles=20).vanishes


def test_a_gate_makes_the_difference_that_symmetry_point_by_point_does_not_see():
    """con/lin: P+ does not depend on S_n nor P- on S_p, so that the Jacobian is symmetric wherever there is one."""
    gated, open_ = tercet.objective("con/lin"), tercet.objective("con/lin", margin=None)
    assert round_triplets(gated).largest > 0.05
    assert round_triplets(open_).vanishes


@pytest.mark.parametrize("other", [(0, 1), (1, 1)])
@pytest.mark.parametrize("cell", ["con/con", "nca/sig", "con/lin-ms", "cir/sig-ms"])
def test_many_points_at_once_are_those_points_one_by_one(cell, other):
    made = tercet.objective(cell)
    x, y, background = (torch.rand(size, dtype=torch.float64) for size in (20, 20, (3, 3)))
    found = torch.stack(_batch_field(made, background, other)(x, y), dim=1)
    for first, second, components in zip(x, y, found, strict=True):
        similarity = background.clone()
        similarity[0, 0], similarity[other] = first, second
        i2t, _ = made.pair_gradients(similarity)
        assert torch.equal(components, torch.stack([i2t[0, 0], i2t[other]]))


def test_an_objective_of_ones_own_is_taken_point_by_point():
    own = tercet.objective(
        lambda S, positives: S * float(S.detach().max())
    )  # float() of many points at once is an error
    assert round_positives(own, rectangles=1).largest > 0


def test_a_known_field():
    """Round a rectangle (-y, x) circulates twice the area, (y, x) not at all."""
    corners = torch.tensor([[0.1, 0.2, 0.6, 0.9]], dtype=torch.float64).numpy()
    turning = _circulation(lambda x, y: (-y, x), corners)
    assert turning.largest == pytest.approx(2 * 0.5 * 0.7, abs=1e-12)
    assert not turning.vanishes
    assert _circulation(lambda x, y: (y, x), corners).vanishes


@pytest.mark.parametrize("jump", [0.5, 0.123456, 0.2500001, 0.999, 1e-3])
def test_a_jump_is_integrated_to_the_last_digits_wherever_it_lies(jump):
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found, error = _integrals(lambda edge, t: (t > jump).double() * (1 + t), zero, one)
    assert found.item() == pytest.approx((1 - jump) + (1 - jump**2) / 2, abs=1e-8)
    assert error.item() < 1e-8


def test_the_same_rectangles_every_time():
    made = tercet.objective("cir/con")
    assert round_triplets(made) == round_triplets(made)
    assert round_triplets(made) != round_triplets(made, seed=1)
