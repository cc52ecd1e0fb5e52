"""Comparisons whose runs are trained in stacks: the same results as one by one, also after kill -9 and failures."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import tercet
from tercet import runs
from tercet.comparison.executors.local import STACK_SIZE, make_jobs, threads_of
from tercet.comparison.plan import PlannedRun, Variant, planned_together
from tercet.training.settings import train_settings
from tercet.training.train import Loop
from tests.training.test_train import assert_same_run

GRID = {
    "data": "scenes:60",
    "objectives": ("nt-xent", "triplet-sh"),
    "no_tune": True,
    "seeds": 2,
    "epochs": 2,
    "model_settings": {"embed_dim": 10},
    "train": {"batch_size": 37, "epoch_steps": 4},
    "processes": 2,
}


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """Processes with one thread are forked; with more they would be spawned, which takes seconds."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})


def stacked_steps(root):
    return {folder.name: runs.read_machine(folder)["stacked_steps"] for folder in runs.run_folders(root)}


def test_runs_are_stacked_unless_it_is_turned_off(tmp_path):
    stacked = tercet.compare(**GRID, runs=tmp_path / "stacked")
    separate = tercet.compare(**GRID, no_stack=True, runs=tmp_path / "separate")
    assert set(stacked_steps(tmp_path / "stacked").values()) == {8}
    assert set(stacked_steps(tmp_path / "separate").values()) == {0}
    assert stacked.folder.name == separate.folder.name
    for name in GRID["objectives"]:
        for seed in range(2):
            assert stacked.results.runs[name][seed].metrics == separate.results.runs[name][seed].metrics
    # The runs are the same: they are found, however they were made.
    again = tercet.compare(**GRID, runs=tmp_path / "separate")
    assert set(stacked_steps(tmp_path / "separate").values()) == {0}
    assert again.document() == separate.document()


def test_a_resumed_run_gets_the_threads_that_it_began_with():
    base = PlannedRun(Variant("x", "nt-xent"), train_settings({}))
    planned = planned_together(
        [replace(base, settings=replace(base.settings, seed=n)) for n in range(4)], {}, stack=False
    )
    assert [threads_of(planned[:left], 2, 2) for left in (4, 2, 1)] == [1, 1, 1]
    assert threads_of(planned_together([base], {}, stack=False), 2, 2) == 2
    assert threads_of(planned, 1, 2) == 2


def test_leftovers_of_a_run_that_was_killed_at_its_end_are_removed(tmp_path):
    tercet.compare(**GRID, runs=tmp_path)
    folder = runs.run_folders(tmp_path)[0]
    (folder / runs.STATE).mkdir()
    for name in (".lock", ".machine.json.123.tmp"):
        (folder / name).write_text("")
    tercet.compare(**GRID, runs=tmp_path)
    assert not (folder / runs.STATE).exists()
    assert not list(folder.glob(".*"))


def test_one_run_alone_is_not_a_stack(tmp_path):
    tercet.compare(**GRID | {"objectives": "nt-xent", "seeds": 1}, runs=tmp_path)
    assert set(stacked_steps(tmp_path).values()) == {0}


def test_a_resumed_comparison_trains_every_run_as_it_began(tmp_path):
    """A single missing run is trained as a stack if the comparison has runs that it can be stacked with."""
    tercet.compare(**GRID | {"seeds": 1}, runs=tmp_path)
    tercet.compare(**GRID | {"seeds": 1, "objectives": ("nt-xent", "triplet-sh", "cir/lin")}, runs=tmp_path)
    assert sorted(stacked_steps(tmp_path).values()) == [8, 8, 8]


def planned(count, stack="heads"):
    base = PlannedRun(Variant("x", "nt-xent"), train_settings({}))
    return [replace(base, note=str(number), stack=stack) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "processes", "sizes"),
    [(24, 2, [6] * 4), (75, 2, [7, 8] * 5), (3, 2, [1, 2]), (3, 8, [1, 1, 1]), (16, 1, [8, 8])],
)
def test_stacks_keep_all_processes_busy(count, processes, sizes):
    jobs = make_jobs(planned(count), processes)
    assert [len(job) for job in jobs] == sizes
    assert max(sizes) <= STACK_SIZE
    assert [plan.note for job in jobs for plan in job] == [str(number) for number in range(count)]


def test_runs_of_different_shapes_and_single_runs_are_jobs_of_their_own():
    wide, alone = planned(2, "wide"), planned(2, None)
    jobs = make_jobs([*alone[:1], *planned(3), *wide, *alone[1:]], 1)
    assert [[plan.stack for plan in job] for job in jobs] == [["heads"] * 3, ["wide"] * 2, [None], [None]]


def test_a_process_that_dies_takes_only_its_own_runs_with_it(tmp_path, monkeypatch):
    """The second seed's stack is killed in the middle; the first seed's runs are compared."""
    update = Loop.update

    def dies(loop, *arguments):
        if loop.settings.seed == 1 and loop.state.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        update(loop, *arguments)

    monkeypatch.setattr(Loop, "update", dies)
    result = tercet.compare(**GRID, runs=tmp_path)
    assert {name: list(by_seed) for name, by_seed in result.results.runs.items()} == {"nt-xent": [0], "triplet-sh": [0]}
    assert [failure.why for failure in result.results.failures] == [
        "its process was killed by signal SIGKILL: out of memory? Try fewer --processes"
    ] * 2


def test_a_diverged_run_is_reported_and_the_others_are_compared(tmp_path):
    diverging = ("nt-xent", "triplet-sh:learning_rate=1e38", "triplet-sh")
    result = tercet.compare(**GRID | {"objectives": diverging, "seeds": 1, "processes": 1}, runs=tmp_path)
    assert sorted(result.results.runs) == ["nt-xent", "triplet-sh"]
    (failure,) = result.results.failures
    assert "NaN or infinity" in failure.why
    (folder,) = [each for each in runs.run_folders(tmp_path) if not runs.is_finished(each)]
    assert "Traceback" in (folder / "log.txt").read_text()


@pytest.mark.slow
def test_a_killed_grid_resumes_with_the_same_bits(tmp_path):
    """SIGKILL of the command and of its processes, again and again, each time when a new checkpoint has appeared."""
    objectives = ("nt-xent", "triplet-sh", "cir/sig-ms", "smooth-ap")
    command = [sys.executable, "-m", "tercet", "compare", "scenes:60", "--objectives", *objectives, "--no-tune"]
    command += ["--seeds", "3", "--epochs", "3", "--model-settings", "embed_dim=10", "--processes", "2"]
    command += ["--train", "batch_size=37", "checkpoint_every=3", "--runs"]
    subprocess.run([*command, tmp_path / "whole"], check=True, capture_output=True)
    passed, kills = set(), 0
    while kills < 8:
        process = subprocess.Popen([*command, tmp_path / "killed"], stderr=subprocess.DEVNULL)
        while process.poll() is None and not checkpoints(tmp_path / "killed") - passed:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            everything = [process.pid, *map(int, children.read().split())]
        for pid in everything:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        passed |= checkpoints(tmp_path / "killed")
        kills += 1
    assert kills >= 3
    subprocess.run([*command, tmp_path / "killed"], check=True, capture_output=True)
    whole, killed = (sorted(runs.run_folders(tmp_path / name)) for name in ("whole", "killed"))
    assert len(whole) == 12
    for one, other in zip(whole, killed, strict=True):
        assert_same_run(one, other)


def checkpoints(root):
    return {(file.parent.parent.name, file.name) for file in root.glob("*/state/*.json")}
