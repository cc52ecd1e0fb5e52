"""From measurements to findings, and the table in the documentation."""

import re
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path

import pytest

from tercet.analysis.diagnostics.measurements import Measurements
from tercet.analysis.diagnostics.rules import (
    MIN_IMAGES,
    RULES,
    diagnose,
    findings_that_explain,
    small_sample_warning,
    table_of_rules,
)
from tercet.names import flag
from tercet.training.settings import TrainSettings

DOCS = Path(__file__).parents[3] / "docs"
HEALTHY = Measurements(
    spread=0.15,
    hub_captions=0.8,
    hub_images=0.4,
    largest_hub=0.1,
    gap=0.1,
    separable_share=0.6,
    evenness=0.7,
    hardest_share=0.2,
    silent=0.1,
    duplicates=0.0,
    leaked=0.0,
    ahead_i2t=0.021,
    ahead_t2i=0.022,
    images=200,
    validations=8,
    rise=0.0,
    fall=0.01,
    train_rsum=550.0,
    held_out_rsum=480.0,
)
FAULTY = {
    "collapse": {"spread": 0.001},
    "hubness": {"hub_images": 5.0},
    "modality gap": {"gap": 1.8},
    "flat temperature": {"evenness": 0.999},
    "sharp temperature": {"hardest_share": 0.9},
    "dead objective": {"silent": 0.99},
    "false negatives": {"duplicates": 0.2},
    "leakage": {"leaked": 0.1},
    "unbalanced directions": {"ahead_t2i": 0.1},
    "under-training": {"rise": 0.3},
    "over-fitting": {"fall": 0.2},
}


def names(measurements):
    return [finding.name for finding in diagnose(measurements)]


def test_a_healthy_run_has_no_findings():
    assert names(HEALTHY) == []


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_found_alone_with_its_numbers(name):
    findings = diagnose(replace(HEALTHY, **FAULTY[name]))
    assert [finding.name for finding in findings] == [name]
    assert re.search(r"\d", findings[0].description)
    assert "--" in findings[0].advice or "tercet" in findings[0].advice


def test_augmentations_are_advised_only_where_they_do_something():
    (finding,) = diagnose(replace(HEALTHY, **FAULTY["over-fitting"]))
    assert "more --weight-decay, a smaller model" in finding.advice
    (finding,) = diagnose(replace(HEALTHY, **FAULTY["over-fitting"], augmentations=("--drop-words 0.2",)))
    assert "more --weight-decay, --drop-words 0.2, a smaller model" in finding.advice


def test_every_row_of_the_table_can_be_found():
    assert list(FAULTY) == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_advice_names_existing_settings(rule):
    known = {flag(item.name) for item in fields(TrainSettings)}
    assert set(re.findall(r"--[a-z][a-z-]+", rule.advice)) <= known
    assert set(rule.explained_by) < {other.name for other in RULES}


def test_a_fault_that_another_one_explains_is_not_a_finding():
    symptoms = {"hub_captions": 6.0, "gap": 2.0, "ahead_i2t": 0.3, "fall": 0.4}
    assert names(replace(HEALTHY, spread=0.001, **symptoms)) == ["collapse"]
    assert names(replace(HEALTHY, leaked=0.5, spread=0.001)) == ["collapse", "leakage"]


def test_an_explained_fault_names_the_finding_that_explains_it():
    rising = replace(HEALTHY, rise=0.3)
    assert findings_that_explain(HEALTHY) == findings_that_explain(rising) == {}
    assert findings_that_explain(replace(rising, hub_images=4.55)) == {"hubness": ["under-training"]}
    # not by the collapse, which is itself explained by under-training
    assert findings_that_explain(replace(rising, spread=0.008, hub_images=4.55, fall=0.0)) == {
        "collapse": ["under-training"],
        "hubness": ["under-training"],
    }


@pytest.mark.parametrize("fall", [0.0, 0.2])  # while validation is clearly rising, and while it is not
def test_with_every_fault_all_explanations_are_findings(fall):
    measurements = replace(
        HEALTHY, **{name: value for each in FAULTY.values() for name, value in each.items()} | {"fall": fall}
    )
    explained = findings_that_explain(measurements)
    assert explained
    assert {finding for findings in explained.values() for finding in findings} <= set(names(measurements))


def test_a_model_at_chance_level_is_under_trained_whatever_its_curve():
    at_chance = replace(HEALTHY, ahead_i2t=0.49, ahead_t2i=0.5, rise=None, fall=None)
    assert names(at_chance) == ["under-training"]
    assert names(replace(at_chance, silent=1.0)) == ["dead objective"]


def test_a_missing_measurement_is_not_a_finding():
    unknown = replace(HEALTHY, evenness=None, hardest_share=None, rise=None, fall=None, validations=1)
    assert names(unknown) == []
    assert [rule.value_text(unknown) for rule in RULES if rule.value(unknown) is None] == [
        "no temperature",
        "does not apply",
        "only one validation",
        "only one validation",
    ]


@pytest.mark.parametrize(
    ("validations", "reason"),
    [(0, "no validation split"), (1, "only one validation"), (5, "validation stayed at 0")],
)
def test_the_reason_for_a_missing_curve(validations, reason):
    unknown = replace(HEALTHY, rise=None, fall=None, validations=validations)
    assert [rule.value_text(unknown) for rule in RULES[-2:]] == [reason, reason]


def test_while_validation_clearly_rises_a_flat_space_is_under_training():
    flat = replace(HEALTHY, spread=0.008, gap=1.7, hub_images=4.0)
    assert names(replace(flat, rise=0.29, fall=0.0)) == ["under-training"]
    assert names(replace(flat, rise=0.29, fall=0.4)) == ["collapse"]  # after a deeper fall
    assert names(replace(flat, rise=0.07, fall=0.0)) == ["collapse"]
    assert names(replace(flat, rise=0.29, fall=0.0, ahead_i2t=0.5, ahead_t2i=0.5)) == ["collapse"]  # by chance


@pytest.mark.parametrize("name", [field.name for field in fields(Measurements) if field.type in (float, float | None)])
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_non_finite_measurement_is_a_finding(name, value):
    finding = diagnose(replace(HEALTHY, **{name: value}))[0]
    assert finding.name == "not a number"
    assert f": {name}." in finding.description


def test_a_value_of_a_non_finite_measurement_is_not_a_number():
    for changed in ({"hub_captions": nan}, {"hub_images": nan}):
        assert RULES[1].value_text(replace(HEALTHY, **changed)) == "not a number"
    assert RULES[-3].name == "unbalanced directions"
    for changed in ({"ahead_i2t": nan}, {"ahead_t2i": nan}):
        assert RULES[-3].value_text(replace(HEALTHY, **changed)) == "not a number"


def test_few_images_give_a_warning():
    assert small_sample_warning(replace(HEALTHY, images=MIN_IMAGES)) is None
    assert "Only 19 images are held out" in small_sample_warning(replace(HEALTHY, images=19))
    assert "Only 1 image is held out" in small_sample_warning(replace(HEALTHY, images=1))


def test_one_rank_does_not_unbalance_an_almost_perfect_model():
    assert names(replace(HEALTHY, ahead_i2t=0.0001, ahead_t2i=0.001, images=200)) == []


def test_the_documentation_shows_the_table_of_the_code():
    assert table_of_rules() in (DOCS / "doctor.md").read_text()


def test_the_documentation_explains_every_finding():
    headings = re.findall(r"^### (.+)$", (DOCS / "doctor.md").read_text(), flags=re.MULTILINE)
    assert headings == [rule.name for rule in RULES]
