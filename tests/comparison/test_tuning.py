"""Which values tuning tries, and how runs are shortened; a function of the value stands for training."""

import json
import math

import pytest

from tercet.comparison.plan import PlannedRun, Variant
from tercet.comparison.settings import CompareSettings
from tercet.comparison.tuning import (
    FINAL_SEED,
    SCREENING_SEED,
    own_constant,
    tune,
    tuning_note,
    tuning_table,
    with_epochs,
)
from tercet.training.settings import TrainSettings, train_settings


def planned(objective="nt-xent", **settings):
    return PlannedRun(
        Variant(objective, objective), train_settings({"objective": objective, "data": "scenes"} | settings)
    )


class Curve:
    """Executes trials: validation is a function of their settings. Remembers the trials."""

    def __init__(self, folder, function):
        self.folder, self.function, self.trials = folder, function, []

    def __call__(self, trials):
        folders = {}
        for trial in trials:
            self.trials.append(trial)
            value = self.function(trial.settings)
            if value is not None:
                place = self.folder / trial.label.replace("/", "+")
                place.mkdir()
                line = {"split": "validation", "epoch": 1, "step": 1, "rsum": value}
                (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
                folders[trial.label] = place
        return folders


def peak(best):
    return lambda settings: 100 - 10 * math.log10(settings.learning_rate / best) ** 2


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (1e-3, {3e-4, 1e-3, 3e-3, 1.73e-3, 1.32e-3}),  # inside: closer to the best
        (1e-1, {3e-4, 1e-3, 3e-3, 9e-3, 2.7e-2}),  # the upper end wins twice
        (1e-6, {3e-4, 1e-3, 3e-3, 9e-5, 2.7e-5}),
    ],
)
def test_the_range_widens_while_an_end_wins(tmp_path, best, tried):
    curve = Curve(tmp_path, peak(best))
    (search,) = tune({"a": planned(learning_rate=1e-3)}, CompareSettings(), curve)["a"]
    assert set(search.screening) == tried
    assert search.chosen == max(search.final, key=search.final.__getitem__)
    assert search.at_end == (best != 1e-3)


def test_the_final_decides_and_every_variant_gets_the_same_budget(tmp_path):
    def better_when_longer(settings):  # the second best of the short runs wins the longer ones
        if settings.seed == FINAL_SEED:
            return -math.log(settings.learning_rate)
        return {3e-4: 10.0, 1e-3: 30.0, 3e-3: 20.0}.get(settings.learning_rate, 0.0)

    curve = Curve(tmp_path, better_when_longer)
    plans = {"nt-xent": planned(epochs=12), "triplet": planned("triplet", epochs=12)}
    tuned = tune(plans, CompareSettings(), curve)
    assert [search.chosen for (search,) in tuned.values()] == [1e-3, 1e-3]
    seeds = {name: [t.settings.seed for t in curve.trials if t.variant.name == name] for name in plans}
    assert seeds["nt-xent"] == seeds["triplet"] == [SCREENING_SEED] * 5 + [FINAL_SEED] * 2
    assert {t.settings.epochs for t in curve.trials if t.settings.seed == SCREENING_SEED} == {2}
    assert {t.settings.epochs for t in curve.trials if t.settings.seed == FINAL_SEED} == {6}
    assert "same budget of 7 short runs" in tuning_note(tuned)


def test_failed_trials_lose_and_a_variant_without_any_is_reported_untuned(tmp_path):
    fails = Curve(
        tmp_path, lambda settings: None if settings.learning_rate > 5e-4 or settings.objective == "triplet" else 1.0
    )
    tuned = tune({"nt-xent": planned(), "triplet": planned("triplet")}, CompareSettings(), fails)
    assert tuned["nt-xent"][0].chosen <= 3e-4
    assert tuned["triplet"] == []
    assert "failed" in tuning_table(tuned).markdown()
    assert "-inf" not in json.dumps(tuned["nt-xent"][0].document()).lower()


def test_full_adds_the_own_constant_and_the_epochs(tmp_path):
    def function(settings):
        temperature = settings.objective_settings.get("temperature", 0.1)
        return 100 - abs(math.log(temperature / 0.05)) - abs(math.log(settings.epochs / 24)) - settings.learning_rate

    curve = Curve(tmp_path, function)
    rate, constant, epochs = tune({"a": planned(epochs=12)}, CompareSettings(tune="full"), curve)["a"]
    assert (rate.setting, constant.setting, epochs.setting) == ("learning_rate", "temperature", "epochs")
    assert constant.chosen == 0.05
    assert epochs.chosen == 24
    assert "own constant and number of epochs" in tuning_note({"a": [rate, constant, epochs]})
    assert "a: temperature" in tuning_table({"a": [rate, constant, epochs]}).markdown()


@pytest.mark.parametrize(
    ("objective", "constant"),
    [
        ("nt-xent", "temperature"),
        ("smooth-ap", "temperature"),
        ("sigmoid", "temperature"),
        ("triplet", "margin"),
        ("triplet-sh", "margin"),
        ("con/sig", "margin"),
        ("nca/lin", "tau"),
        ("cir/sig-ms", "tau"),
    ],
)
def test_the_constant_of_each_objective(objective, constant):
    assert own_constant(planned(objective)) == constant


def test_a_shortened_run_has_the_whole_schedule():
    settings = TrainSettings(epochs=30, warmup_epochs=3.0, schedule="steps", decay_epochs=(15, 20), unfreeze_epoch=15)
    short = with_epochs(settings, 10)
    assert (short.epochs, short.warmup_epochs, short.decay_epochs, short.unfreeze_epoch) == (10, 1.0, (5, 7), 5)
    assert with_epochs(short, 30).decay_epochs == (15, 21)
