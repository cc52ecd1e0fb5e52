"""Diagrams equal GOAL's equations at every point, and the gradient of a batch of one triplet."""

import math

import pytest
import torch

import tercet
from tercet.analysis.triplet_diagram import gradient_at, plane
from tercet.training.monitor import batch_triplets


def triplet_weight(kind, s_p, s_n):
    if kind == "con":
        return 1.0 if 0.2 + s_n - s_p > 0 else 0.0
    if kind == "nca":
        return 1 / (1 + math.exp(10 * (s_p - s_n)))
    return 1 / (1 + math.exp(10 * (s_p * (2 - s_p) - s_n**2)))


@pytest.mark.parametrize("kind", ["con", "nca", "cir"])
def test_figure_2_is_the_equation(kind):
    diagram = plane(tercet.objective(f"{kind}/con"), points=12)
    for row, s_n in enumerate(diagram.s_n.tolist()):
        for column, s_p in enumerate(diagram.s_p.tolist()):
            assert diagram.triplet_weight[row, column].item() == pytest.approx(
                triplet_weight(kind, s_p, s_n), abs=1e-12
            )


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
    diagram = plane(tercet.objective(f"con/{kind}"), points=7)
    assert diagram.positive_weight.tolist() == pytest.approx([positive(s) for s in diagram.s_p.tolist()])
    assert diagram.negative_weight.tolist() == pytest.approx([negative(s) for s in diagram.s_n.tolist()])


def soft(S, positives):
    return (torch.log1p(S.exp().sum(dim=1)) - (S * positives).sum(dim=1)).sum()


@pytest.mark.parametrize(
    "which", ["triplet", "triplet-sh", "nt-xent", "smooth-ap", "sigmoid", "con/lin", "nca/sig", "cir/lin", soft]
)
def test_any_objective_at_a_point_is_its_gradient_on_that_triplet(which):
    objective = tercet.objective(which)
    diagram = plane(objective, low=-0.2, high=0.9, points=5)
    scale = 2 if objective.reduction == "mean" else 1  # half the mean over one query
    for row, s_n in enumerate(diagram.s_n):
        for column, s_p in enumerate(diagram.s_p):
            S = torch.stack([s_p, s_n])[None]
            positives = torch.tensor([[True, False]])
            # A loss has no directions of its own; the captions of one image have no negatives.
            G = objective.pair_gradient(S, positives) if which is soft else objective.pair_gradients(S, positives)[0]
            G = scale * G
            assert diagram.pull[row, column].item() == pytest.approx(G[0, 0].abs().item(), abs=1e-12)
            assert diagram.push[row, column].item() == pytest.approx(G[0, 1].abs().item(), abs=1e-12)
    assert diagram.pull.max() > 0


def test_weights_exist_only_for_products_of_weights():
    assert plane(tercet.objective("triplet-sh"), points=3).triplet_weight is None
    objective = tercet.objective((lambda s_p, s_n: s_n - s_p + 2, lambda s_p: 1 - s_p, lambda s_n: s_n * s_n))
    diagram = plane(objective, points=3)
    assert diagram.negative_weight.tolist() == [0.0, 0.25, 1.0]
    assert diagram.triplet_weight[2, 0].item() == 3.0


def test_a_wrong_axis_is_an_error():
    with pytest.raises(ValueError, match="at least 2 points"):
        plane(tercet.objective("triplet-sh"), low=1.0, high=0.0)


def test_triplets_of_a_batch():
    S = torch.tensor([[0.9, 0.1, 0.30004], [0.2, 0.8, 0.7]])
    positives = torch.tensor([[True, False, False], [False, True, False]])
    triplets = batch_triplets(S, positives)
    assert triplets == {"s_p": [0.9, 0.8], "i2t": [0.3, 0.7], "t2i": [0.2, 0.1]}
    alone = batch_triplets(torch.tensor([[0.5]]), torch.tensor([[True]]))
    assert alone == {"s_p": [0.5], "i2t": [None], "t2i": [None]}
