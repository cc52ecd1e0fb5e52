"""Settings: every recipe resolves, errors suggest the nearest name, and only what defines a run is hashed."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image

import tercet
from tercet.models.registry import SYSTEMS
from tercet.recipes.registry import DEFAULTS, RECIPES
from tercet.training.optim import lr_factor
from tercet.training.settings import (
    EXECUTION_SETTINGS,
    SETTING_NAMES,
    TrainSettings,
    defaults_for,
    identity_of,
    parse_overrides,
    train_settings,
)


def test_every_model_has_a_recipe_and_every_recipe_a_model():
    assert set(DEFAULTS) == set(SYSTEMS)
    assert {system for system, _ in RECIPES.values()} <= set(SYSTEMS)
    for name in [*DEFAULTS, *RECIPES]:
        assert train_settings({"model": name}).model == name


def test_recipes_have_the_values_of_their_papers():
    vsepp, infinity = train_settings({"model": "vsepp-f30k"}), train_settings({"model": "vse-infinity-grid"})
    assert (vsepp.epochs, vsepp.learning_rate, vsepp.decay_epochs, vsepp.grad_clip) == (30, 2e-4, (15,), 2.0)
    assert (vsepp.optimizer, vsepp.weight_decay, vsepp.positives) == ("adam", 0.0, "diagonal")
    assert (infinity.warmup_objective, infinity.warmup_objective_epochs, infinity.unfreeze_epoch) == ("triplet", 1, 1)
    assert infinity.lr_multipliers == {"captions.bert": 0.1, "backbone": 0.01}
    plain, smooth = (train_settings({"model": f"vsepp-study{end}"}) for end in ("", "-smooth-ap"))
    assert smooth.captions_per_image == 5
    assert smooth.epochs == 5 * plain.epochs  # an epoch over images has a fifth of the steps of one over captions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 3}, "did you mean epochs"),
        ({"epochs": 0}, "--epochs must be a whole number of at least 1"),
        ({"epochs": 1.5}, "--epochs must be a whole number"),
        ({"grad_clip": 0.0}, "--grad-clip must be above 0"),
        ({"learning_rate": -1.0}, "--learning-rate must be a number of at least 0"),
        (
            {"positives": "diagonal", "captions_per_image": 5},
            "--positives diagonal cannot be combined with --captions-per-image",
        ),
        ({"decay_epochs": (3,)}, "--decay-epochs needs --schedule steps, got cosine"),
        ({"decay_epochs": (3, 3), "schedule": "steps"}, "--decay-epochs must be strictly ascending"),
        ({"grad_cache": 8, "caption_weight": 1.0}, "--grad-cache cannot be combined with --caption-weight"),
        ({"drop_words": 1.0}, "--drop-words must be a fraction of at least 0 and below 1"),
        ({"lr_multipliers": {"image_head": -1}}, "--lr-multipliers image_head must be a number of at least 0"),
        ({"decay": float("nan")}, "--decay must be above 0"),
        ({"validation_split": "test"}, "weights are never selected on test"),
        ({"learning_rate": "fast"}, "--learning-rate must be a number, got 'fast'"),
        ({"seed": 1.5}, "--seed must be a whole number, got 1.5"),
        ({"seed": 2**64}, "--seed must be below"),
        ({"resume": "no"}, "--resume must be true or false, got 'no'"),
        ({"frozen": "image_head"}, "--frozen must be a list, got 'image_head'"),
        ({"decay_epochs": ["a"]}, "--decay-epochs must be a list"),
        ({"model": None}, "--model must be text, got None"),
        ({"model_settings": None}, "--model-settings must be a mapping of names to values"),
        ({"captions_per_image": True}, "--captions-per-image must be a whole number or None, got True"),
        ({"round": 3}, "--round must be one of 1, 2, got 3"),
        ({"optimizer": "sgd"}, "--optimizer must be one of adamw, adam, got 'sgd'"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_invalid_settings_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        train_settings(given)


def test_given_settings_override_a_config_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"epochs": 7, "model": "vsepp", "batch_size": 64}))
    settings = train_settings({"config": file, "epochs": 3})
    assert (settings.epochs, settings.batch_size, settings.model, settings.optimizer) == (3, 64, "vsepp", "adam")
    (tmp_path / "mine.yaml").write_text("epochs: 9\nmodel_settings: {embed_dim: 8}\n")
    assert train_settings({"config": tmp_path / "mine.yaml"}).model_settings == {"embed_dim": 8}
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"bad.json: expected a mapping of setting names to values, got list"):
        train_settings({"config": tmp_path / "bad.json"})
    with pytest.raises(ValueError, match="cannot be read"):
        train_settings({"config": tmp_path / "none.json"})


def test_command_line_defaults_come_from_the_recipe():
    arguments = ["--model", "vse-infinity-butd", "--epochs", "3", "--model-settings", "embed_dim=32", "kind=mlp"]
    settings = tyro.cli(TrainSettings, args=arguments, default=defaults_for(arguments))
    assert (settings.epochs, settings.optimizer, settings.warmup_objective) == (3, "adamw", "triplet")
    assert settings.model_settings == {"embed_dim": 32, "kind": "mlp"}
    assert defaults_for(["--model=vsepp"]).optimizer == "adam"
    with pytest.raises(ValueError, match="expected name=value"):
        parse_overrides(["embed_dim"])


def test_execution_settings_are_not_part_of_the_identity(tmp_path):
    one = identity_of(TrainSettings())
    other = identity_of(TrainSettings(runs=tmp_path, workers=3, checkpoint_every=7, device="cpu"))
    assert one == other
    assert not set(one) & set(EXECUTION_SETTINGS)
    assert identity_of(TrainSettings(seed=1)) != one
    json.dumps(one)


def test_schedules():
    cosine = lr_factor(train_settings({"epochs": 3, "warmup_epochs": 1}), 4)
    assert [cosine(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert cosine(8) == pytest.approx(0.5)
    assert cosine(12) == pytest.approx(0.0)
    steps = lr_factor(train_settings({"schedule": "steps", "decay_epochs": (1, 2), "warmup_epochs": 0}), 4)
    assert [steps(step) for step in (0, 3, 4, 7, 8)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    constant = lr_factor(train_settings({"schedule": "constant", "warmup_epochs": 0.5}), 4)
    assert [constant(step) for step in range(3)] == [0.5, 1.0, 1.0]


def test_every_setting_is_documented():
    source = inspect.getsource(TrainSettings)
    for name in SETTING_NAMES:
        assert re.search(rf"^    {name}: [^\n]*\n    \"\"\"", source, flags=re.MULTILINE), name


def test_values_are_coerced_to_the_declared_type():
    given = {"learning_rate": "1e-3", "epochs": np.int64(3), "data": Path("x"), "grad_clip": 1, "decay_epochs": [3]}
    settings = train_settings(given | {"schedule": "steps", "images": "photos", "weight_decay": np.float32(0.5)})
    assert (settings.learning_rate, settings.epochs, settings.data, settings.grad_clip) == (1e-3, 3, "x", 1.0)
    assert (settings.decay_epochs, settings.images, settings.weight_decay) == ((3,), Path("photos"), 0.5)
    json.dumps(identity_of(settings))


def test_another_schedule_drops_the_decay_epochs_of_the_recipe():
    assert train_settings({"model": "vsepp", "schedule": "cosine"}).decay_epochs == ()
    arguments = ["--model", "vsepp", "--schedule", "cosine"]
    assert tyro.cli(TrainSettings, args=arguments, default=defaults_for(arguments)).decay_epochs == ()


def test_data_without_features_is_refused_with_what_this_model_can_do_instead(tmp_path):
    (tmp_path / "pairs.csv").write_text("image,caption,split\na.png,a dog,train\nb.png,a cat,val\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    Image.new("RGB", (8, 8), "red").save(tmp_path / "b.png")
    start = r"pairs.csv has no image features: run `tercet features` first"
    with pytest.raises(ValueError, match=rf"{start}, or train on pixels with --model-settings backbone=NAME$"):
        tercet.train(tmp_path / "pairs.csv", model="vsepp", runs=tmp_path / "runs")
    with pytest.raises(ValueError, match=f"{start}$"):
        tercet.train(tmp_path / "pairs.csv", model="heads", runs=tmp_path / "runs")
