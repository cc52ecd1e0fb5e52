"""The verdict of a comparison, what voids a claim, the next step and the paragraph on methods."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tercet.comparison.family import Looks
from tercet.comparison.family import significance as significance_of_values
from tercet.comparison.results import Failure, Results, significance_of
from tercet.comparison.summary import (
    Caution,
    cautions,
    fairness_note,
    methods,
    next_step,
    power_note,
    statement,
    verdict,
)
from tercet.comparison.tuning import Search
from tests.comparison.written_results import make_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("runs"), {"good": 6.0, "same": 6.0, "near": 5.9, "bad": 1.0}, seeds=4)


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    """One that is better than both others."""
    return make_results(tmp_path_factory.mktemp("runs"), {"mid": 3.0, "best": 9.0, "bad": 1.0}, seeds=3)


def say(results, metric="rsum", **settings):
    significance = significance_of(
        results, metric, **{key: settings.pop(key) for key in ("baseline", "rope", "share") if key in settings}
    )
    return verdict(results, significance, metric, **settings)


def test_every_pair_is_tested_once_and_corrected_together(results):
    found = significance_of(results, "rsum")
    assert len(found.pairs) == 6
    assert all(pair.p >= pair.test.p for pair in found.pairs)
    assert found.pair("good", "bad").significant
    assert found.pair("bad", "good") is found.pair("good", "bad")
    assert found.pair("good", "same").test.identical
    assert not found.pair("good", "near").significant
    assert found.means["near"] == pytest.approx(results.mean("near", "rsum"))
    assert found.stds["near"] == pytest.approx(results.std("near", "rsum"))


def test_same_p_values_on_every_call(results):
    assert significance_of(results, "t2i_r1").to_dict() == significance_of(results, "t2i_r1").to_dict()


def test_a_clear_best_is_recommended_with_its_certainty_and_cost(clear):
    text = say(clear, fairness="All equal.", tuned=True)
    assert re.match(r"Use best: rsum [\d.]+ ± [\d.]+ \(mean ± std over 3 seeds; 200 test images\)\.", text)
    assert "It is better than all 2 others, by" in text
    assert (
        "p < 0.05 over seeds and images, Holm-corrected for 3 comparisons; the closest is mid, 95 % interval +" in text
    )
    assert "A run of best takes 1.0 s" in text
    assert text.endswith("All equal.")
    assert "What may change this" not in text
    assert "a learning rate tuned for each objective" in say(clear, tuned=False)


def test_several_possible_bests_are_named_together(results):
    text = say(results)
    assert text.startswith("Use any of good, same and near: rsum")
    assert "which is best is not decided" in text
    assert "bad is worse than at least one of them (p < 0.05" in text
    assert re.search(r"leads near by [\d.]+ points \(95 % interval -[\d.]+ to \+[\d.]+\)", text)
    assert re.search(r"4 seeds detect a difference of [\d.]+ points with 80 % power", text)
    assert "better than near" not in text


def test_equal_results_are_called_equal(tmp_path):
    text = say(make_results(tmp_path, {"a": 6.0, "b": 6.0}))
    assert text.startswith("Use any of a and b: rsum")
    assert "they are the same on every image and seed" in text
    assert "leads" not in text


def test_equivalence_is_a_finding(results):
    text = say(results, rope=300.0)
    assert "they are within 300 points of each other" in text
    assert "not decided" not in text


def test_against_a_baseline(clear, results):
    text = say(clear, baseline="mid")
    assert text.startswith("Use best: rsum")
    assert "Better than the baseline mid, by" in text
    assert "Holm-corrected for 2 comparisons" in text
    assert "Worse, by" in text
    assert say(clear, baseline="best").startswith("Stay with best: rsum")
    assert "None is better than the baseline." in say(clear, baseline="best")
    assert "Not significantly different from it: near." in say(results, baseline="good")
    assert "The same as the baseline on every image and seed: same." in say(results, baseline="good")
    assert "Within 300 points of it: near." in say(results, baseline="good", rope=300.0)


def test_one_seed_speaks_of_these_weights_only(tmp_path):
    """Words must not be stronger than those of several seeds."""
    text = say(make_results(tmp_path, {"good": 6.0, "bad": 1.0}, seeds=1))
    assert text.startswith("On these very weights good has the highest rsum")
    assert "They rank these images better than those of bad (p < 0.05 over images)" in text
    assert "One seed says nothing about training" in text
    assert "Use" not in text
    assert "is better" not in text


def test_only_possible_numbers(tmp_path):
    """Two seeds and twelve images detect nothing that rsum can have, and intervals end at 600."""
    results = make_results(tmp_path, {"a": 6.0, "b": 5.0}, seeds=2, images=12)
    found = significance_of(results, "rsum")
    (pair,) = found.pairs
    assert pair.high <= 600
    huge = replace(pair, test=replace(pair.test, spread=replace(pair.test.spread, seed=300.0**2)))
    text = power_note(huge, found, "rsum")
    assert "2 seeds are too few to detect any difference" in text
    assert all(float(number) <= 1000 for number in re.findall(r"[\d.]+\d", text.replace(",", "")))
    assert "more than 1,000 seeds" in power_note(replace(huge, difference=pair.difference), found, "rsum") or (
        "no number of seeds" in text or "about" in text
    )


def test_only_shared_seeds_are_compared(tmp_path):
    results = make_results(tmp_path, {"a": 6.0, "b": 5.0, "c": 4.0}, seeds=3)
    del results.runs["b"][0]
    results.runs["c"] = {}
    found = significance_of(results, "rsum")
    assert [({pair.first, pair.second}, pair.test.seeds) for pair in found.pairs] == [({"a", "b"}, 2)]
    results.runs["b"] = {9: results.runs["b"][1]}
    assert [set(pair) for pair in significance_of(results, "rsum").untested] == [{"a", "b"}]
    assert "shares too few seeds with" in say(results)
    # One shared seed is too few if a variant has several: a test over images alone is another hypothesis.
    results.runs["b"] = {0: results.runs["a"][0]}
    assert [set(pair) for pair in significance_of(results, "rsum").untested] == [{"a", "b"}]


def test_no_finished_run_and_failures_are_reported(tmp_path):
    nothing = Results([], {}, [Failure("a s0", "why")])
    assert "nothing to compare" in say(nothing)
    assert next_step(nothing, significance_of(nothing, "rsum"), (), 6) == (None, "")
    results = make_results(tmp_path, {"a": 6.0, "b": 5.0}, failures=[Failure("c s1", "why")])
    assert "1 run failed and is not included: c s1." in say(results)
    trial = Results(results.variants, results.runs, [Failure("c", "why", trial=True)])
    assert "failed" not in say(trial)
    # A baseline without a finished run: all pairs are tested.
    assert significance_of(results, "rsum", baseline="c").baseline is None


def test_a_single_variant(tmp_path):
    assert "there is nothing to compare it with" in say(make_results(tmp_path, {"a": 6.0}))


CURVES = {
    "rising": [100.0, 150.0, 200.0, 240.0, 280.0, 320.0],
    "over-fitted": [300.0, 310.0, 320.0, 300.0, 280.0, 270.0],
    None: [100.0, 200.0, 290.0, 300.0, 302.0, 303.0],
}


@pytest.mark.parametrize(("kind", "curve"), CURVES.items())
def test_the_record_of_a_run_tells_whether_it_was_trained_to_its_end(tmp_path, kind, curve):
    results = make_results(tmp_path, {"a": 6.0, "b": 1.0}, seeds=2, curves={"a": curve})
    assert [(caution.name, caution.kind) for caution in cautions(results, {})] == ([("a", kind)] if kind else [])


def test_a_row_that_still_rises_carries_no_claim(tmp_path):
    results = make_results(tmp_path, {"a": 6.0, "b": 2.0, "c": 1.0}, seeds=3, curves={"a": CURVES["rising"]})
    found = cautions(results, {})
    text = say(results, found=found)
    assert text.startswith("Use b: rsum")
    assert "better than c" in text
    assert "better than a" not in text
    assert "No claim is made about a (+25 % in the last third of the epochs): validation was still rising" in text
    assert "What may change this: a learning rate tuned for each objective and more epochs" in text
    folder, command = next_step(results, significance_of(results, "rsum"), found, 6)
    assert folder in [run.folder for run in results.runs["b"].values()]
    assert "--epochs 12" in command
    every = [Caution(name, "rising", "by 9 %") for name in "abc"]
    assert say(results, found=every).startswith("No claim: no objective was trained to its end.")


def test_one_validation_shows_no_trend(tmp_path):
    results = make_results(tmp_path, {"a": 6.0, "b": 2.0}, seeds=3, curves={"a": [300.0], "b": [250.0]})
    found = cautions(results, {})
    text = say(results, found=found)
    assert text.startswith("No claim: no objective was trained to its end.")
    assert "a (validated once) and b (validated once): validation may still have been rising" in text
    assert "and more epochs" in text
    _, command = next_step(results, significance_of(results, "rsum"), found, 1)
    assert command == "the same command with --epochs 2, because one validation does not show a trend"


def test_chance_level_and_rates_at_the_end_of_the_search(tmp_path):
    results = make_results(tmp_path, {"a": 6.0, "b": 1.0}, seeds=2, images=200, chance=("b",))
    search = Search("learning_rate", 1e-3, {3e-4: 200.0, 1e-3: 210.0, 3e-3: 220.0}, {}, 3e-3)
    found = cautions(results, {"a": [search], "b": [replace(search, chosen=1e-3)]})
    assert [(caution.name, caution.kind) for caution in found] == [("a", "rate at the end"), ("b", "at chance level")]
    text = say(results, found=found, tuned=True)
    assert "The learning rate of a (0.003, the largest of 3) is at the end of the search." in text
    assert "No claim is made about b" in text
    assert "learning rates beyond the end of the search" in text


def test_the_next_step_is_what_tells_most(clear, results, tmp_path):
    folder, command = next_step(clear, significance_of(clear, "rsum"), (), 6)
    assert command == f"tercet doctor {folder}"
    assert folder in [run.folder for run in clear.runs["best"].values()]
    assert "--until-decided" in next_step(results, significance_of(results, "rsum"), (), 6)[1]
    random, names = np.random.default_rng(0), results.names()
    shared = 100 * random.standard_normal((len(names), 1, 50))  # images vary, seeds hardly do: seeds decide nothing
    too_few_images = significance_of_values(
        {name: shared[i] + 0.01 * random.standard_normal((3, 50)) for i, name in enumerate(names)}
    )
    assert not too_few_images.decided
    assert "tercet doctor" in next_step(results, too_few_images, (), 6)[1]
    one = make_results(tmp_path, {"a": 6.0, "b": 5.0}, seeds=1)
    assert "--seeds 3" in next_step(one, significance_of(one, "rsum"), (), 6)[1]


def test_the_best_run_is_chosen_on_validation(tmp_path):
    curve = CURVES[None]
    results = make_results(tmp_path, {"a": 9.0, "b": 1.0}, seeds=3, curves={"a": curve}, better_seed=1)
    folder, _ = next_step(results, significance_of(results, "rsum"), (), None)
    assert folder == results.runs["a"][1].folder


def test_seeds_until_decided_say_what_they_cost(clear):
    looks = Looks((3, 5, 7, 10), 3, 9, 200.0)
    text = say(clear, share=0.25, looks=looks)
    assert "Seeds until decided: decided at 3 seeds, after 9 runs and 3 minutes of training" in text
    assert "tests were planned at 3, 5, 7 and 10 seeds, each with 1/4 of the error rate of 0.05" in text


def test_steps_and_learning_rates_are_reported():
    steps = {"heads": [10, 10]}
    text = fairness_note(steps, [1e-3, 1e-3], not_tuned="--no-tune")
    assert text == "All runs were trained for 10 steps with the same learning rate, 0.001 (not tuned: --no-tune)."
    assert fairness_note(steps, [1e-3, 3e-3], not_tuned=None) == "All runs were trained for 10 steps."
    assert "each model has its own recipe" in fairness_note({"a": [5, 5], "b": [6]}, [1.0], not_tuned=None)
    assert "different numbers of steps" in fairness_note({"a": [5, 6]}, [1.0], not_tuned=None)


def test_methods_are_those_of_these_runs(clear, tmp_path):
    text = methods(clear, significance_of(clear, "rsum", rope=5.0), "rsum", data="photos.csv", fairness="All equal.")
    assert "We trained heads on photos.csv with 3 objectives (best, mid, bad) and 3 seeds each." in text
    assert "All equal." in text
    assert "Holm, 1979) for 3 comparisons" in text
    assert "at most 4 added degrees of freedom" in text
    assert "within 5 points count as equivalent" in text
    one = make_results(tmp_path, {"a": 6.0, "b": 5.0}, seeds=1)
    assert "these trained weights only" in methods(one, significance_of(one, "rsum"), "rsum", data="x", fairness="")


def test_a_statement_from_values_alone(clear):
    text = statement(significance_of(clear, "rsum"), "rsum")
    assert text.startswith("Use best: rsum")
    assert "200 images" in text
    assert "takes" not in text


@pytest.mark.parametrize("metric", ["rsum", "t2i_mrr"])
def test_decimal_places_fit_the_metric(clear, metric):
    value = significance_of(clear, metric).means["best"]
    shown = f"{metric} {value:.1f}" if metric == "rsum" else f"{metric} {value:.3f}"
    assert shown in say(clear, metric)


def test_equal_runs_have_no_spurious_winner():
    """Six equal variants: hardly ever a difference."""
    from tercet.comparison.family import significance

    random = np.random.default_rng(0)
    false = 0
    for _ in range(10):
        values = random.standard_normal((6, 3, 1)) * 2 + random.standard_normal((6, 1, 60)) * 20
        values = values + random.standard_normal((6, 3, 60)) * 20
        false += any(pair.significant for pair in significance(dict(zip("abcdef", values, strict=True))).pairs)
    assert false <= 2
