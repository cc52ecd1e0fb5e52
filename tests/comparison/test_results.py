"""Significance tests between variants, and the summary paragraph."""

import re

import numpy as np
import pytest

from tercet.comparison.results import Failure, Results, pairwise_tests
from tercet.comparison.summary import fairness_note, verdict
from tests.comparison.written_results import make_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("runs"), {"good": 6.0, "same": 6.0, "near": 5.6, "bad": 1.0}, seeds=4)


def test_every_pair_is_tested_once_and_corrected_together(results):
    table = pairwise_tests(results, "rsum")
    assert len(table.pairs) == 6
    assert all(pair.corrected_p >= pair.test.p for pair in table.pairs)
    assert table.pair("good", "bad").significant
    assert table.pair("bad", "good") is table.pair("good", "bad")
    assert table.pair("good", "same").identical
    assert not table.pair("good", "near").significant
    planned = pairwise_tests(results, "rsum", [("bad", "good")])
    assert [(pair.first, pair.second) for pair in planned.pairs] == [("good", "bad")]
    assert planned.pairs[0].corrected_p == planned.pairs[0].test.p


def test_same_p_values_on_every_call(results):
    assert pairwise_tests(results, "t2i_r1") == pairwise_tests(results, "t2i_r1")


def test_the_paragraph_claims_what_the_tests_say(results):
    text = verdict(results, pairwise_tests(results, "rsum"), "All equal.")
    assert text.startswith("good and same tie for the highest rsum")
    assert "good is significantly better than bad, by" in text
    assert "same has the same rsum as good on every image and seed" in text
    assert "good is not significantly better than near" in text
    assert re.search(r"4 seeds detect a difference of [\d.]+ points with 80 % power", text)
    assert text.endswith("All equal.")
    assert not re.search(r"is significantly better than [^.]*near", text)


def test_with_one_seed_training_variance_is_unknown(tmp_path):
    results = make_results(tmp_path, {"good": 6.0, "bad": 1.0}, seeds=1)
    text = verdict(results, pairwise_tests(results, "rsum"), "")
    assert "With one seed the variance of training is unknown" in text
    assert "p < 0.05 over images)" in text


def test_only_shared_seeds_are_compared(tmp_path):
    results = make_results(tmp_path, {"a": 6.0, "b": 5.0, "c": 4.0}, seeds=3)
    del results.runs["b"][0]
    results.runs["c"] = {}
    table = pairwise_tests(results, "rsum")
    assert [(pair.first, pair.second, pair.test.seeds) for pair in table.pairs] == [("a", "b", 2)]
    results.runs["b"] = {9: results.runs["b"][1]}
    disjoint = pairwise_tests(results, "rsum")
    assert disjoint.untested == [("a", "b")]
    assert "a shares too few seeds with b for a significance test." in verdict(results, disjoint, "")
    # One shared seed is too few if a variant has several: a test over images alone is another hypothesis.
    results.runs["b"] = {0: results.runs["a"][0]}
    assert [set(pair) for pair in pairwise_tests(results, "rsum").untested] == [{"a", "b"}]


def test_no_finished_run_and_failures_are_reported(tmp_path):
    nothing = Results([], {}, [Failure("a s0", "why")])
    assert "nothing to compare" in verdict(nothing, pairwise_tests(nothing, "rsum"), "")
    results = make_results(tmp_path, {"a": 6.0, "b": 5.0}, failures=[Failure("c s1", "why")])
    assert "1 run failed and is not included: c s1." in verdict(results, pairwise_tests(results, "rsum"), "")
    trial = Results(results.variants, results.runs, [Failure("c", "why", trial=True)])
    assert "failed" not in verdict(trial, pairwise_tests(trial, "rsum"), "")


def test_steps_and_learning_rates_are_reported():
    steps = {"heads": [10, 10]}
    text = fairness_note(steps, [1e-3, 1e-3], not_tuned="--no-tune")
    assert text == "All runs were trained for 10 steps with the same learning rate, 0.001 (not tuned: --no-tune)."
    assert fairness_note(steps, [1e-3, 3e-3], not_tuned=None) == "All runs were trained for 10 steps."
    assert "each model has its own recipe" in fairness_note({"a": [5, 5], "b": [6]}, [1.0], not_tuned=None)
    assert "different numbers of steps" in fairness_note({"a": [5, 6]}, [1.0], not_tuned=None)


def test_tied_variants_and_a_single_one(tmp_path):
    results = make_results(tmp_path / "two", {"a": 6.0, "b": 6.0})
    text = verdict(results, pairwise_tests(results, "rsum"), "")
    assert text.startswith("a and b tie for the highest rsum")
    assert "leads" not in text
    single = make_results(tmp_path / "one", {"a": 6.0})
    assert "there is nothing to compare it with" in verdict(single, pairwise_tests(single, "rsum"), "")


@pytest.mark.parametrize(("families", "most"), [(10, 4), pytest.param(60, 8, marks=pytest.mark.slow)])
def test_noise_alone_is_seldom_significant(families, most):
    """Six equal variants, many times: at most one family in twenty may contain a false positive."""
    from tercet.evaluation.significance import compare_runs, holm

    random = np.random.default_rng(0)
    false = 0
    for _ in range(families):
        seeds = random.standard_normal((6, 3, 1)) * 2
        images = random.standard_normal((6, 1, 60)) * 20
        values = seeds + images + random.standard_normal((6, 3, 60)) * 20
        p = [compare_runs(values[i], values[j]).p for i in range(6) for j in range(i)]
        false += min(holm(p)) < 0.05
    assert false <= most
