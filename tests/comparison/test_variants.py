"""Objective names become rows of the table, or an error before any training."""

import pytest

from tercet.comparison.plan import make_variants, parse_variant
from tercet.comparison.settings import DEFAULT_OBJECTIVES, make_settings
from tercet.objectives.registry import OBJECTIVES


def names(**settings):
    return [variant.name for variant in make_variants(make_settings(settings))]


def test_the_defaults_all_objectives_and_the_grid():
    assert names() == list(DEFAULT_OBJECTIVES)
    assert names(objectives="all") == list(OBJECTIVES)
    assert names(objectives=("all", "nt-xent:temperature=0.5")) == [*OBJECTIVES, "nt-xent temperature=0.5"]
    grid = names(grid="goal")
    assert len(grid) == 15
    assert grid[:3] == ["con/con", "nca/con", "cir/con"]


def test_aoq_grids_give_the_mined_table_only_to_objectives_that_use_it():
    variants = make_variants(make_settings({"grid": "aoq-batch", "mined": "a/table"}))
    assert [variant.name for variant in variants] == ["triplet-sh", "triplet-sh batch_size=192", "aoq"]
    assert [variant.train.get("mined") for variant in variants] == [None, None, "a/table"]
    assert len(names(grid="aoq-penalties", mined="t")) == 5
    assert "aoq mined_draw=normal" in names(grid="aoq-draws", mined="t")
    assert names(grid="aoq", mined="t") == ["triplet-sh", "off-tri", "off-quin", "aoq"]
    train = {"round": 2, "mine_every": 1}
    variants = make_variants(make_settings({"grid": "aoq", "mined": "t", "train": train}))
    assert [variant.train for variant in variants] == [{}, *[{"mined": "t", **train}] * 3]
    train = {"mined_as_candidates": True, "mined_top": 9}
    variants = make_variants(make_settings({"objectives": ("nt-xent", "aoq"), "mined": "t", "train": train}))
    assert variants[0].train == {"mined": "t", **train}
    assert variants[1].train == {"mined": "t", "mined_top": 9}
    with pytest.raises(ValueError, match="off-tri needs --mined"):
        names(grid="aoq")


def test_settings_of_the_objective_and_of_training_are_separated():
    assert parse_variant("triplet-sh:margin=0.1,learning_rate=3e-4") == (
        "triplet-sh",
        {"margin": 0.1},
        {"learning_rate": 3e-4},
    )
    assert parse_variant("con+sig:reading=code") == ("con/sig", {"reading": "code"}, {})


def test_models_and_sweeps_are_crossed():
    variants = make_variants(
        make_settings({"objectives": "nt-xent", "models": ("heads", "vsepp"), "sweep": {"batch_size": "32,64"}})
    )
    assert [variant.name for variant in variants] == [
        f"{model} nt-xent batch_size={size}" for model in ("heads", "vsepp") for size in (32, 64)
    ]
    assert variants[3].train == {"batch_size": 64}
    assert variants[3].model == "vsepp"


def test_a_custom_objective(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def own(S, positives, scale=1.0):\n    return -positives.to(S.dtype)\n")
    assert names(objectives=f"{file}:own") == [f"{file}:own"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objectives": "tripet"}, "did you mean triplet"),
        ({"objectives": ("cir/lin", "cir+lin")}, "cir/lin more than once"),
        ({"objectives": "nt-xent:temprature=0.1"}, "did you mean temperature"),
        ({"objectives": "nt-xent:temperature=-1.0"}, "temperature"),
        ({"objectives": "nt-xent:seed=3"}, "seed is a setting of the comparison"),
        ({"objectives": "nt-xent:train_split=val"}, "same for all runs"),
        ({"sweep": {"resume": "true,false"}}, "same for all runs"),
        ({"sweep": {"batch_size": []}}, "needs at least one value"),
        ({"epochs": 2, "train": {"epochs": 3}}, "use one of them"),
        ({"sweep": {"batchsize": "3,4"}}, "did you mean batch_size"),
        ({"train": {"objective": "triplet"}}, "setting of the comparison"),
        ({"seeds": 0}, "--seeds must be a whole number of at least 1"),
        ({"objectives": ()}, "--objectives needs at least one"),
        ({"tune_factors": (1.0, -2.0)}, "--tune-factors must be finite and above 0"),
        ({"processes": True}, "--processes"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        make_variants(make_settings(settings))
