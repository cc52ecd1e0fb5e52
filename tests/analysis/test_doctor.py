"""From numbers to findings, and the table that the documentation shows."""

import re
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path

import pytest

from tercet.analysis.doctor import FEW, ILLNESSES, caution, diagnose, follows_from, table_of_illnesses
from tercet.analysis.evidence import Evidence
from tercet.training.kinds import flag
from tercet.training.settings import TrainSettings

DOCS = Path(__file__).parents[2] / "docs"
WELL = Evidence(
    spread=0.15,
    hub_captions=0.8,
    hub_images=0.4,
    largest_hub=0.1,
    gap=0.1,
    told_apart=0.6,
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
ILL = {
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


def names(evidence):
    return [finding.name for finding in diagnose(evidence)]


def test_nothing_is_found_on_what_is_well():
    assert names(WELL) == []


@pytest.mark.parametrize("name", ILL)
def test_each_illness_is_found_alone_and_says_its_numbers(name):
    found = diagnose(replace(WELL, **ILL[name]))
    assert [finding.name for finding in found] == [name]
    assert re.search(r"\d", found[0].seen)
    assert "--" in found[0].advice or "tercet" in found[0].advice


def test_every_row_of_the_table_can_be_found():
    assert list(ILL) == [illness.name for illness in ILLNESSES]


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda illness: illness.name)
def test_advice_names_settings_that_there_are(illness):
    known = {flag(item.name) for item in fields(TrainSettings)}
    assert set(re.findall(r"--[a-z][a-z-]+", illness.advice)) <= known
    assert set(illness.explained_by) < {each.name for each in ILLNESSES}


def test_what_another_illness_brings_along_is_no_finding_of_its_own():
    symptoms = {"hub_captions": 6.0, "gap": 2.0, "ahead_i2t": 0.3, "fall": 0.4}
    assert names(replace(WELL, spread=0.001, **symptoms)) == ["collapse"]
    assert names(replace(WELL, leaked=0.5, spread=0.001)) == ["collapse", "leakage"]


def test_what_is_beyond_its_threshold_and_no_finding_says_which_finding_it_follows_from():
    rising = replace(WELL, rise=0.3)
    assert follows_from(WELL) == follows_from(rising) == {}
    assert follows_from(replace(rising, hub_images=4.55)) == {"hubness": ["under-training"]}
    # not from the collapse, which follows from under-training itself
    assert follows_from(replace(rising, spread=0.008, hub_images=4.55, fall=0.0)) == {
        "collapse": ["under-training"],
        "hubness": ["under-training"],
    }


@pytest.mark.parametrize("fall", [0.0, 0.2])  # while validation is clearly rising, and while it is not
def test_with_everything_ill_all_of_it_follows_from_findings(fall):
    evidence = replace(WELL, **{name: value for each in ILL.values() for name, value in each.items()} | {"fall": fall})
    explained = follows_from(evidence)
    assert explained
    assert {finding for findings in explained.values() for finding in findings} <= set(names(evidence))


def test_a_model_that_guesses_is_under_trained_whatever_its_curve_says():
    guessing = replace(WELL, ahead_i2t=0.49, ahead_t2i=0.5, rise=None, fall=None)
    assert names(guessing) == ["under-training"]
    assert names(replace(guessing, silent=1.0)) == ["dead objective"]


def test_what_was_not_measured_is_no_finding():
    unknown = replace(WELL, evenness=None, hardest_share=None, rise=None, fall=None, validations=1)
    assert names(unknown) == []
    assert [illness.shown(unknown) for illness in ILLNESSES if illness.value(unknown) is None] == [
        "no temperature",
        "no such temperature",
        "one validation is no curve",
        "one validation is no curve",
    ]


@pytest.mark.parametrize(
    ("validations", "said"),
    [(0, "no validation split"), (1, "one validation is no curve"), (5, "validation stayed at 0")],
)
def test_why_there_is_no_curve(validations, said):
    unknown = replace(WELL, rise=None, fall=None, validations=validations)
    assert [illness.shown(unknown) for illness in ILLNESSES[-2:]] == [said, said]


def test_while_validation_rises_clearly_a_flat_space_is_one_that_is_not_trained_yet():
    flat = replace(WELL, spread=0.008, gap=1.7, hub_images=4.0)
    assert names(replace(flat, rise=0.29, fall=0.0)) == ["under-training"]
    assert names(replace(flat, rise=0.29, fall=0.4)) == ["collapse"]  # up from a deeper fall
    assert names(replace(flat, rise=0.07, fall=0.0)) == ["collapse"]
    assert names(replace(flat, rise=0.29, fall=0.0, ahead_i2t=0.5, ahead_t2i=0.5)) == ["collapse"]  # by luck


@pytest.mark.parametrize("name", [field.name for field in fields(Evidence) if field.type is not int])
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_no_number_is_told_and_not_healthy(name, value):
    told = diagnose(replace(WELL, **{name: value}))[0]
    assert told.name == "not a number"
    assert f": {name}." in told.seen


def test_a_value_that_is_no_number_is_shown_as_such():
    for spoiled in ({"hub_captions": nan}, {"hub_images": nan}):
        assert ILLNESSES[1].shown(replace(WELL, **spoiled)) == "not a number"
    assert ILLNESSES[-3].name == "unbalanced directions"
    for spoiled in ({"ahead_i2t": nan}, {"ahead_t2i": nan}):
        assert ILLNESSES[-3].shown(replace(WELL, **spoiled)) == "not a number"


def test_few_images_are_told():
    assert caution(replace(WELL, images=FEW)) is None
    assert "Only 19 images are held out" in caution(replace(WELL, images=19))
    assert "Only 1 image is held out" in caution(replace(WELL, images=1))


def test_an_almost_perfect_model_is_not_unbalanced_by_a_rank():
    assert names(replace(WELL, ahead_i2t=0.0001, ahead_t2i=0.001, images=200)) == []


def test_the_documentation_shows_the_table_of_the_code():
    assert table_of_illnesses() in (DOCS / "doctor.md").read_text()


def test_the_documentation_explains_every_finding():
    headings = re.findall(r"^### (.+)$", (DOCS / "doctor.md").read_text(), flags=re.MULTILINE)
    assert headings == [illness.name for illness in ILLNESSES]
