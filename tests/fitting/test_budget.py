"""The plan: it fits into the budget where anything does, and a larger budget never gives less."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tercet.fitting.budget import (
    ENCODING_SHARE,
    FEATURES,
    LEVELS,
    MIN_IMAGES,
    TRAINING_SHARE,
    WHOLE,
    Measured,
    Plan,
    make_plan,
)

OBJECTIVES = ("con/sig", "nt-xent", "triplet-sh")
FAST = Measured(image=0.03, caption=0.004, heads_step=0.005)
IMAGES, CAPTIONS = {"train": 800, "val": 100, "test": 100}, {"train": 4000, "val": 500, "test": 500}

seconds = st.floats(1e-4, 10)
measurements = st.builds(Measured, seconds, seconds, seconds, st.none() | seconds)
sizes = st.fixed_dictionaries(
    {"train": st.integers(6, 10**6), "val": st.integers(2, 10**4), "test": st.integers(2, 10**4)}
)


def plan_of(minutes, measured=FAST, images=IMAGES, captions=CAPTIONS, **given):
    return make_plan(minutes, measured, images, captions, OBJECTIVES, **{"encodes": True, "indexes": True} | given)


def work(plan: Plan) -> tuple:
    return len(plan.objectives), plan.seeds, plan.tuned, plan.epochs


@given(st.floats(0.1, 1000), measurements, sizes, st.booleans(), st.booleans())
def test_it_fits_unless_nothing_does(minutes, measured, images, encodes, indexes):
    captions = {name: 5 * count for name, count in images.items()}
    plan = plan_of(minutes, measured, images, captions, encodes=encodes, indexes=indexes)
    spent = {"features": 0.0, "index": 0.0} | dict(plan.seconds)
    assert all(
        plan.images[name] == count or plan.images[name] >= min(count, MIN_IMAGES) for name, count in images.items()
    )
    smallest = any(plan.images[name] == min(count, MIN_IMAGES) for name, count in images.items())
    assert spent["features"] + spent["index"] <= ENCODING_SHARE * 60 * minutes + 1 or smallest or plan.mode == WHOLE
    left = 60 * minutes - spent["index"] - (spent["features"] if plan.mode == FEATURES else 0)
    last = LEVELS[-1]
    assert plan.seconds["training"] <= TRAINING_SHARE * left + 1 or work(plan)[:3] == (
        last.objectives,
        last.seeds,
        last.tuned,
    )
    assert plan.batch_size * 2 <= max(4, captions["train"])
    assert (plan.mode == WHOLE) <= (measured.whole_step is not None)
    assert Plan(**json.loads(json.dumps(plan.document()))).lines() == plan.lines()


def test_more_time_gives_more():
    plans = [plan_of(minutes) for minutes in (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)]
    trained = [sum(plan.images.values()) for plan in plans]
    assert trained == sorted(trained)
    assert trained[-1] == 1000
    runs = [len(plan.objectives) * (plan.seeds + 7 * plan.tuned) for plan in plans]
    assert runs == sorted(runs)
    assert (len(plans[-1].objectives), plans[-1].seeds, plans[-1].tuned) == (3, 3, True)
    assert plans[0].reduced
    assert "of 1,000, which would take too long" in plans[0].lines()[0]


def test_a_model_is_fine_tuned_only_if_the_budget_allows_it():
    with_model = FAST._replace(whole_step=2.0)
    assert plan_of(60.0, with_model).mode == WHOLE
    assert plan_of(2.0, with_model).mode == FEATURES
    assert plan_of(60.0, FAST).mode == FEATURES
