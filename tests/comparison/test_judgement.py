"""What is real, and what the paragraph says of it."""

import re

import numpy as np
import pytest

from tercet.comparison.judgement import judge
from tercet.comparison.results import Failure, Results
from tercet.comparison.verdict import fairness_said, verdict
from tests.comparison.made import made_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return made_results(tmp_path_factory.mktemp("runs"), {"good": 6.0, "same": 6.0, "near": 5.6, "bad": 1.0}, seeds=4)


def test_every_pair_is_tested_once_and_corrected_together(results):
    found = judge(results, "rsum")
    assert len(found.pairs) == 6
    assert all(pair.corrected >= pair.found.p for pair in found.pairs)
    assert found.pair("good", "bad").real
    assert found.pair("bad", "good") is found.pair("good", "bad")
    assert found.pair("good", "same").same
    assert not found.pair("good", "near").real
    named = judge(results, "rsum", [("bad", "good")])
    assert [(pair.first, pair.second) for pair in named.pairs] == [("good", "bad")]
    assert named.pairs[0].corrected == named.pairs[0].found.p


def test_same_p_values_on_every_call(results):
    assert judge(results, "t2i_r1") == judge(results, "t2i_r1")


def test_the_paragraph_claims_what_the_tests_say(results):
    said = verdict(results, judge(results, "rsum"), "All equal.")
    assert said.startswith("good and same share the highest rsum")
    assert "It beats bad by" in said
    assert "same gave the very same ranks" in said
    assert "It cannot be told apart from near" in said
    assert re.search(r"4 seeds find a difference of [\d.]+ points four times of five", said)
    assert said.endswith("All equal.")
    assert "beats near" not in said


def test_one_seed_never_speaks_of_training(tmp_path):
    results = made_results(tmp_path, {"good": 6.0, "bad": 1.0}, seeds=1)
    said = verdict(results, judge(results, "rsum"), "")
    assert "One seed tells nothing about the luck of training" in said
    assert "p < 0.05 over images)" in said


def test_only_shared_seeds_are_compared(tmp_path):
    results = made_results(tmp_path, {"a": 6.0, "b": 5.0, "c": 4.0}, seeds=3)
    del results.runs["b"][0]
    results.runs["c"] = {}
    found = judge(results, "rsum")
    assert [(pair.first, pair.second, pair.found.seeds) for pair in found.pairs] == [("a", "b", 2)]
    results.runs["b"] = {9: results.runs["b"][1]}
    apart = judge(results, "rsum")
    assert apart.untested == [("a", "b")]
    assert "It shares too few seeds with b: that was not tested." in verdict(results, apart, "")
    results.runs["b"] = {
        0: results.runs["a"][0]
    }  # one shared seed among several: over images alone is another question
    assert [set(pair) for pair in judge(results, "rsum").untested] == [{"a", "b"}]


def test_nothing_finished_and_failures_are_said(tmp_path):
    nothing = Results([], {}, [Failure("a s0", "why")])
    assert "nothing to compare" in verdict(nothing, judge(nothing, "rsum"), "")
    results = made_results(tmp_path, {"a": 6.0, "b": 5.0}, failures=[Failure("c s1", "why")])
    assert "1 run failed and is not in these numbers: c s1." in verdict(results, judge(results, "rsum"), "")
    trial = Results(results.contestants, results.runs, [Failure("c", "why", trial=True)])
    assert "failed" not in verdict(trial, judge(trial, "rsum"), "")


def test_what_was_equal_is_said():
    steps = {"heads": [10, 10]}
    said = fairness_said(steps, [1e-3, 1e-3], tuned=None)
    assert said == "All runs made 10 steps with one learning rate, 0.001, chosen by no result."
    tuned = fairness_said(steps, [1e-3, 3e-3], tuned=((0.3, 1.0), [1e-3, 1e-3]))
    assert "chosen on validation out of the same multiples (0.3, 1) of 0.001" in tuned
    assert "a seed that is not reported" in tuned
    assert "its row or recipe names" in fairness_said(steps, [1.0], tuned=((0.3, 1.0), [1e-3, 1e-2]))
    assert "models keep their own recipes" in fairness_said({"a": [5, 5], "b": [6]}, [1.0], tuned=None)
    assert "did not make the same number of steps" in fairness_said({"a": [5, 6]}, [1.0], tuned=None)


def test_level_contestants_and_a_single_one(tmp_path):
    results = made_results(tmp_path / "two", {"a": 6.0, "b": 6.0})
    said = verdict(results, judge(results, "rsum"), "")
    assert said.startswith("a and b share the highest rsum")
    assert "leads" not in said
    single = made_results(tmp_path / "one", {"a": 6.0})
    assert "there is nothing to compare it with" in verdict(single, judge(single, "rsum"), "")


def test_noise_alone_is_seldom_called_real(tmp_path):
    """Six equal contestants, many times: at most one family of twenty may hold a false find."""
    from tercet.evaluation.statistics import compare_runs, holm

    random = np.random.default_rng(0)
    false = 0
    for _ in range(60):
        seeds = random.standard_normal((6, 3, 1)) * 2
        images = random.standard_normal((6, 1, 60)) * 20
        values = seeds + images + random.standard_normal((6, 3, 60)) * 20
        p = [compare_runs(values[i], values[j]).p for i in range(6) for j in range(i)]
        false += min(holm(p)) < 0.05
    assert false <= 8
