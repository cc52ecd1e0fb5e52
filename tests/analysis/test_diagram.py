"""Diagrams against the equations of GOAL, point by point, and against the gradient of a batch of one triplet."""

import math

import pytest
import torch

import tercet
from tercet.analysis.diagram import batch_triplets, gradient_at, plane


def triplet_weight(kind, s_p, s_n):
    if kind == "con":
        return 1.0 if 0.2 + s_n - s_p > 0 else 0.0
    if kind == "nca":
        return 1 / (1 + math.exp(10 * (s_p - s_n)))
    return 1 / (1 + math.exp(10 * (s_p * (2 - s_p) - s_n**2)))


@pytest.mark.parametrize("kind", ["con", "nca", "cir"])
def test_figure_2_is_the_equation(kind):
    found = plane(tercet.objective(f"{kind}/con"), points=12)
    for row, s_n in enumerate(found.s_n.tolist()):
        for column, s_p in enumerate(found.s_p.tolist()):
            assert found.triplet_weight[row, column].item() == pytest.approx(triplet_weight(kind, s_p, s_n), abs=1e-12)


def test_equal_weight_lines_are_straight_for_nca_and_circles_about_1_0_for_cir():
    angle = torch.linspace(0, math.pi / 2, 9, dtype=torch.float64)
    on_circle = 1 - 0.7 * angle.cos(), 0.7 * angle.sin()
    weights = gradient_at(tercet.objective("cir/con"), *on_circle)[1]
    torch.testing.assert_close(weights, weights[:1].expand(9), rtol=1e-12, atol=0)
    s_n = torch.linspace(0, 0.6, 9, dtype=torch.float64)
    weights = gradient_at(tercet.objective("nca/con"), s_n + 0.3, s_n)[1]
    torch.testing.assert_close(weights, weights[:1].expand(9), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("kind", "positive", "negative"),
    [
        ("con", lambda s: 1.0, lambda s: 1.0),
        ("lin", lambda s: 1 - s, lambda s: s),
        ("sig", lambda s: 1 / (1 + math.exp(2 * (s - 0.5))), lambda s: 1 / (1 + math.exp(-10 * (s - 0.5)))),
        ("lin-ms", lambda s: 0.9 * (1 - s), lambda s: 1.1 * s),
        ("sig-ms", lambda s: 1 / (0.1 + math.exp(2 * (s - 0.5))), lambda s: 1 / (0.1 + math.exp(-10 * (s - 0.5)))),
    ],
)
def test_figure_3_is_the_equation(kind, positive, negative):
    found = plane(tercet.objective(f"con/{kind}"), points=7)
    assert found.positive_weight.tolist() == pytest.approx([positive(s) for s in found.s_p.tolist()])
    assert found.negative_weight.tolist() == pytest.approx([negative(s) for s in found.s_n.tolist()])


def soft(S, positives):
    return (torch.log1p(S.exp().sum(dim=1)) - (S * positives).sum(dim=1)).sum()


@pytest.mark.parametrize(
    "which", ["triplet", "triplet-sh", "nt-xent", "smooth-ap", "sigmoid", "con/lin", "nca/sig", "cir/lin", soft]
)
def test_any_objective_at_a_point_is_its_gradient_on_that_triplet(which):
    made = tercet.objective(which)
    found = plane(made, low=-0.2, high=0.9, points=5)
    scale = 2 if made.reduction == "mean" else 1  # half the mean over one query
    for row, s_n in enumerate(found.s_n):
        for column, s_p in enumerate(found.s_p):
            S = torch.stack([s_p, s_n])[None]
            G = scale * made.pair_gradients(S, torch.tensor([[True, False]]))[0]
            assert found.pull[row, column].item() == pytest.approx(G[0, 0].abs().item(), abs=1e-12)
            assert found.push[row, column].item() == pytest.approx(G[0, 1].abs().item(), abs=1e-12)
    assert found.pull.max() > 0


def test_weights_are_shown_only_where_they_are_declared():
    assert plane(tercet.objective("triplet-sh"), points=3).triplet_weight is None
    own = tercet.objective((lambda s_p, s_n: s_n - s_p + 2, lambda s_p: 1 - s_p, lambda s_n: s_n * s_n))
    found = plane(own, points=3)
    assert found.negative_weight.tolist() == [0.0, 0.25, 1.0]
    assert found.triplet_weight[2, 0].item() == 3.0


def test_a_wrong_axis_is_told():
    with pytest.raises(ValueError, match="at least 2 points"):
        plane(tercet.objective("triplet-sh"), low=1.0, high=0.0)


def test_triplets_of_a_batch():
    S = torch.tensor([[0.9, 0.1, 0.30004], [0.2, 0.8, 0.7]])
    positives = torch.tensor([[True, False, False], [False, True, False]])
    found = batch_triplets(S, positives)
    assert found == {"s_p": [0.9, 0.8], "i2t": [0.3, 0.7], "t2i": [0.2, 0.1]}
    alone = batch_triplets(torch.tensor([[0.5]]), torch.tensor([[True]]))
    assert alone == {"s_p": [0.5], "i2t": [None], "t2i": [None]}
