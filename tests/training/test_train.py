"""Runs as users start them: killed at any moment and resumed, a run ends with the same weights; errors are clear."""

import errno
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import tercet
from tercet import runs
from tercet.inference import load
from tests.commands import tercet as command
from tests.training.small_training import SMALL

ARGUMENTS = ["scenes:90", "--epochs", "4", "--batch-size", "32", "--checkpoint-every", "7"]
RESULTS = ("weights.safetensors", "metrics.jsonl", "settings.json", "config.json")


def start(folder, *more, **environment):
    command = [sys.executable, "-m", "tercet", "train", *ARGUMENTS, "--runs", str(folder), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    )


def finish(process):
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def train_here(folder, *more):
    """The same command in this process."""
    done = command("train", *ARGUMENTS, "--runs", folder, *more)
    assert done.returncode == 0, done.stderr


def only_run(folder):
    (run,) = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return run


def assert_same_run(one, other):
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    with np.load(one / "ranks.npz") as a, np.load(other / "ranks.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a.files)


def test_a_run_folder_has_all_results(tmp_path):
    run = tercet.train(**SMALL, runs=tmp_path)
    assert run.folder == only_run(tmp_path)
    assert run.folder.name.split("_", 1)[1].startswith("scenes_heads_triplet-sh_s0_")
    names = {path.name for path in run.folder.iterdir()}
    assert names == {*RESULTS, "machine.json", "ranks.npz", "log.txt"}
    machine = json.loads((run.folder / "machine.json").read_text())
    assert machine["ended"] == "finished"
    lines = runs.read_lines(run.folder)
    assert [line["split"] for line in lines if "split" in line] == ["validation", "validation", "test"]
    assert "hardest_share" in next(line["cocos"] for line in lines if "cocos" in line)["i2t"]
    assert runs.read_metrics(run.folder)["rsum"] == run.metrics["rsum"] == lines[-1]["rsum"]
    with np.load(run.folder / "ranks.npz") as ranks:
        assert (ranks["i2t_rank"] >= ranks["i2t_rank_negatives"]).all()
    model = tercet.load(run.folder)
    assert model.embed_texts(["a red square"]).shape == (1, 16)


def test_a_finished_run_is_kept_and_never_overwritten(tmp_path):
    first = tercet.train(**SMALL, runs=tmp_path)
    stamp = (first.folder / "machine.json").stat().st_mtime_ns
    again = tercet.train(**SMALL, runs=tmp_path, checkpoint_every=3, workers=1)
    assert again == first
    assert (first.folder / "machine.json").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="is finished and never overwritten"):
        tercet.train(**SMALL, runs=tmp_path, resume=False)
    assert tercet.train(**SMALL | {"seed": 1}, runs=tmp_path).folder != first.folder


def test_the_best_weights_on_validation_are_saved_and_test_is_evaluated_once(tmp_path, monkeypatch):
    from tercet.training import train as module

    values = iter([3.0, 9.0, 5.0])
    monkeypatch.setattr(module, "selection_value", lambda metrics, by: next(values))
    saved = []
    write = module.atomic_write

    def recording_write(file, data):
        if file.name == "weights.safetensors":
            saved.append(data)
        write(file, data)

    monkeypatch.setattr(module, "atomic_write", recording_write)
    folder = tercet.train(**SMALL | {"epochs": 3}, runs=tmp_path).folder
    assert len(saved) == 2
    assert (folder / "weights.safetensors").read_bytes() == saved[1]
    assert runs.read_lines(folder)[-1]["epoch"] == 2


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_and_resumed_run_ends_with_the_same_weights(tmp_path, kills):
    """Each kill waits for a new checkpoint, however fast the machine is."""
    chance = random.Random(kills)
    train_here(tmp_path / "uninterrupted")
    uninterrupted, interrupted = only_run(tmp_path / "uninterrupted"), tmp_path / "interrupted"
    done, passed = 0, set()
    while done < kills:
        process = start(interrupted, "--resume")
        while process.poll() is None and not checkpoints(interrupted) - passed:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = checkpoints(interrupted)
        if left - passed:
            passed |= left
            done += 1
        else:  # it finished, which removes the checkpoints: start over
            train_here(interrupted, "--resume")
            assert_same_run(uninterrupted, only_run(interrupted))
            shutil.rmtree(interrupted)
            passed = set()
    train_here(interrupted, "--resume")
    assert_same_run(uninterrupted, only_run(interrupted))


def checkpoints(folder):
    return {path.name for path in folder.glob("*/state/*.json")}


@pytest.mark.slow
def test_control_c_keeps_the_step_under_way(tmp_path):
    process = start(tmp_path)
    while process.poll() is None and not list(tmp_path.glob("*/state/*.json")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "run the command again to resume" in output
    steps = [int(path.stem.split("_")[1]) for path in tmp_path.glob("*/state/*.pt")]
    assert steps
    assert len(steps) <= 2


def test_a_damaged_checkpoint_is_skipped_and_logged(tmp_path, capsys):
    uninterrupted = tercet.train(**SMALL, runs=tmp_path / "uninterrupted", checkpoint_every=2)
    interrupted_run(tmp_path / "interrupted", 7)
    newest = max((only_run(tmp_path / "interrupted") / "state").glob("*.pt"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    capsys.readouterr()
    resumed = tercet.train(**SMALL, runs=tmp_path / "interrupted", checkpoint_every=2)
    assert f"skipping damaged checkpoint {newest.name}: checksum mismatch" in capsys.readouterr().err
    assert_same_run(uninterrupted.folder, resumed.folder)


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path, monkeypatch):
    """The second checkpoint does not fit: half of it is written, then the disk is full."""
    write_bytes = Path.write_bytes

    def write_to_a_full_disk(file, data):
        if "step_00000014.pt" in file.name:
            write_bytes(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(file, data)

    disk = tmp_path / "disk"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", write_to_a_full_disk)
        done = command("train", *ARGUMENTS, "--runs", disk)
    assert done.returncode == 2, done.stderr
    assert "the disk is full" in done.stderr
    assert [path.name for path in disk.glob("*/state/*.json")] == ["step_00000007.json"]
    assert not [path.name for path in disk.rglob("*") if path.name.startswith(".step")]
    train_here(disk)
    train_here(tmp_path / "uninterrupted")
    assert_same_run(only_run(disk), only_run(tmp_path / "uninterrupted"))


@pytest.mark.slow
def test_two_processes_do_not_write_to_the_same_run(tmp_path):
    other = start(tmp_path)
    while other.poll() is None and not list(tmp_path.glob("*/.lock")):
        time.sleep(0.002)
    here = command("train", *ARGUMENTS, "--runs", tmp_path)  # waits for the other process
    assert here.returncode == 0, here.stderr
    outputs = [here.stdout + here.stderr, finish(other)]
    assert sum("epoch 4 of 4" in output for output in outputs) == 1
    assert runs.is_finished(only_run(tmp_path))


def test_without_validation_the_last_weights_are_saved(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 10)):
        (data / f"{split}_caps.txt").write_text("".join(f"caption {n}\n" for n in range(count)))
        for name in ("ims", "txt"):
            np.save(data / f"{split}_{name}.npy", rng.standard_normal((count, 8)).astype(np.float32))
    run = tercet.train(**SMALL | {"data": str(data), "batch_size": 20}, runs=tmp_path)
    assert "the weights of the last epoch are saved" in capsys.readouterr().err
    assert run.split == "test"


def test_a_misspelled_split_is_not_a_missing_split(tmp_path):
    for name in ("test_split", "validation_split"):
        with pytest.raises(ValueError, match=r"no split 'tset'.*did you mean test"):
            tercet.train(**SMALL | {name: "tset"}, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def interrupted_run(folder, at, **given):
    """Interrupt a run right after its checkpoint at that step; return its folder."""
    from tercet.training import train as module

    save = module.save_state

    def save_and_stop(state_folder, step, state):
        save(state_folder, step, state)
        if step >= at:
            raise RuntimeError("interrupted by the test")

    module.save_state = save_and_stop
    try:
        with pytest.raises(RuntimeError, match="interrupted by the test"):
            tercet.train(**SMALL | given, runs=folder, checkpoint_every=2)
    finally:
        module.save_state = save
    return only_run(folder)


def test_features_instead_of_a_backbone_are_logged(tmp_path, capsys):
    tercet.train(**SMALL | {"model_settings": {"embed_dim": 8, "word_dim": 6}}, model="vsepp-study", runs=tmp_path)
    assert "they are used instead of the backbone of vsepp-study" in capsys.readouterr().err


def test_nan_at_the_first_step_keeps_the_folder(tmp_path, monkeypatch):
    from tercet.training import train as module

    def nan_step(self, objective, batch, seed, factor=1.0):
        return module.Outcome(float("nan"), batch.images, batch.captions)

    monkeypatch.setattr(module.Step, "__call__", nan_step)
    with pytest.raises(ValueError, match="NaN or infinity in"):
        tercet.train(**SMALL, runs=tmp_path)
    assert "run folder" in (only_run(tmp_path) / "log.txt").read_text()


@pytest.mark.parametrize(
    "given",
    [
        {"grad_accum_steps": 2},
        {"workers": 2, "captions_per_image": 3, "batch_size": 20, "objective": "smooth-ap"},
        {"model": "vsepp", "model_settings": {"embed_dim": 8, "word_dim": 6}, "drop_words": 0.3},
        pytest.param(
            {
                "model": "vsrn",
                "model_settings": {"embed_dim": 8, "captioner": True, "caption_dim": 6},
                "caption_weight": 1.0,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model": "vse-infinity", "model_settings": {"embed_dim": 8}, "precision": "bf16"}, marks=pytest.mark.slow
        ),
        {"grad_cache": 9, "ignore_equal_text": True, "objective": "cir/sig-ms"},
    ],
    ids=str,
)
def test_every_kind_of_run_resumes_exactly(tmp_path, given):
    if given.get("model") in ("vsrn", "vse-infinity"):
        given = given | {"features": "regions"}
    uninterrupted = tercet.train(**SMALL | given, runs=tmp_path / "uninterrupted", checkpoint_every=2)
    interrupted_run(tmp_path / "interrupted", 3, **given)
    assert_same_run(uninterrupted.folder, tercet.train(**SMALL | given, runs=tmp_path / "interrupted").folder)


def test_truncated_metrics_resume_from_an_earlier_checkpoint(tmp_path, capsys):
    uninterrupted = tercet.train(**SMALL, runs=tmp_path / "uninterrupted", checkpoint_every=2)
    folder = interrupted_run(tmp_path / "interrupted", 4)
    os.truncate(folder / "metrics.jsonl", 10)
    (folder / "settings.json").unlink()
    resumed = tercet.train(**SMALL, runs=tmp_path / "interrupted", checkpoint_every=2)
    assert "metrics.jsonl is shorter than at that checkpoint" in capsys.readouterr().err
    assert_same_run(uninterrupted.folder, resumed.folder)


@pytest.mark.parametrize("content", ["", '{"ended": "finisheD"}'])
def test_a_damaged_machine_file_is_named_and_nothing_is_trained_over(tmp_path, content):
    folder = interrupted_run(tmp_path, 4)
    (folder / "machine.json").write_text(content)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=r"machine\.json (is damaged|has no format)"):
        tercet.train(**SMALL, runs=tmp_path)
    assert sorted(folder.rglob("*")) == before


def test_no_resume_starts_over(tmp_path):
    uninterrupted = tercet.train(**SMALL, runs=tmp_path / "uninterrupted")
    folder = interrupted_run(tmp_path / "interrupted", 4)
    restarted = tercet.train(**SMALL, runs=tmp_path / "interrupted", resume=False)
    assert restarted.folder == folder
    assert_same_run(uninterrupted.folder, restarted.folder)


@pytest.mark.slow
def test_no_resume_waits_for_another_process(tmp_path):
    both = [start(tmp_path / "two"), start(tmp_path / "two", "--no-resume")]
    for process in both:
        process.communicate()
    # The second process waited; --no-resume is refused if the run is finished by then.
    assert sorted({process.returncode for process in both}) in ([0], [0, 2])
    assert runs.is_finished(only_run(tmp_path / "two"))


def test_a_refused_run_leaves_no_folder(tmp_path):
    for given in ({"frozen": ["nothing"]}, {"grad_accum_steps": 5000}, {"caption_weight": 1.0}):
        with pytest.raises(ValueError, match=r"starts with|do not fill --grad-accum-steps|captioner"):
            tercet.train(**SMALL | given, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_warmup_objective_shares_settings_and_an_edited_file_is_another_run(tmp_path):
    from tercet.training.prepare import resolve
    from tests.training.small_training import small_settings

    file = tmp_path / "mine.py"
    file.write_text("def mine(S, positives):\n    return (S * ~positives).sum()\n")
    given = {"warmup_objective": f"{file}:mine", "objective_settings": {"margin": 0.5}}
    before = resolve(small_settings(**given))[2]
    file.write_text("def mine(S, positives):\n    return 2 * (S * ~positives).sum()\n")
    assert resolve(small_settings(**given))[2] != before
    _, first, _ = resolve(small_settings(warmup_objective="triplet", objective_settings={"margin": 0.5}))
    assert first.margin == 0.5


def test_a_second_stage_starts_from_the_first(tmp_path):
    first = tercet.train(**SMALL, runs=tmp_path)
    second = tercet.train(**SMALL | {"epochs": 1, "learning_rate": 0.0}, runs=tmp_path, init_from=str(first.folder))
    one, other = (load(run.folder).model.state_dict() for run in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ValueError, match="missing or of another shape: image_head"):
        tercet.train(**SMALL | {"model_settings": {"embed_dim": 8}}, runs=tmp_path, init_from=str(first.folder))
    with pytest.raises(ValueError, match=r"--init-from: .*no such file"):
        tercet.train(**SMALL, runs=tmp_path, init_from=str(tmp_path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "tripplet"}, "did you mean"),
        ({"model": "vsep"}, "did you mean"),
        ({"data": "nowhere"}, "no such file or folder"),
        ({"select_metric": "rsumm"}, "'rsumm' cannot select weights .did you mean rsum"),
        ({"select_metric": "t2i_meanr"}, "cannot select weights"),
        ({"device": "foo"}, "--device: "),
        ({"model": "vsepp-f30k-finetuned"}, "--init-from must name the run of the first stage"),
        ({"frozen": ["image_head", "caption_head"]}, "leaves no parameters to train"),
        ({"model": "vsrn"}, "vsrn needs several regions"),
        ({"train_split": "trian"}, "no split 'trian'"),
        ({"model_settings": {"embed": 3}}, "did you mean embed_dim"),
        ({"grad_accum_steps": 5000}, "do not fill --grad-accum-steps 5000 batches"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_error_messages(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        tercet.train(**SMALL | given, runs=tmp_path)


@pytest.mark.slow
def test_compiled_encoders_learn_the_same(tmp_path):
    narrow = ("--epochs", "1", "--model-settings", "embed_dim=16")
    for name, more in (("plain", ()), ("compiled", ("--compile",))):
        finish(start(tmp_path / name, *narrow, *more))
    one, other = (load(only_run(tmp_path / name)).model.state_dict() for name in ("plain", "compiled"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-2, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="it is installed")
def test_missing_tensorboard_is_named(tmp_path):
    with pytest.raises(ValueError, match="--report-to tensorboard needs its package: pip install tensorboard"):
        tercet.train(**SMALL, runs=tmp_path, report_to=("tensorboard",))
