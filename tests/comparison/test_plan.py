"""Every run of a comparison makes the same number of steps."""

import pytest

from tercet.comparison.contestants import contestants_of
from tercet.comparison.plan import common_settings, make_all_ready, plan_of
from tercet.comparison.settings import settings_of
from tercet.comparison.tuning import trials
from tercet.training.loop import Loop
from tercet.training.report import Report
from tercet.training.run import chosen_device, resolve


def planned(tmp_path, **given):
    settings = settings_of({"data": "scenes:300", "runs": tmp_path, **given})
    contestants = contestants_of(settings)
    common = common_settings(settings, settings.data)
    readies = make_all_ready(contestants, common)
    return {each.name: plan_of(each, 0, common, readies) for each in contestants}, readies


def loop_of(plan, ready, tmp_path):
    main, _, _ = resolve(plan.settings)
    return Loop(
        ready.model(plan.settings), ready.train, (main, main), plan.settings, tmp_path, Report(), chosen_device("cpu")
    )


def test_other_batches_make_as_many_steps(tmp_path):
    objectives = ("triplet-sh", "smooth-ap", "nt-xent:captions_each=2", "nt-xent:batch_size=50", "nt-xent:accumulate=2")
    plans, readies = planned(tmp_path, objectives=objectives, epochs=3)
    loops = {name: loop_of(plan, readies["heads"], tmp_path) for name, plan in plans.items()}
    assert {loop.total for loop in loops.values()} == {3 * (300 * 5 // 128)}
    assert plans["smooth-ap"].settings.captions_each == 5
    assert plans["triplet-sh"].settings.epoch_steps is None


def test_an_epoch_of_steps_goes_on_where_the_last_one_ended(tmp_path):
    plans, readies = planned(tmp_path, objectives=("nt-xent:batch_size=100,epoch_steps=4",), epochs=4)
    loop = loop_of(next(iter(plans.values())), readies["heads"], tmp_path)
    made = [meeting for epoch in range(4) for meeting in loop._meetings(epoch)]
    passes = [meeting for number in range(2) for meeting in loop._pass(number)]
    assert len(made) == 16
    assert [each.captions.tolist() for each in made[:15]] == [each.captions.tolist() for each in passes[:15]]
    assert sorted(caption for each in made[:15] for caption in each.captions.tolist()) == list(range(1500))


def test_a_row_may_ask_for_its_own_number_of_captions(tmp_path):
    plans, _ = planned(tmp_path, objectives=("smooth-ap:captions_each=1",))
    assert next(iter(plans.values())).settings.captions_each == 1


def test_every_objective_tries_the_same_multiples_with_an_unreported_seed(tmp_path):
    plans, _ = planned(tmp_path, objectives=("triplet", "nt-xent:learning_rate=0.01"))
    for plan, rates in zip(plans.values(), ([3e-4, 1e-3, 3e-3], [3e-3, 1e-2, 3e-2]), strict=True):
        tried = trials(plan, (0.3, 1.0, 3.0))
        assert [trial.settings.learning_rate for trial in tried] == pytest.approx(rates, rel=1e-12)
        assert {trial.settings.seed for trial in tried} == {1_000_003}
