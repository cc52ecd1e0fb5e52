"""A run as users start it: killed at any moment it ends as if it had never been stopped, and nothing is lost."""

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import tercet
from tercet import runs
from tercet.retriever import load
from tests.training.small import SMALL

ARGUMENTS = ["--data", "scenes:300", "--epochs", "4", "--batch-size", "32", "--checkpoint-every", "7"]
RESULTS = ("weights.safetensors", "metrics.jsonl", "settings.json", "config.json")


def start(folder, *more, **environment):
    command = [sys.executable, "-m", "tercet.cli", "train", *ARGUMENTS, "--runs", str(folder), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    )


def finish(process):
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def only_run(folder):
    (run,) = (found for found in folder.iterdir() if found.is_dir() and not found.name.startswith("."))
    return run


def assert_same_run(one, other):
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    with np.load(one / "ranks.npz") as a, np.load(other / "ranks.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a.files)


def test_a_run_leaves_a_folder_with_all_it_found(tmp_path):
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
    with pytest.raises(ValueError, match="is finished, and never overwritten"):
        tercet.train(**SMALL, runs=tmp_path, resume=False)
    assert tercet.train(**SMALL | {"seed": 1}, runs=tmp_path).folder != first.folder


def test_the_best_weights_on_validation_are_kept_and_test_is_looked_at_once(tmp_path, monkeypatch):
    from tercet.training import run as module

    values = iter([3.0, 9.0, 5.0])
    monkeypatch.setattr(module, "selected", lambda metrics, by: next(values))
    kept = []
    write = runs.write_safely

    def watched(file, data):
        if file.name == "weights.safetensors":
            kept.append(data)
        write(file, data)

    monkeypatch.setattr(runs, "write_safely", watched)
    folder = tercet.train(**SMALL | {"epochs": 3}, runs=tmp_path).folder
    assert len(kept) == 2
    assert (folder / "weights.safetensors").read_bytes() == kept[1]
    assert runs.read_lines(folder)[-1]["epoch"] == 2


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_ends_with_the_very_same_weights(tmp_path, kills):
    """Each kill waits for a checkpoint that was not there before, however quick the machine is."""
    chance = random.Random(kills)
    finish(start(tmp_path / "whole"))
    whole, broken = only_run(tmp_path / "whole"), tmp_path / "broken"
    done, passed = 0, set()
    while done < kills:
        process = start(broken, "--resume")
        while process.poll() is None and not checkpoints(broken) - passed:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = checkpoints(broken)
        if left - passed:
            passed |= left
            done += 1
        else:  # it got to its end, where checkpoints are taken away: go on with a fresh copy
            finish(start(broken, "--resume"))
            assert_same_run(whole, only_run(broken))
            shutil.rmtree(broken)
            passed = set()
    finish(start(broken, "--resume"))
    assert_same_run(whole, only_run(broken))


def checkpoints(folder):
    return {path.name for path in folder.glob("*/state/*.json")}


def test_control_c_keeps_the_step_under_way(tmp_path):
    process = start(tmp_path)
    while process.poll() is None and not list(tmp_path.glob("*/state/*.json")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "call again to go on" in said
    steps = [int(path.stem.split("_")[1]) for path in tmp_path.glob("*/state/*.pt")]
    assert steps
    assert len(steps) <= 2


def test_a_damaged_checkpoint_is_passed_over_with_a_word(tmp_path, capsys):
    whole = tercet.train(**SMALL, runs=tmp_path / "whole", checkpoint_every=2)
    stopped(tmp_path / "broken", 7)
    newest = max((only_run(tmp_path / "broken") / "state").glob("*.pt"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    capsys.readouterr()
    resumed = tercet.train(**SMALL, runs=tmp_path / "broken", checkpoint_every=2)
    assert f"passed over a damaged checkpoint, {newest.name}: its checksum is another" in capsys.readouterr().err
    assert_same_run(whole.folder, resumed.folder)


def test_a_full_disk_is_named_and_loses_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        process = start(disk, "--model-settings", "joint_dim=512")
        said, _ = process.communicate()
        assert process.returncode == 2, said
        assert "the disk is full" in said
        assert "Traceback" not in said
        left = [path.name for path in disk.rglob("*") if path.name.startswith(".step")]
        assert not left
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        finish(start(disk, "--model-settings", "joint_dim=512"))
        finish(start(tmp_path / "whole", "--model-settings", "joint_dim=512"))
        assert_same_run(only_run(disk), only_run(tmp_path / "whole"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_processes_do_not_write_one_run(tmp_path):
    both = [start(tmp_path), start(tmp_path)]
    said = [finish(process) for process in both]
    assert sum("epoch 4 of 4" in each for each in said) == 1
    only_run(tmp_path)


def test_without_validation_the_last_weights_are_kept(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 10)):
        (data / f"{split}_caps.txt").write_text("".join(f"caption {n}\n" for n in range(count)))
        for name in ("ims", "txt"):
            np.save(data / f"{split}_{name}.npy", rng.standard_normal((count, 8)).astype(np.float32))
    run = tercet.train(**SMALL | {"data": str(data), "batch_size": 20}, runs=tmp_path)
    assert "the last weights are kept" in capsys.readouterr().err
    assert run.split == "test"


def test_a_slip_in_the_name_of_a_split_is_no_missing_split(tmp_path):
    for name in ("test_split", "validation_split"):
        with pytest.raises(ValueError, match=r"no split 'tset'.*did you mean test"):
            tercet.train(**SMALL | {name: "tset"}, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def stopped(folder, at, **given):
    """A run whose plug is pulled right after its checkpoint of that step."""
    from tercet.training import loop as module

    save = module.save_state

    def save_and_stop(state_folder, step, state):
        save(state_folder, step, state)
        if step >= at:
            raise RuntimeError("the plug was pulled")

    module.save_state = save_and_stop
    try:
        with pytest.raises(RuntimeError, match="plug"):
            tercet.train(**SMALL | given, runs=folder, checkpoint_every=2)
    finally:
        module.save_state = save
    return only_run(folder)


def test_features_in_place_of_a_backbone_are_said(tmp_path, capsys):
    tercet.train(**SMALL | {"model_settings": {"joint_dim": 8, "word_dim": 6}}, model="vsepp-study", runs=tmp_path)
    assert "they take the place of the backbone of vsepp-study" in capsys.readouterr().err


def test_what_is_not_finite_at_the_first_step_keeps_the_folder_to_look_at(tmp_path, monkeypatch):
    from tercet.training import loop as module

    def spoilt(self, objective, batch, seed, factor=1.0):
        return module.Outcome(float("nan"), batch.images, batch.captions)

    monkeypatch.setattr(module.Step, "__call__", spoilt)
    with pytest.raises(ValueError, match="NaN or infinity in"):
        tercet.train(**SMALL, runs=tmp_path)
    assert "run folder" in (only_run(tmp_path) / "log.txt").read_text()


@pytest.mark.parametrize(
    "given",
    [
        {"accumulate": 2},
        {"workers": 2, "captions_each": 3, "batch_size": 20, "objective": "smooth-ap"},
        {"model": "vsepp", "model_settings": {"joint_dim": 8, "word_dim": 6}, "drop_words": 0.3},
        {
            "model": "vsrn",
            "model_settings": {"joint_dim": 8, "captioner": True, "caption_dim": 6},
            "caption_weight": 1.0,
        },
        {"model": "vse-infinity", "model_settings": {"joint_dim": 8}, "precision": "bf16"},
        {"grad_cache": 9, "ignore_equal_text": True, "objective": "cir/sig-ms"},
    ],
    ids=str,
)
def test_every_kind_of_run_resumes_exactly(tmp_path, given):
    if given.get("model") in ("vsrn", "vse-infinity"):
        given = given | {"features": "regions"}
    whole = tercet.train(**SMALL | given, runs=tmp_path / "whole", checkpoint_every=2)
    stopped(tmp_path / "broken", 3, **given)
    assert_same_run(whole.folder, tercet.train(**SMALL | given, runs=tmp_path / "broken").folder)


def test_metrics_that_a_power_cut_shortened_send_the_run_further_back(tmp_path, capsys):
    whole = tercet.train(**SMALL, runs=tmp_path / "whole", checkpoint_every=2)
    folder = stopped(tmp_path / "broken", 4)
    os.truncate(folder / "metrics.jsonl", 10)
    (folder / "settings.json").unlink()
    resumed = tercet.train(**SMALL, runs=tmp_path / "broken", checkpoint_every=2)
    assert "metrics.jsonl is shorter than it was then" in capsys.readouterr().err
    assert_same_run(whole.folder, resumed.folder)


def test_an_empty_mark_does_not_make_a_run_finished(tmp_path):
    folder = stopped(tmp_path, 4)
    (folder / "machine.json").write_text("")
    assert tercet.train(**SMALL, runs=tmp_path).metrics["rsum"] > 0


def test_no_resume_begins_anew_and_waits_for_whoever_writes(tmp_path):
    whole = tercet.train(**SMALL, runs=tmp_path / "whole")
    folder = stopped(tmp_path / "broken", 4)
    begun = tercet.train(**SMALL, runs=tmp_path / "broken", resume=False)
    assert begun.folder == folder
    assert_same_run(whole.folder, begun.folder)
    both = [start(tmp_path / "two"), start(tmp_path / "two", "--no-resume")]
    for process in both:
        process.communicate()
    # Whichever came second waited; --no-resume is refused where the run is finished by then.
    assert sorted({process.returncode for process in both}) in ([0], [0, 2])
    assert runs.is_finished(only_run(tmp_path / "two"))


def test_what_was_refused_leaves_no_folder(tmp_path):
    for given in ({"frozen": ["nothing"]}, {"batch_size": 5000}, {"caption_weight": 1.0}):
        with pytest.raises(ValueError, match=r"begin with|fill one batch|captioner"):
            tercet.train(**SMALL | given, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_first_epochs_share_the_settings_and_an_edited_file_is_another_run(tmp_path):
    from tercet.training.run import resolve
    from tests.training.small import small_settings

    file = tmp_path / "mine.py"
    file.write_text("def mine(S, positives):\n    return (S * ~positives).sum()\n")
    given = {"first_objective": f"{file}:mine", "objective_settings": {"margin": 0.5}}
    before = resolve(small_settings(**given))[2]
    file.write_text("def mine(S, positives):\n    return 2 * (S * ~positives).sum()\n")
    assert resolve(small_settings(**given))[2] != before
    _, first, _ = resolve(small_settings(first_objective="triplet", objective_settings={"margin": 0.5}))
    assert first.margin == 0.5


def test_a_second_stage_starts_from_the_first(tmp_path):
    first = tercet.train(**SMALL, runs=tmp_path)
    second = tercet.train(**SMALL | {"epochs": 1, "learning_rate": 0.0}, runs=tmp_path, start_from=str(first.folder))
    one, other = (load(run.folder).model.state_dict() for run in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ValueError, match="does not fit the model"):
        tercet.train(**SMALL | {"model_settings": {"joint_dim": 8}}, runs=tmp_path, start_from=str(first.folder))
    with pytest.raises(ValueError, match="no weights there to start from"):
        tercet.train(**SMALL, runs=tmp_path, start_from=str(tmp_path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "tripplet"}, "did you mean"),
        ({"model": "vsep"}, "did you mean"),
        ({"data": "nowhere"}, "no such file or folder"),
        ({"select": "rsumm"}, "'rsumm' cannot choose weights .did you mean rsum"),
        ({"select": "t2i_meanr"}, "cannot choose weights"),
        ({"device": "foo"}, "--device: "),
        ({"model": "vsepp-f30k-finetuned"}, "--start-from names the run of the first"),
        ({"frozen": ["image_head", "caption_head"]}, "leaves nothing to train"),
        ({"model": "vsrn"}, "vsrn takes several regions"),
        ({"train_split": "trian"}, "no split 'trian'"),
        ({"model_settings": {"joint": 3}}, "did you mean joint_dim"),
        ({"batch_size": 5000}, "do not fill one batch"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_mistakes_are_named(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        tercet.train(**SMALL | given, runs=tmp_path)


@pytest.mark.slow
def test_compiled_encoders_learn_the_same(tmp_path):
    narrow = ("--epochs", "1", "--model-settings", "joint_dim=16")
    for name, more in (("plain", ()), ("compiled", ("--compile",))):
        finish(start(tmp_path / name, *narrow, *more))
    one, other = (load(only_run(tmp_path / name)).model.state_dict() for name in ("plain", "compiled"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-2, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="it is installed")
def test_tensorboard_is_asked_for_by_name_where_it_is_not_installed(tmp_path):
    with pytest.raises(ValueError, match="--tensorboard needs its package: pip install tensorboard"):
        tercet.train(**SMALL, runs=tmp_path, tensorboard=True)
