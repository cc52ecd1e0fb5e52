"""Every objective equals slow loops from its equation, and autograd of its value, to 1e-10 in float64."""

import pytest
import torch

import tercet
from tercet.objectives import OBJECTIVES
from tests.objectives.batches import CASES
from tests.objectives.loops import both_directions

GOAL = [name for name in OBJECTIVES if "/" in name]
VARIANTS = [
    *[(name, {}) for name in OBJECTIVES],
    *[(name, {"reduction": "mean"}) for name in ("triplet", "triplet-sh", "cir/sig-ms")],
    *[(name, {"reduction": "sum"}) for name in ("nt-xent", "smooth-ap", "sigmoid")],
    *[(name, {"reading": "code"}) for name in GOAL],
    ("smooth-ap", {"temperature": 0.2}),
    ("sigmoid", {"temperature": 0.3, "bias": 0.5}),
    ("nca/sig-ms", {"alpha": 3.0, "beta": 4.0, "lam": 0.1, "slack": 0.3, "tau": 5.0}),
    ("con/lin-ms", {"slack": -0.1, "margin": 0.4}),
    ("con/lin-ms", {"slack": 0.125, "margin": 0.125}),  # all comparisons are strict (ties)
    ("nca/sig-ms", {"slack": 0.125}),
    ("triplet", {"margin": 0.125}),
    *[("triplet", {"top_k": k}) for k in (1, 2, 3)],
    ("triplet", {"top_k": 2, "margin": 0.125}),
    ("sigmoid", {"bias": "batch"}),
    ("circle", {"detach_weights": False}),
    ("circle", {"margin": 0.25, "gamma": 5.0, "reduction": "mean"}),
    ("multi-similarity", {"slack": None, "lam": 0.5}),
    ("multi-similarity", {"slack": 0.125, "reduction": "mean"}),
    ("binomial-deviance", {"beta": 6.0, "lam": 0.2, "reduction": "mean"}),
]
VALUED = [variant for variant in VARIANTS if tercet.objective(variant[0], **variant[1]).has_value]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)
def test_gradients_and_value_equal_the_loops(name, settings, case):
    o = tercet.objective(name, **settings)
    i2t, t2i, value = both_directions(o, *CASES[case])
    for actual, expected in zip(o.pair_gradients(*CASES[case]), (i2t, t2i), strict=True):
        close(actual, torch.tensor(expected, dtype=torch.float64))
    if value is None:
        assert o.value(*CASES[case]) is None
    else:
        close(o.value(*CASES[case]).item(), value)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "settings"), VALUED, ids=str)
def test_gradient_equals_autograd_of_value(name, settings, case):
    o = tercet.objective(name, **settings)
    similarity = CASES[case].similarity.clone().requires_grad_()
    (expected,) = torch.autograd.grad(o.value(similarity, *CASES[case][1:]), similarity)
    close(o.pair_gradient(*CASES[case]), expected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_monitor_is_the_hinge_of_the_hardest_negative_reduced_alike(name):
    case = CASES["house 3 x 15, ignored pairs"]
    for reduction in ("sum", "mean"):
        expected = tercet.objective("triplet-sh", reduction=reduction).value(*case)
        close(tercet.objective(name, reduction=reduction).monitor(*case), expected)


def test_exactly_the_cells_of_the_design_have_a_value():
    always = {"triplet", "triplet-sh", "nt-xent", "smooth-ap", "sigmoid", "con/con", "nca/con", "cir/lin"}
    always |= {"multi-similarity", "binomial-deviance"}
    assert {name for name in OBJECTIVES if tercet.objective(name).has_value} == always
    with_code_reading = {name for name in GOAL if tercet.objective(name, reading="code").has_value}
    assert with_code_reading == {"con/con", "con/lin", "con/sig", "nca/con", "cir/lin"}


def test_the_loops_would_notice_a_wrong_gradient():
    """The comparison fails for another margin, and if one direction is missing."""
    case = CASES["house 3 x 15"]
    i2t, _, _ = both_directions(tercet.objective("triplet", margin=0.3), *case)
    o = tercet.objective("triplet", margin=0.2)
    with pytest.raises(AssertionError):
        close(o.pair_gradients(*case)[0], torch.tensor(i2t, dtype=torch.float64))
    with pytest.raises(AssertionError):
        close(o.pair_gradients(*case)[0], o.pair_gradient(*case))
