"""Names on the command line become rows of the table, or an error before any training."""

import pytest

from tercet.comparison.contestants import contestants_of, parse
from tercet.comparison.settings import DEFAULT_OBJECTIVES, settings_of
from tercet.objectives.catalogue import CATALOGUE


def names(**settings):
    return [contestant.name for contestant in contestants_of(settings_of(settings))]


def test_the_default_the_catalogue_and_the_grid():
    assert names() == list(DEFAULT_OBJECTIVES)
    assert names(objectives="all") == list(CATALOGUE)
    assert names(objectives=("all", "nt-xent:temperature=0.5")) == [*CATALOGUE, "nt-xent temperature=0.5"]
    grid = names(grid="goal")
    assert len(grid) == 15
    assert grid[:3] == ["con/con", "nca/con", "cir/con"]


def test_the_studies_of_aoq_give_the_table_to_those_that_take_it():
    found = contestants_of(settings_of({"grid": "aoq-batch", "mined": "a/table"}))
    assert [each.name for each in found] == ["triplet-sh", "triplet-sh batch_size=192", "aoq"]
    assert [each.train.get("mined") for each in found] == [None, None, "a/table"]
    assert len(names(grid="aoq-penalties", mined="t")) == 5
    assert "aoq mined_draw=normal" in names(grid="aoq-draws", mined="t")
    assert names(grid="aoq", mined="t") == ["triplet-sh", "off-tri", "off-quin", "aoq"]
    asked = {"round": 2, "mine_every": 1}
    found = contestants_of(settings_of({"grid": "aoq", "mined": "t", "train": asked}))
    assert [each.train for each in found] == [{}, *[{"mined": "t", **asked}] * 3]
    asked = {"mined_as_candidates": True, "mined_top": 9}
    found = contestants_of(settings_of({"objectives": ("nt-xent", "aoq"), "mined": "t", "train": asked}))
    assert found[0].train == {"mined": "t", **asked}
    assert found[1].train == {"mined": "t", "mined_top": 9}
    with pytest.raises(ValueError, match="off-tri needs --mined"):
        names(grid="aoq")


def test_settings_of_the_objective_and_of_training_are_told_apart():
    assert parse("triplet-sh:margin=0.1,learning_rate=3e-4") == ("triplet-sh", {"margin": 0.1}, {"learning_rate": 3e-4})
    assert parse("con+sig:reading=code") == ("con/sig", {"reading": "code"}, {})


def test_models_and_varied_settings_are_crossed():
    found = contestants_of(
        settings_of({"objectives": "nt-xent", "models": ("heads", "vsepp"), "vary": {"batch_size": "32,64"}})
    )
    assert [each.name for each in found] == [
        f"{model} nt-xent batch_size={size}" for model in ("heads", "vsepp") for size in (32, 64)
    ]
    assert found[3].train == {"batch_size": 64}
    assert found[3].model == "vsepp"


def test_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def own(S, positives, scale=1.0):\n    return -positives.to(S.dtype)\n")
    assert names(objectives=f"{file}:own") == [f"{file}:own"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objectives": "tripet"}, "did you mean 'triplet'"),
        ({"objectives": ("cir/lin", "cir+lin")}, "cir/lin more than once"),
        ({"objectives": "nt-xent:temprature=0.1"}, "did you mean 'temperature'"),
        ({"objectives": "nt-xent:temperature=-1.0"}, "temperature"),
        ({"objectives": "nt-xent:seed=3"}, "seed is a setting of the comparison"),
        ({"objectives": "nt-xent:train_split=val"}, "same for all runs"),
        ({"vary": {"resume": "true,false"}}, "same for all runs"),
        ({"vary": {"batch_size": []}}, "needs at least one value"),
        ({"epochs": 2, "train": {"epochs": 3}}, "one is enough"),
        ({"vary": {"batchsize": "3,4"}}, "did you mean 'batch_size'"),
        ({"train": {"objective": "triplet"}}, "setting of the comparison"),
        ({"seeds": 0}, "--seeds must be a whole number of at least 1"),
        ({"objectives": ()}, "--objectives needs at least one"),
        ({"tune_factors": (1.0, -2.0)}, "--tune-factors must be above 0"),
        ({"workers": True}, "--workers"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        contestants_of(settings_of(settings))
