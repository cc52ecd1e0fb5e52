"""Learned settings: gradients are those of differences, on every path, and training moves and saves them."""

import math

import pytest
import torch

import tercet
from tercet.objectives.registry import spec_of
from tests.objectives.batches import CASES

CASE = CASES["house 3 x 15, ignored pairs"]
LEARNED = [
    ("nt-xent", "temperature"),
    ("sigmoid", "temperature+bias"),
    ("smooth-ap", "temperature"),
    ("triplet", "margin"),
    ("triplet-sh", "margin"),
    ("nca/con", "tau"),
    ("circle:detach_weights=false", "margin+gamma"),
    ("multi-similarity", "alpha+beta+lam"),
]


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(("name", "learn"), LEARNED)
def test_the_gradient_of_a_setting_is_that_of_differences(name, learn, weights):
    base, o = tercet.objective(name), tercet.objective(name, learn=learn)
    o.module.double()
    positives = CASE.positives * 0.4 + 0.3 * CASE.positives[:, :1] if weights else CASE.positives
    leaf = CASE.similarity.clone().requires_grad_()
    scalar = o.on_similarity(leaf, positives, CASE.ignored)
    (2 * scalar).backward()
    torch.testing.assert_close(
        leaf.grad, 2 * base.pair_gradient(CASE.similarity, positives, CASE.ignored), atol=1e-6, rtol=1e-6
    )
    for key, parameter in o.module.items():
        setting = key.removeprefix("log_")
        value = float(base.settings[setting])
        step = 1e-6 * max(1.0, abs(value))
        ends = [
            base.with_settings(**{setting: value + sign * step}).value(CASE[0], positives, CASE[2]) for sign in (1, -1)
        ]
        slope = float(ends[0] - ends[1]) / (2 * step) * (value if key.startswith("log_") else 1)
        assert parameter.grad.item() == pytest.approx(2 * slope, rel=1e-4, abs=1e-5)


def test_positive_settings_are_learned_as_logarithms_and_others_as_they_are():
    o = tercet.objective("sigmoid", learn="temperature+bias", bias=-5.0)
    start = {key: parameter.item() for key, parameter in o.module.items()}
    assert start == {"log_temperature": pytest.approx(math.log(0.1)), "bias": -5.0}
    with torch.no_grad():
        o.module["log_temperature"] -= 100.0
    assert o.current().temperature > 0
    assert o.learned == {"temperature": pytest.approx(o.current().temperature), "bias": -5.0}


def test_it_is_named_by_its_settings():
    o = tercet.objective("nt-xent:learn=temperature,temperature=0.05")
    assert o.settings == {"temperature": 0.05, "reduction": "mean", "learn": "temperature"}
    assert tercet.objective(o.name, **o.settings) == o == tercet.objective(spec_of(o))
    assert o.with_settings(learn="") == tercet.objective("nt-xent", temperature=0.05)
    assert o.with_settings(temperature=0.2).learned == {"temperature": pytest.approx(0.2)}
    assert (o + 0.1 * tercet.objective("triplet", learn="margin")).learned.keys() == {
        "nt-xent:temperature", "triplet:margin"
    }  # fmt: skip


def test_counts_are_those_of_the_present_values():
    o = tercet.objective("nt-xent", learn="temperature")
    with torch.no_grad():
        o.module["log_temperature"].fill_(math.log(0.5))
    counts, expected = (tercet.cocos(each, *CASE[:2]) for each in (o, tercet.objective("nt-xent", temperature=0.5)))
    assert counts["i2t"] == pytest.approx(expected["i2t"], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cir/sig", {"learn": "tau"}, "cir/sig has no value: its settings have no derivative"),
        ("nt-xent", {"learn": "margin"}, r"learn must name settings that are numbers \(temperature\), got 'margin'"),
        ("nt-xent", {"learn": "temperature+temperature"}, "names a setting twice"),
        ("multi-similarity", {"learn": "slack"}, "no derivative with respect to slack"),
        ("sigmoid", {"learn": "bias", "bias": "batch"}, r"numbers \(temperature\), got 'bias'"),
        ("nt-xent", {"learn": 3}, "learn must name settings, joined by"),
        ("nt-xent", {"temperature": torch.nn.Parameter(torch.tensor(0.1))}, "learn='temperature' trains it"),
    ],
)
def test_what_cannot_be_learned_is_refused(name, settings, message, without_shape_checks):
    with pytest.raises(ValueError, match=message):
        tercet.objective(name, **settings)
