"""Weights of positives: every objective that takes them equals loops from its definition; the others refuse them."""

import pytest
import torch

import tercet
from tercet.objectives import OBJECTIVES
from tercet.objectives.base import TAKE_WEIGHTS
from tests.objectives.batches import CASES
from tests.objectives.loops import both_directions

GRADED = [name for name in OBJECTIVES if tercet.objective(name).takes_grades]
VARIANTS = [
    *[(name, {}) for name in GRADED],
    *[(name, {"reduction": "mean"}) for name in ("triplet", "triplet-sh", "cir/lin", "circle", "multi-similarity")],
    ("nt-xent", {"reduction": "sum"}),
    ("sigmoid", {"bias": "batch", "reduction": "sum"}),
    ("triplet", {"top_k": 2}),
    ("triplet", {"margin": 0.125}),
    ("circle", {"detach_weights": False}),
    ("multi-similarity", {"slack": None}),
    ("con/sig", {"reading": "code"}),
]
QUICK = ("house 3 x 15, ignored pairs", "queries without a positive 4 x 5", "ties on a grid 4 x 9")
cases = pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)


def graded(case):
    """Random weights of the positives and of some other pairs; a few of the positives are 0."""
    generator = torch.Generator().manual_seed(7)
    similarity, positives, ignored = CASES[case]
    draws = torch.rand(3, *similarity.shape, generator=generator, dtype=torch.float64)
    weights = draws[0] * (positives | (draws[1] < 0.2)) * (draws[2] > 0.1)
    return similarity, weights, ignored


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@cases
@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)
def test_weighted_gradients_and_value_equal_the_loops(name, settings, case):
    o, batch = tercet.objective(name, **settings), graded(case)
    i2t, t2i, value = both_directions(o, *batch)
    for actual, expected in zip(o.pair_gradients(*batch), (i2t, t2i), strict=True):
        close(actual, torch.tensor(expected, dtype=torch.float64))
    if value is None:
        assert o.value(*batch) is None
    else:
        close(o.value(*batch).item(), value)
        leaf = batch[0].clone().requires_grad_()
        o.value(leaf, *batch[1:]).backward()
        close(leaf.grad, o.pair_gradient(*batch))
    leaf = batch[0].clone().requires_grad_()
    scalar = o.on_similarity(leaf, *batch[1:])
    scalar.backward()
    close(leaf.grad, o.pair_gradient(*batch))
    close(scalar.detach(), o.monitor(*batch) if value is None else o.value(*batch))


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)
def test_weights_of_0_and_1_are_a_mask(name, settings):
    o = tercet.objective(name, **settings)
    for case in QUICK:
        similarity, positives, ignored = CASES[case]
        weights = positives.double()
        torch.testing.assert_close(
            o.pair_gradient(similarity, weights, ignored), o.pair_gradient(similarity, positives, ignored)
        )
        torch.testing.assert_close(
            o.on_similarity(similarity, weights, ignored), o.on_similarity(similarity, positives, ignored)
        )


@pytest.mark.parametrize("name", GRADED)
def test_a_positive_of_less_weight_pulls_less(name):
    similarity = torch.tensor([[0.5, 0.5, 0.45]], dtype=torch.float64)
    gradient = tercet.objective(name).pair_gradients(similarity, torch.tensor([[0.9, 0.3, 0.0]]))[0][0]
    assert gradient[0] < gradient[1]
    assert gradient[0] < 0 < gradient[2]


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in GRADED])
def test_the_others_refuse_weights_in_one_line(name):
    with pytest.raises(ValueError, match=rf"{name} does not define weights of positives.*nt-xent.*take weights$"):
        tercet.objective(name).pair_gradient(torch.rand(2, 3), torch.rand(2, 3))


def test_the_message_names_those_that_take_weights():
    for name in GRADED:
        assert name in TAKE_WEIGHTS or "/" in name
    assert {name for name in OBJECTIVES if "/" in name} - set(GRADED) == {n for n in OBJECTIVES if n.endswith("-ms")}
    with pytest.raises(ValueError, match="does not define weights"):
        tercet.objective("aoq").value(torch.rand(2, 2), torch.eye(2), mined=torch.rand(2, 4))


def test_counts_take_weights():
    similarity, weights, ignored = graded("house 3 x 15, ignored pairs")
    for name in GRADED:
        counts = tercet.cocos(tercet.objective(name), similarity, weights, ignored=ignored)
        plain = tercet.cocos(tercet.objective(name), similarity, weights > 0, ignored=ignored)
        assert counts["i2t"]["silent"] <= 3
        published = counts["i2t"].keys() - {"negatives", "silent", "effective", "hardest_share"}
        assert {key: counts["i2t"][key] for key in published} == {key: plain["i2t"][key] for key in published}
