"""Settings: every recipe resolves, what is wrong is refused with the nearest name, and only what matters is hashed."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tyro

from tercet.models.catalogue import PRESETS, SYSTEMS
from tercet.training.config import defaults_for, train_settings
from tercet.training.recipes import RECIPES
from tercet.training.schedule import ramp, schedule
from tercet.training.settings import CONDUCT, KNOWN, TrainSettings, identity_of, named_values


def test_every_model_has_a_recipe_and_every_recipe_a_model():
    assert set(RECIPES) == {*SYSTEMS, *PRESETS}
    for name in RECIPES:
        assert train_settings({"model": name}).model == name


def test_a_recipe_says_what_its_paper_says():
    vsepp, infinity = train_settings({"model": "vsepp-f30k"}), train_settings({"model": "vse-infinity-grid"})
    assert (vsepp.epochs, vsepp.learning_rate, vsepp.decay_epochs, vsepp.clip) == (30, 2e-4, (15,), 2.0)
    assert (vsepp.optimizer, vsepp.weight_decay, vsepp.positives) == ("adam", 0.0, "diagonal")
    assert (infinity.first_objective, infinity.first_epochs, infinity.thaw_epoch) == ("triplet", 1, 1)
    assert infinity.part_rates == {"captions.bert": 0.1, "backbone": 0.01}
    plain, smooth = (train_settings({"model": f"vsepp-study{end}"}) for end in ("", "-smooth-ap"))
    assert smooth.captions_each == 5
    assert smooth.epochs == 5 * plain.epochs  # an epoch over images is a fifth of one over captions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 3}, "did you mean epochs"),
        ({"epochs": 0}, "--epochs must be a whole number of at least 1"),
        ({"epochs": 1.5}, "--epochs must be a whole number"),
        ({"clip": 0.0}, "--clip must be above 0"),
        ({"learning_rate": -1.0}, "--learning-rate must be a number of at least 0"),
        ({"positives": "diagonal", "captions_each": 5}, "does not go with --captions-each"),
        ({"decay_epochs": (3,)}, "belong to --schedule steps"),
        ({"decay_epochs": (3, 3), "schedule": "steps"}, "must ascend"),
        ({"grad_cache": 8, "caption_weight": 1.0}, "caption decoder"),
        ({"drop_words": 1.0}, "--drop-words must be a share"),
        ({"part_rates": {"image_head": -1}}, "--part-rates image_head must be a number of at least 0"),
        ({"decay": float("nan")}, "--decay must be above 0"),
        ({"validation_split": "test"}, "test never chooses"),
        ({"learning_rate": "fast"}, "--learning-rate must be a number, got 'fast'"),
        ({"seed": 1.5}, "--seed must be a whole number, got 1.5"),
        ({"seed": 2**64}, "--seed must be below"),
        ({"resume": "no"}, "--resume must be true or false, got 'no'"),
        ({"frozen": "image_head"}, "--frozen must be a list, got 'image_head'"),
        ({"decay_epochs": ["a"]}, "--decay-epochs must be a list"),
        ({"model": None}, "--model must be text, got None"),
        ({"model_settings": None}, "--model-settings must be settings by name"),
        ({"captions_each": True}, "--captions-each must be a whole number or None, got True"),
        ({"optimizer": "sgd"}, "--optimizer must be adamw, adam, got 'sgd'"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_wrong_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        train_settings(given)


def test_a_file_of_settings_gives_way_to_what_is_named_beside_it(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"epochs": 7, "model": "vsepp", "batch_size": 64}))
    settings = train_settings({"config": file, "epochs": 3})
    assert (settings.epochs, settings.batch_size, settings.model, settings.optimizer) == (3, 64, "vsepp", "adam")
    (tmp_path / "mine.yaml").write_text("epochs: 9\nmodel_settings: {joint_dim: 8}\n")
    assert train_settings({"config": tmp_path / "mine.yaml"}).model_settings == {"joint_dim": 8}
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"bad.json: expected settings by name"):
        train_settings({"config": tmp_path / "bad.json"})
    with pytest.raises(ValueError, match="cannot be read"):
        train_settings({"config": tmp_path / "none.json"})


def test_a_command_line_starts_from_the_recipe_of_its_model():
    arguments = ["--model", "vse-infinity-butd", "--epochs", "3", "--model-settings", "joint_dim=32", "kind=mlp"]
    settings = tyro.cli(TrainSettings, args=arguments, default=defaults_for(arguments))
    assert (settings.epochs, settings.optimizer, settings.first_objective) == (3, "adamw", "triplet")
    assert settings.model_settings == {"joint_dim": 32, "kind": "mlp"}
    assert defaults_for(["--model=vsepp"]).optimizer == "adam"
    with pytest.raises(ValueError, match="expected name=value"):
        named_values(["joint_dim"])


def test_how_a_run_is_carried_out_does_not_make_it_another(tmp_path):
    one = identity_of(TrainSettings())
    other = identity_of(TrainSettings(runs=tmp_path, workers=3, checkpoint_every=7, device="cpu"))
    assert one == other
    assert not set(one) & set(CONDUCT)
    assert identity_of(TrainSettings(seed=1)) != one
    json.dumps(one)


def test_schedules():
    cosine = schedule(train_settings({"epochs": 3, "warm_up_epochs": 1}), 4)
    assert [cosine(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert cosine(8) == pytest.approx(0.5)
    assert cosine(12) == pytest.approx(0.0)
    steps = schedule(train_settings({"schedule": "steps", "decay_epochs": (1, 2), "warm_up_epochs": 0}), 4)
    assert [steps(step) for step in (0, 3, 4, 7, 8)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    constant = schedule(train_settings({"schedule": "constant", "warm_up_epochs": 0.5}), 4)
    assert [constant(step) for step in range(3)] == [0.5, 1.0, 1.0]
    assert [ramp(train_settings({"ramp_epoch": 1}), epoch, 2, 8) for epoch in (0, 1, 2)] == [1.0, 0.25, 1.0]


def test_every_setting_is_documented():
    source = inspect.getsource(TrainSettings)
    for name in KNOWN:
        assert re.search(rf"^    {name}: [^\n]*\n    \"\"\"", source, flags=re.MULTILINE), name


def test_what_callers_and_files_write_is_brought_to_its_kind():
    given = {"learning_rate": "1e-3", "epochs": np.int64(3), "data": Path("x"), "clip": 1, "decay_epochs": [3]}
    settings = train_settings(given | {"schedule": "steps", "images": "photos", "weight_decay": np.float32(0.5)})
    assert (settings.learning_rate, settings.epochs, settings.data, settings.clip) == (1e-3, 3, "x", 1.0)
    assert (settings.decay_epochs, settings.images, settings.weight_decay) == ((3,), Path("photos"), 0.5)
    json.dumps(identity_of(settings))


def test_another_schedule_leaves_the_decays_of_a_recipe_behind():
    assert train_settings({"model": "vsepp", "schedule": "cosine"}).decay_epochs == ()
    arguments = ["--model", "vsepp", "--schedule", "cosine"]
    assert tyro.cli(TrainSettings, args=arguments, default=defaults_for(arguments)).decay_epochs == ()
