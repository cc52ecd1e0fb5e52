"""Runs that are trained together end as they would alone, and each on its own terms: resumed, finished or failed."""

import dataclasses
import json
import multiprocessing
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import tercet
from tercet import runs
from tercet.console import RunProgress
from tercet.objectives import OBJECTIVES
from tercet.objectives.aoq import AOQ
from tercet.training.prepare import prepare_data
from tercet.training.settings import train_settings
from tercet.training.stacked import stack_key, train_stack
from tercet.training.train import train_run
from tests.training.test_train import assert_same_run

# 37 is odd: nothing is aligned or a multiple of a vector register.
TINY = {"data": "scenes:60", "epochs": 2, "epoch_steps": 4, "batch_size": 37, "model_settings": {"embed_dim": 10}}
STACKABLE = [name for name in OBJECTIVES if not isinstance(tercet.objective(name), AOQ)]


def settings_of(root, *runs_given, **common):
    return [train_settings(TINY | {"cocos_every": 3, "runs": root} | common | given) for given in runs_given]


def trained(settings, prepared=None):
    """Results in the order of the settings; exceptions of the runs that failed."""
    results = {}
    prepared = prepare_data(settings[0]) if prepared is None else prepared
    train_stack(settings, prepared, [RunProgress() for _ in settings], results.__setitem__)
    return [results[number] for number in range(len(settings))]


def weights(run):
    return load_file(run.folder / "weights.safetensors")


def assert_equal_to_separate(tmp_path, given, atol, **common):
    stacked = trained(settings_of(tmp_path / "stacked", *given, **common))
    separate = [train_run(each, progress=RunProgress()) for each in settings_of(tmp_path / "alone", *given, **common)]
    for what, one, other in zip(given, stacked, separate, strict=True):
        assert one.folder.name == other.folder.name
        for name, tensor in weights(other).items():
            torch.testing.assert_close(weights(one)[name], tensor, rtol=0, atol=atol, msg=f"{what}, {name}")
        for a, b in zip(runs.read_lines(one.folder), runs.read_lines(other.folder), strict=True):
            assert a.keys() == b.keys()
            assert a["step"] == b["step"]
        assert runs.read_machine(one.folder)["stacked_steps"] == runs.read_final(one.folder)["step"]
        assert runs.read_machine(other.folder)["stacked_steps"] == 0
        assert {file.name for file in one.folder.iterdir()} == {file.name for file in other.folder.iterdir()}


def test_stacked_runs_equal_separate_runs(tmp_path):
    given = [
        {"objective": "triplet-sh", "warmup_objective": "triplet", "seed": 1},
        {"objective": "triplet-sh", "learning_rate": 3e-3, "seed": 1},
        {"objective": "nt-xent", "grad_clip": 0.5, "seed": 1, "weight_decay": 0.3},
        {"objective": "cir/sig-ms", "seed": 2, "optimizer": "adam", "schedule": "linear"},
        {"objective": "sigmoid", "ramp_epoch": 0, "objective_weight": 0.5, "grad_clip": None},
        {"objective": "smooth-ap", "captions_per_image": 5, "batch_size": 20, "epochs": 1},
        {"objective": "con/lin", "batch_size": 11, "epoch_steps": 9, "lr_multipliers": {"image_head": 0.1}},
        {"objective": "nca/con", "ignore_equal_text": True, "positives": "diagonal", "select_metric": "t2i_r1"},
    ]
    assert_equal_to_separate(tmp_path, given, 1e-10, precision="float64")


def test_mlp_heads_are_stacked_too(tmp_path):
    given = [{"objective": "triplet-sh"}, {"objective": "triplet-sh", "seed": 1}]
    common = {"precision": "float64", "model_settings": {"embed_dim": 6, "kind": "mlp"}}
    assert_equal_to_separate(tmp_path, given, 1e-10, **common)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "atol"), [("float64", 1e-10), ("float32", 2e-5)])
def test_every_objective_stacked_equals_separate(tmp_path, precision, atol):
    given = [{"objective": name, "seed": seed} for name in STACKABLE for seed in (0, 1)]
    assert_equal_to_separate(tmp_path, given, atol, precision=precision)


def test_a_run_does_not_depend_on_its_stack(tmp_path):
    """In float32, bit for bit, and whether or not another run diverges."""
    given = [{"objective": name, "seed": seed} for seed in (0, 1) for name in ("nt-xent", "cir/sig-ms", "con/sig")]
    many = trained(settings_of(tmp_path / "many", *given, {"objective": "triplet", "learning_rate": 1e38}))
    assert "NaN or infinity" in str(many[-1])
    (unfinished,) = [folder for folder in runs.run_folders(tmp_path / "many") if not runs.is_finished(folder)]
    assert "_triplet_" in unfinished.name
    few = trained(settings_of(tmp_path / "few", given[4], given[0]))
    assert_same_run(many[4].folder, few[0].folder)
    assert_same_run(many[0].folder, few[1].folder)


def test_finished_runs_are_kept_and_unfinished_ones_resume(tmp_path):
    given = [{"objective": name} for name in ("nt-xent", "triplet-sh", "cir/lin")]
    whole = trained(settings_of(tmp_path / "whole", *given))
    settings = settings_of(tmp_path / "parts", *given)
    (first,) = trained(settings[1:2])
    stamp = (first.folder / "machine.json").stat().st_mtime_ns
    interrupt_after(5, settings[2:])
    (half,) = [folder for folder in runs.run_folders(tmp_path / "parts") if not runs.is_finished(folder)]
    assert "resuming" not in (half / "log.txt").read_text()
    parts = trained(settings)
    assert "resuming after step 5 of 8" in (half / "log.txt").read_text()
    assert (first.folder / "machine.json").stat().st_mtime_ns == stamp
    for one, other in zip(whole, parts, strict=True):
        assert_same_run(one.folder, other.folder)


def interrupt_after(step, settings):
    """Ctrl-C during this step of the first run: all runs finish the step that they are in, and save."""

    class Interrupting(RunProgress):
        def step(self, done, total, status):
            if done == step:
                os.kill(os.getpid(), signal.SIGINT)

    progress = [Interrupting(), *(RunProgress() for _ in settings[1:])]
    with pytest.raises(KeyboardInterrupt):
        train_stack(settings, None, progress, lambda number, result: pytest.fail(f"run {number} ended: {result}"))


def test_settings_of_the_same_run_are_one_run(tmp_path):
    """A second lock of the same folder in the same process would wait for ever."""
    same = {"objective": "triplet-sh", "objective_settings": {"margin": 0.2}}
    results = trained(settings_of(tmp_path, {"objective": "triplet-sh"}, {"objective": "nt-xent"}, same))
    assert results[0] == results[2] != results[1]
    assert len(runs.run_folders(tmp_path)) == 2


def test_control_c_stops_all_runs_at_a_checkpoint(tmp_path):
    given = [{"objective": "triplet-sh", "seed": seed} for seed in range(3)]
    settings = settings_of(tmp_path / "stopped", *given)
    interrupt_after(3, settings)
    saved = [json.loads(file.read_text())["step"] for file in (tmp_path / "stopped").glob("*/state/*.json")]
    assert saved == [3, 3, 3]
    for one, other in zip(trained(settings), trained(settings_of(tmp_path / "whole", *given)), strict=True):
        assert_same_run(one.folder, other.folder)


def test_the_checkpoint_of_a_run_holds_its_own_weights_only(tmp_path):
    given = [{"objective": "triplet-sh", "seed": seed} for seed in range(6)]
    settings = settings_of(tmp_path, *given, model_settings={"embed_dim": 64})
    interrupt_after(2, settings)
    parameters = sum(tensor.numel() for tensor in prepare_data(settings[0]).model(settings[0]).parameters())
    for file in tmp_path.glob("*/state/*.pt"):
        assert file.stat().st_size < 3 * 4 * parameters + 20_000  # weights and two moments in float32


def test_seconds_and_memory_are_shared_out(tmp_path):
    before = time.perf_counter()
    results = trained(settings_of(tmp_path, *({"objective": "triplet", "seed": seed} for seed in range(4))))
    elapsed = time.perf_counter() - before
    machines = [runs.read_machine(run.folder) for run in results]
    assert all(machine["seconds"] > 0 for machine in machines)
    assert sum(machine["seconds"] for machine in machines) <= elapsed


def test_what_a_stack_does_not_support_is_trained_alone(tmp_path):
    base = train_settings(TINY | {"data": "scenes:60"})
    prepared = prepare_data(base)
    key = stack_key(base, prepared)
    assert key is not None
    for same in ({"objective": "sigmoid"}, {"seed": 3}, {"epochs": 9}, {"batch_size": 8}, {"learning_rate": 0.1}):
        assert stack_key(dataclasses.replace(base, **same), prepared) == key, same
    for other in ({"model_settings": {"embed_dim": 11}}, {"precision": "float64"}, {"device": "cpu"}):
        assert stack_key(dataclasses.replace(base, **other), prepared) not in (None, key), other
    file = tmp_path / "mine.py"
    file.write_text("def own(S, positives):\n    return -positives.to(S.dtype)\n")
    for alone in (
        {"objective": f"{file}:own"},
        {"warmup_objective": f"{file}:own"},
        {"objective": "aoq", "mined": "somewhere"},
        {"precision": "bf16"},
        {"compile": True},
        {"grad_cache": 8},
        {"grad_accum_steps": 2},
        {"frozen": ("image_head",)},
    ):
        assert stack_key(dataclasses.replace(base, **alone), prepared) is None, alone
    for data in ({"features": "regions"}, {"model": "vsepp"}):
        settings = train_settings(TINY | {"model_settings": {}} | data)
        assert stack_key(settings, prepare_data(settings)) is None, data


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_stack_resumes_with_the_same_bits(tmp_path, kills):
    """SIGKILL at a moment when some runs of the stack have saved a checkpoint and others may not have."""
    given = [{"objective": name, "seed": seed} for seed in (0, 1) for name in ("nt-xent", "triplet-sh", "cir/sig-ms")]
    common = {"epochs": 2, "epoch_steps": 12, "checkpoint_every": 3}
    whole, killed = (settings_of(tmp_path / name, *given, **common) for name in ("whole", "killed"))
    end_of_process(whole)
    passed = set()
    for _ in range(kills):
        process = forked(killed)
        while process.is_alive() and not checkpoints(tmp_path / "killed") - passed:
            time.sleep(0.001)
        process.kill()
        process.join()
        passed |= checkpoints(tmp_path / "killed")
    assert passed
    end_of_process(killed)
    for one, other in zip(*(sorted(runs.run_folders(each[0].runs)) for each in (whole, killed)), strict=True):
        assert_same_run(one, other)


def forked(settings):
    process = multiprocessing.get_context("fork").Process(target=trained, args=(settings,))
    process.start()
    return process


def end_of_process(settings):
    process = forked(settings)
    process.join()
    assert process.exitcode == 0


def checkpoints(root):
    return {(file.parent.parent.name, file.name) for file in root.glob("*/state/*.json")}
