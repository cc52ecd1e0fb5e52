"""Fine-tuning: LoRA, float16, early stopping, batches of small data, loggers."""

import importlib.util
import json
from dataclasses import replace

import pytest
import torch

import tercet
from tercet import runs
from tercet.models import build
from tercet.training import train as module
from tercet.training.prepare import prepare_data
from tercet.training.settings import train_settings
from tests.tiny_models import BERT, save_clip
from tests.training.small_training import SMALL

needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    from tercet.data.scenes import scenes

    return save_clip(tmp_path_factory.mktemp("clip"), scenes("train", 50).as_split("global").texts)


def fine_tuning(clip, **given):
    small = {"data": "scenes:20", "epochs": 2, "batch_size": 20, "learning_rate": 1e-2, "checkpoint_every": 1}
    return {**small, "model": "clip", "model_settings": {"clip": clip}, **given}


def stopped_after(monkeypatch, steps, **given):
    """Start a run, and stop it after some steps as kill -9 would: without another checkpoint."""
    update = module.Loop.update

    def stop(self, *args):
        update(self, *args)
        if self.state.step == steps:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.Loop, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            tercet.train(**given)


def loop_of(settings, folder):
    """The loop of a run, before its first step."""
    from tercet.console import RunProgress

    run = module.resolve_run(settings)
    folder.mkdir()
    return run.make_loop(folder, RunProgress())


@needs_peft
def test_adapters_train_and_towers_do_not(clip, tmp_path):
    run = tercet.train(**fine_tuning(clip, lora=2), runs=tmp_path)
    before, after = build("clip", clip=clip).state_dict(), tercet.load(run.folder).model.state_dict()
    assert before.keys() == after.keys()  # a plain run
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"model.visual_projection.weight", "model.logit_scale"} <= changed
    layers = {name for name in changed if ".layers." in name}
    assert {name.split(".")[1] for name in layers} == {"text_model", "vision_model"}
    assert all(name.endswith(".weight") and "norm" not in name for name in layers)
    for name in layers:  # the update has the rank that was asked for
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= 2, name
    assert not [name for name in changed if "embeddings" in name or "norm" in name]


@needs_peft
def test_the_merged_model_computes_what_the_adapted_one_did(clip, tmp_path):
    from tercet.training.lora import merged_state, remove_adapters

    loop = loop_of(train_settings(fine_tuning(clip, lora=3)), tmp_path / "run")
    model = loop.model.eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        adapted = model.encode_images(pixels)
        weights = merged_state(model)
        remove_adapters(model)
        assert not torch.allclose(model.encode_images(pixels), adapted, atol=1e-3)
        model.load_state_dict(weights)
        torch.testing.assert_close(model.encode_images(pixels), adapted, rtol=0, atol=1e-5)


@needs_peft
@pytest.mark.slow
def test_a_run_with_adapters_resumes_exactly(clip, tmp_path, monkeypatch):
    given = fine_tuning(clip, lora=2)
    whole = tercet.train(**given, runs=tmp_path / "whole")
    stopped_after(monkeypatch, 7, **given, runs=tmp_path / "resumed")
    resumed = tercet.train(**given, runs=tmp_path / "resumed")
    weights = [(run.folder / "weights.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]


@needs_peft
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": "heads", "model_settings": {}},
            "adapts Hugging Face towers that are trained, and this model has none",
        ),
        ({"model_settings": {"trained": "heads"}}, "--lora trains the towers, and --model-settings trained=heads"),
        ({"frozen": ["model.text_model"]}, "cannot be combined with --frozen"),
        ({"unfreeze_epoch": 1}, "cannot be combined with --unfreeze-epoch"),
    ],
)
def test_adapters_without_effect_are_refused(clip, given, message, tmp_path):
    settings = fine_tuning(clip, lora=2)
    settings |= given | {"model_settings": settings["model_settings"] | given.get("model_settings", {})}
    if settings["model"] == "heads":
        settings["model_settings"] = {}
    with pytest.raises(ValueError, match=message):
        tercet.train(**settings, runs=tmp_path / "runs")


@needs_peft
def test_bert_is_adapted_and_what_is_outside_trains(tmp_path):
    from tercet.training.lora import add_adapters

    model = build("vse-infinity", bert=BERT, image_dim=8, embed_dim=6)
    add_adapters(model, 2, seed=0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    of_bert = {name for name in trained if name.startswith("captions.bert.")}
    assert of_bert
    assert all(".lora_" in name for name in of_bert)
    assert {"captions.linear.weight", "regions.linear.weight"} <= trained


@needs_peft
@pytest.mark.slow
def test_an_adapted_run_is_exported(clip, tmp_path):
    from transformers import AutoModel

    run = tercet.train(**fine_tuning(clip, lora=4), runs=tmp_path / "runs")
    tercet.export(run.folder, to="hf", out=tmp_path / "out")
    ours, theirs = tercet.load(run.folder).model.model, AutoModel.from_pretrained(tmp_path / "out")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in ours.state_dict().items())


def test_without_peft_the_package_is_named(clip, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ValueError, match=r"--lora needs peft: pip install 'tercet\[hf\]'"):
        tercet.train(**fine_tuning(clip, lora=2), runs=tmp_path / "runs")


def test_float16_follows_float32(clip, tmp_path):
    """The gradient of a step, with the factor of the scaler taken out again."""
    gradients = []
    for precision in ("float32", "fp16"):
        loop = loop_of(train_settings(fine_tuning(clip, precision=precision)), tmp_path / precision)
        loop._start_epoch(0)
        loop.scaler._init_scale = 2.0**10  # the usual one, 2^16, overflows in the first steps
        applied = []

        def collect(optimizer, args, kwargs, applied=applied, model=loop.model):
            applied += [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]

        loop.optimizer.register_step_pre_hook(collect)
        loop.train_step(next(loop.steps(loop.batches)))
        gradients.append(torch.cat(applied))
    difference = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert 0 < difference < 0.02


@pytest.mark.slow
def test_a_step_that_overflows_is_left_out_and_the_scale_is_resumed(clip, tmp_path, monkeypatch):
    given = fine_tuning(clip, precision="fp16")
    scales = []
    scaler = torch.amp.GradScaler

    class Huge(scaler):
        """Starts with a scale at which float16 overflows."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs | {"init_scale": 2.0**18})

        def update(self):
            super().update()
            scales.append(self.get_scale())

    monkeypatch.setattr(torch.amp, "GradScaler", Huge)
    whole = tercet.train(**given, runs=tmp_path / "whole")
    (final,) = [line for line in runs.read_lines(whole.folder) if line.get("final")]
    assert 0 < final["skipped_steps"] < final["step"]
    assert scales[0] == 2.0**17
    assert scales[-1] == 2.0 ** (18 - final["skipped_steps"])
    stopped_after(monkeypatch, 3, **given, runs=tmp_path / "resumed")
    resumed = tercet.train(**given, runs=tmp_path / "resumed")
    for name in ("weights.safetensors", "metrics.jsonl"):
        assert (whole.folder / name).read_bytes() == (resumed.folder / name).read_bytes()


STOPPED = {**SMALL, "epochs": 12, "learning_rate": 0.0, "cocos_every": 0}
"""Without learning, only the first validation is an improvement."""


def test_training_stops_without_improvement(tmp_path, capsys):
    run = tercet.train(**STOPPED, patience=2, runs=tmp_path)
    assert [line["epoch"] for line in runs.read_validation(run.folder)] == [1, 2, 3]
    assert "stopped after 3 epochs: 2 validations without improvement, epoch 1 is the best" in (
        (run.folder / "log.txt").read_text()
    )
    assert runs.read_final(run.folder)["epoch"] == 1


def test_a_run_that_improves_is_not_stopped(tmp_path):
    run = tercet.train(**SMALL | {"epochs": 5}, patience=3, runs=tmp_path)
    assert len(runs.read_validation(run.folder)) == 5


def test_a_run_that_was_killed_when_it_stopped_early_ends_there(tmp_path, monkeypatch):
    def kill(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.Loop, "evaluate_best", kill)
        with pytest.raises(KeyboardInterrupt):
            tercet.train(**STOPPED, patience=1, runs=tmp_path)
    run = tercet.train(**STOPPED, patience=1, runs=tmp_path)
    assert len(runs.read_validation(run.folder)) == 2


def test_patience_needs_validation_and_is_not_for_comparisons(tmp_path):
    settings = train_settings(SMALL | {"patience": 2})
    prepared = replace(prepare_data(settings), validation=None)
    with pytest.raises(ValueError, match="--patience 2 would do nothing for heads: there is no split 'val' to stop by"):
        prepared.check_effective(settings)
    with pytest.raises(ValueError, match="--train: with patience the runs of a comparison would make diff"):
        tercet.compare("scenes:20", objectives="triplet", train={"patience": 2}, runs=tmp_path)


def test_a_batch_larger_than_the_data_is_all_of_it(tmp_path):
    run = tercet.train(**SMALL | {"data": "scenes:20", "batch_size": 4000, "epochs": 1}, runs=tmp_path)
    assert "the batch is all of the training split: 100 items, fewer than 4000" in (run.folder / "log.txt").read_text()
    assert json.loads((run.folder / "settings.json").read_text())["batch_size"] == 100
    same = tercet.train(**SMALL | {"data": "scenes:20", "batch_size": 100, "epochs": 1}, runs=tmp_path)
    assert same.folder == run.folder


def test_a_batch_of_images_is_at_most_all_images():
    settings = train_settings(SMALL | {"data": "scenes:20", "captions_per_image": 5})
    assert prepare_data(settings).fitted(settings).batch_size == 20


@pytest.mark.slow
def test_a_comparison_of_small_data_uses_all_of_it(tmp_path, capsys):
    given = {"objectives": ("triplet", "smooth-ap"), "seeds": 1, "no_tune": True, "epochs": 1}
    result = tercet.compare("scenes:20", **given, train={"batch_size": 4000}, runs=tmp_path)
    assert not result.results.failures
    assert "hold the whole training split: 100 items, fewer than batch_size" in capsys.readouterr().err


def test_images_are_decoded_ahead(clip, tmp_path):
    """By default where images are decoded; batches do not depend on it."""
    assert loop_of(train_settings(fine_tuning(clip)), tmp_path / "clip").workers == 2
    assert loop_of(train_settings(SMALL), tmp_path / "heads").workers == 0
    assert loop_of(train_settings(fine_tuning(clip, workers=0)), tmp_path / "none").workers == 0


class Collected:
    """A logger in memory."""

    def __init__(self, folder):
        self.lines, self.closed = [], False

    def log(self, values, step):
        self.lines.append((step, values))

    def flush(self):
        assert self.lines

    def close(self):
        self.closed = True


def test_loggers_get_every_line_once(tmp_path, monkeypatch):
    from tercet.training import report_to

    loggers = []
    monkeypatch.setitem(report_to.LOGGERS, "wandb", lambda folder: loggers.append(Collected(folder)) or loggers[-1])
    run = tercet.train(**SMALL, runs=tmp_path, report_to=("wandb",))
    (logger,) = loggers
    lines = runs.read_lines(run.folder)
    assert [step for step, _ in logger.lines] == [line["step"] for line in lines]
    assert logger.closed
    assert logger.lines[-1][1]["t2i_r1"] == run.metrics["t2i_r1"]
    counted = next(values for _, values in logger.lines if "monitor" in values)
    assert "cocos/i2t/effective" in counted


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_reads_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tercet.train(**SMALL, runs=tmp_path, report_to=("tensorboard",))
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert events.Scalars("t2i_r1")[-1].value == pytest.approx(run.metrics["t2i_r1"])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_an_offline_run(tmp_path):
    run = tercet.train(**SMALL, runs=tmp_path, report_to=("wandb",))
    (offline,) = (run.folder / "wandb").glob("offline-run-*")
    (log,) = offline.glob("run-*.wandb")
    assert b"t2i_r1" in log.read_bytes()
    runs.check_run(run.folder)
