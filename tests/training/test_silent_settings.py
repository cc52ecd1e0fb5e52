"""Settings that did nothing, or the wrong thing, without a word."""

from dataclasses import fields, replace

import pytest
import torch

import tercet
from tercet.comparison.plan import common_settings, make_variants, plan_run, prepare_all
from tercet.comparison.settings import CompareSettings
from tercet.plugins import from_file
from tercet.training.optim import lr_factor
from tercet.training.prepare import prepare_data
from tercet.training.settings import TrainSettings, train_settings
from tests.tiny_models import save_clip

HEADS = {"data": "scenes:40", "epochs": 1, "batch_size": 16}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"drop_words": 0.2}, "--drop-words 0.2 would do nothing for heads: captions are vectors"),
        ({"drop_regions": 0.2}, "--drop-regions 0.2 would do nothing for heads: images are single vectors"),
        ({"crop": "area"}, "--crop area would do nothing for heads: the data has image features"),
        ({"image_size": 64}, "--image-size 64 would do nothing for heads"),
        ({"squash": True}, "--squash True would do nothing for heads"),
        ({"unfreeze_epoch": 1}, "--unfreeze-epoch 1 would do nothing for heads: it has no backbone"),
        ({"ramp_epoch": 1}, "--ramp-epoch 1 would do nothing for heads: epochs are counted from 0 to 0"),
        ({"patience": 1}, "--patience 1 would do nothing for heads: 1 epochs end before"),
        ({"warmup_objective_epochs": 2}, "--warmup-objective-epochs needs --warmup-objective"),
        ({"decay": 0.5}, "--decay needs --schedule steps"),
        ({"caption_weight": 0.5}, "--caption-weight needs a VSRN"),
        ({"itm_weight": 0.5}, "--itm-weight needs a model with a matching head"),
        ({"mined_top": 7}, "--mined-top needs --mined"),
        (
            {"model_settings": {"pooling": "gpo"}},
            "pooling=gpo would do nothing for heads: images and captions",
        ),
    ],
)
def test_a_setting_without_effect_is_refused(given, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tercet.train(**HEADS, **given, runs=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("2*"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    from tercet.data.scenes import scenes

    return save_clip(tmp_path_factory.mktemp("clip"), scenes("train", 20).as_split("global").texts)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"drop_regions": 0.2}, "--drop-regions 0.2 would do nothing for clip: it makes one vector of an image"),
        ({"image_size": 64}, "--image-size 64 would do nothing for clip: images are prepared as its vision model"),
        ({"squash": True}, "--squash True would do nothing for clip"),
        ({"features": "regions"}, "--features regions would do nothing for clip: it reads pixels"),
        ({"unfreeze_epoch": 1}, "--unfreeze-epoch 1 would do nothing for clip"),
    ],
)
def test_a_setting_without_effect_on_a_model_of_pixels_is_refused(clip, given, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tercet.train(**HEADS, **given, model="clip", model_settings={"clip": clip}, runs=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("2*"))


def test_model_settings_without_effect_are_refused():
    settings = train_settings({"data": "scenes:40", "model": "vsepp", "model_settings": {"train_backbone": True}})
    with pytest.raises(ValueError, match="train_backbone=True would do nothing for vsepp: the data has image features"):
        prepare_data(settings).check_effective(settings)


def test_selection_without_validation_is_refused():
    settings = train_settings({"data": "scenes:40", "select_metric": "t2i_r1"})
    prepared = replace(prepare_data(settings), validation=None)
    with pytest.raises(ValueError, match="--select-metric t2i_r1 would do nothing for heads: there is no split 'val'"):
        prepared.check_effective(settings)


WITHOUT_A_RULE = {
    # Each changes what is computed, for every model and all data.
    *("data", "model", "objective", "seed", "model_settings", "objective_settings", "init_from", "images"),
    *("train_split", "validation_split", "test_split", "epochs", "epoch_steps", "batch_size", "captions_per_image"),
    *("positives", "ignore_equal_text", "objective_weight", "optimizer", "learning_rate", "weight_decay"),
    *("decay_norm_and_bias", "adam_beta2", "lr_multipliers", "schedule", "warmup_epochs", "grad_clip"),
    *("grad_accum_steps", "frozen", "grad_cache", "precision", "compile", "cocos_every", "warmup_objective"),
    # Execution: none changes what is computed.
    *("config", "runs", "resume", "checkpoint_every", "trust", "workers", "device", "report_to"),
}
WITH_A_RULE = {
    *("features", "drop_regions", "drop_words", "crop", "image_size", "squash", "unfreeze_epoch", "ramp_epoch"),
    *("patience", "select_metric", "warmup_objective_epochs", "decay", "decay_epochs", "caption_weight", "itm_weight"),
    *("round", "mined", "mined_top", "mined_draw", "mined_as_candidates", "mine_every", "lora"),
}


def test_every_setting_was_considered():
    """A new one belongs to one of the lists: does it do something for every model?"""
    assert {item.name for item in fields(TrainSettings)} == WITHOUT_A_RULE | WITH_A_RULE
    assert not WITHOUT_A_RULE & WITH_A_RULE


def test_the_doctor_advises_only_what_has_an_effect(clip):
    heads = train_settings({"data": "scenes:40"})
    of_clip = train_settings({"data": "scenes:40", "model": "clip", "model_settings": {"clip": clip}})
    for settings, expected in ((heads, ()), (of_clip, ("--drop-words 0.2", "--crop half"))):
        prepared = prepare_data(settings)
        assert prepared.augmentations(settings, prepared.model(settings)) == expected
    regions = train_settings({"data": "scenes:40", "model": "scan", "features": "regions"})
    prepared = prepare_data(regions)
    assert prepared.augmentations(regions, prepared.model(regions)) == ("--drop-regions 0.2", "--drop-words 0.2")


def test_settings_of_a_recipe_may_be_without_effect():
    settings = train_settings({"data": "scenes:40", "model": "vsepp-f30k"})
    assert settings.crop != "none"
    prepare_data(settings).check_effective(settings)


def test_a_vocabulary_of_other_words_is_refused(tmp_path):
    settings = train_settings({"data": "scenes:40", "model": "vsepp"})
    prepared = prepare_data(settings)
    prepared.retriever(prepared.model(settings)).save(tmp_path / "model")
    words = prepared.preprocessor.vocabulary.words
    shuffled = replace(prepared.preprocessor.vocabulary, words=(*words[:-2], words[-1], words[-2]))
    other = replace(prepared, preprocessor=replace(prepared.preprocessor, vocabulary=shuffled))
    again = replace(settings, init_from=str(tmp_path / "model"))
    prepared.model(again)
    with pytest.raises(ValueError, match=rf"another vocabulary .* they differ from token id {len(words) - 2} on"):
        other.model(again)


def test_smooth_ap_has_several_positives_under_recipes_with_one():
    settings = CompareSettings(data="scenes:40", objectives=("smooth-ap", "triplet-sh"), models=("vsepp-f30k",))
    (smooth_ap, triplet), common = make_variants(settings), common_settings(settings, "scenes:40")
    prepared = prepare_all([smooth_ap, triplet], common)
    planned = plan_run(smooth_ap, 0, common, prepared).settings
    assert (planned.positives, planned.captions_per_image) == ("ids", 5)
    assert plan_run(triplet, 0, common, prepared).settings.positives == "diagonal"
    with pytest.raises(ValueError, match="smooth-ap ranks several captions per image"):
        plan_run(smooth_ap, 0, common | {"positives": "diagonal"}, prepared)


def test_a_run_of_one_epoch_is_not_warmup_only():
    factor = lr_factor(train_settings({"warmup_epochs": 1.0, "epochs": 1, "schedule": "constant"}), 50)
    assert factor(4) == 1.0


LOSS = """
import torch

class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.randn(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, S, positives):
        self.calls += 1
        z = self.log_scale.exp() * S * (1 + 0.01 * self.calls)
        shares = positives / positives.sum(dim=1, keepdim=True).clamp(min=1)
        return -(z.log_softmax(dim=1) * shares).sum() / len(S)

loss = Loss()
"""


def test_parameters_and_buffers_of_a_loss_are_trained_saved_and_resumed(tmp_path, monkeypatch):
    from tercet.training import train as module

    (tmp_path / "mine.py").write_text(LOSS)
    given = HEADS | {"epochs": 2, "objective": f"{tmp_path / 'mine.py'}:loss", "cocos_every": 0}
    loops = []
    run_loop = module.Loop.run
    monkeypatch.setattr(module.Loop, "run", lambda self: (loops.append(self), run_loop(self))[1])
    whole = tercet.train(**given, runs=tmp_path / "whole")
    (trained,) = loops[0].objective_states
    assert trained.calls == loops[0].state.step
    assert trained.log_scale.item() != from_file(given["objective"]).log_scale.item()  # the file's own is untouched

    def stop_after_epoch(self, epoch, metrics):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.Loop, "_log_epoch", stop_after_epoch)
        with pytest.raises(KeyboardInterrupt):
            tercet.train(**given, runs=tmp_path / "resumed")
    resumed = tercet.train(**given, runs=tmp_path / "resumed")
    (again,) = loops[-1].objective_states
    assert torch.equal(again.log_scale, trained.log_scale)
    assert torch.equal(again.calls, trained.calls)
    weights = [(run.folder / "weights.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]
