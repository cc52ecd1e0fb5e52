"""Every run of a comparison is trained for the same number of steps."""

from tercet.comparison.plan import common_settings, make_variants, plan_run, prepare_all
from tercet.comparison.settings import make_settings
from tercet.console import RunProgress
from tercet.training.prepare import resolve
from tercet.training.runtime import select_device
from tercet.training.train import Loop


def make_plans(tmp_path, **overrides):
    settings = make_settings({"data": "scenes:300", "runs": tmp_path, **overrides})
    variants = make_variants(settings)
    common = common_settings(settings, settings.data)
    prepared_datasets = prepare_all(variants, common)
    return {variant.name: plan_run(variant, 0, common, prepared_datasets) for variant in variants}, prepared_datasets


def loop_of(plan, prepared, tmp_path):
    main, _, _ = resolve(plan.settings)
    return Loop(
        prepared.model(plan.settings),
        (prepared.train, None, None),
        (main, main),
        plan.settings,
        tmp_path,
        RunProgress(),
        select_device("cpu"),
    )


def test_other_batch_sizes_take_the_same_number_of_steps(tmp_path):
    objectives = (
        "triplet-sh",
        "smooth-ap",
        "nt-xent:captions_per_image=2",
        "nt-xent:batch_size=50",
        "nt-xent:grad_accum_steps=2",
    )
    plans, prepared_datasets = make_plans(tmp_path, objectives=objectives, epochs=3)
    loops = {name: loop_of(plan, prepared_datasets["heads"], tmp_path) for name, plan in plans.items()}
    assert {loop.total for loop in loops.values()} == {3 * (300 * 5 // 128)}
    assert plans["smooth-ap"].settings.captions_per_image == 5
    assert plans["triplet-sh"].settings.epoch_steps is None


def test_an_epoch_of_steps_continues_after_the_last_batch_of_the_previous_one(tmp_path):
    plans, prepared_datasets = make_plans(tmp_path, objectives=("nt-xent:batch_size=100,epoch_steps=4",), epochs=4)
    loop = loop_of(next(iter(plans.values())), prepared_datasets["heads"], tmp_path)
    batches = [indices for epoch in range(4) for indices in loop.sampler.epoch(epoch)]
    passes = [indices for number in range(2) for indices in loop.sampler.pass_over(number)]
    assert len(batches) == 16
    assert [batch.captions.tolist() for batch in batches[:15]] == [batch.captions.tolist() for batch in passes[:15]]
    assert sorted(caption for batch in batches[:15] for caption in batch.captions.tolist()) == list(range(1500))


def test_a_row_may_set_its_own_captions_per_image(tmp_path):
    plans, _ = make_plans(tmp_path, objectives=("smooth-ap:captions_per_image=1",))
    assert next(iter(plans.values())).settings.captions_per_image == 1
