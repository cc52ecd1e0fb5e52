"""Names, settings, equality and repr of objectives, which are frozen dataclasses."""

import dataclasses
import doctest
import importlib
import pkgutil

import pytest
import torch

import tercet
import tercet.objectives
from tercet.objectives import OBJECTIVES


@pytest.mark.parametrize("name", OBJECTIVES)
def test_repr_settings_and_name_rebuild_an_equal_objective(name):
    o = tercet.objective(name, reduction="mean")
    assert o.name == name
    assert eval(repr(o)) == o
    assert tercet.objective(o.name, **o.settings) == o
    assert hash(tercet.objective(o.name, **o.settings)) == hash(o)
    assert o != tercet.objective(name, reduction="sum")
    with pytest.raises(dataclasses.FrozenInstanceError):
        o.reduction = "sum"


def test_plus_stands_for_slash():
    assert tercet.objective("cir+sig-ms") == tercet.objective("cir/sig-ms")


def test_repr_shows_only_changed_settings():
    assert repr(tercet.objective("con/lin", reading="code", margin=0.3)) == (
        "tercet.objective('con/lin', margin=0.3, reading='code')"
    )
    assert repr(tercet.objective("nt-xent", temperature=0.1)) == "tercet.objective('nt-xent')"


def test_a_named_setting_overrides_the_reading():
    released = tercet.objective("con/sig-ms", reading="code")
    assert (released.margin, released.offset, released.empty) == (None, 0.5, "zero")
    gated = tercet.objective("con/sig-ms", reading="code", margin=0.2, empty="plain")
    assert (gated.margin, gated.offset, gated.empty) == (0.2, 0.5, "plain")
    by_hand = tercet.objective("con/con", margin=None, offset=0.5, empty="zero")
    assert by_hand == tercet.objective("con/con", reading="code")


def test_defaults_are_those_of_the_design():
    expected = {
        "triplet": {"margin": 0.2, "top_k": None, "reduction": "sum"},
        "circle": {"margin": 0.4, "gamma": 80, "detach_weights": True, "reduction": "sum"},
        "multi-similarity": {"alpha": 2, "beta": 50, "lam": 1, "slack": 0.1, "reduction": "sum"},
        "binomial-deviance": {"alpha": 2, "beta": 50, "lam": 0.5, "reduction": "sum"},
        "triplet-sh": {"margin": 0.2, "reduction": "sum"},
        "nt-xent": {"temperature": 0.1, "reduction": "mean"},
        "smooth-ap": {"temperature": 0.01, "reduction": "mean"},
        "sigmoid": {"temperature": 0.1, "bias": -10, "reduction": "mean"},
        "cir/sig-ms": {
            "margin": 0.2, "tau": 10, "offset": 0, "alpha": 2, "beta": 10, "lam": 0.5, "slack": 0.1,
            "empty": "plain", "reading": "paper", "reduction": "sum",
        },
    }  # fmt: skip
    for name, settings in expected.items():
        assert tercet.objective(name).settings == settings


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tercet.objective("tripplet"), "did you mean triplet"),
        (lambda: tercet.objective("cir/sigms"), "did you mean cir/sig-ms"),
        (lambda: tercet.objective("nt-xent", temprature=0.1), "did you mean temperature"),
        (lambda: tercet.objective("triplet", tau=1), "triplet has no setting 'tau'"),
        (lambda: tercet.objective("nt-xent", temperature=0.0), "temperature must be a positive number, got 0.0"),
        (lambda: tercet.objective("triplet", reduction="max"), "reduction must be one of sum, mean, got 'max'"),
        (lambda: tercet.objective("triplet", margin="x"), "margin must be a number, got 'x'"),
        (lambda: tercet.objective("con/con", reading="paper2"), "reading must be one of paper, code, got 'paper2'"),
        (lambda: tercet.objective("con/sig-ms", empty="one"), "empty must be one of plain, zero, got 'one'"),
        (lambda: tercet.objective("missing.py:fn"), "no file 'missing.py'"),
        (lambda: tercet.objective(3), "an objective is a name, a function"),
    ],
)
def test_mistakes_get_one_clear_line(call, message, without_shape_checks):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_docstring_examples_are_true():
    torch.set_printoptions(precision=4)
    run = 0
    for module in pkgutil.walk_packages(tercet.objectives.__path__, prefix="tercet.objectives."):
        loaded = importlib.import_module(module.name)
        outcome = doctest.testmod(loaded, extraglobs={"torch": torch})
        assert outcome.failed == 0
        run += outcome.attempted
    assert run > 10


def test_sigmoid_is_siglip_on_a_square_batch():
    """The published sum over all pairs of -log sigmoid(z (10 S - 10)), divided by the batch size."""
    similarity = torch.rand(6, 6, dtype=torch.float64)
    sign = 2 * torch.eye(6, dtype=torch.float64) - 1
    published = -torch.nn.functional.logsigmoid(sign * (10 * similarity - 10)).sum() / 6
    torch.testing.assert_close(tercet.objective("sigmoid").value(similarity), published, rtol=1e-12, atol=0)
    total = tercet.objective("sigmoid", reduction="sum").value(similarity)
    torch.testing.assert_close(total, 6 * published, rtol=1e-12, atol=0)
