"""Ctrl-C, SIGTERM and SIGHUP: every long command finishes its step, saves, and resumes to the same files."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tercet import interrupt, storage
from tercet.comparison.executors.local import LocalExecutor
from tercet.comparison.live_table import LiveTable
from tercet.console import RunProgress
from tercet.data import open_data
from tercet.data.dataset import select_splits
from tercet.data.encoders import extract as extraction
from tercet.data.encoders.registry import BagOfWords
from tercet.interrupt import Interrupt, Stopped, exit_code, stop_on_signals
from tercet.mining.mine import MiningConfig, mine
from tercet.similarity import SplitScorer
from tests.commands import tercet
from tests.mining.test_mine import MODEL as MINING_MODEL
from tests.mining.test_mine import scorer_of, world

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
TRAIN = ("scenes:60", "--epochs", 2, "--batch-size", 50, "--model-settings", "embed_dim=8")
CHANGING = ("machine.json", "log.txt", "ranks.npz")


@pytest.fixture(autouse=True)
def default_handlers():
    """As in a shell, also if the suite was started in the background or by nohup."""
    before = {number: signal.getsignal(number) for number in interrupt.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in interrupt.SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)
    yield
    assert [signal.getsignal(number) for number in interrupt.SIGNALS[1:]] == [signal.SIG_DFL] * 2
    for number, handler in before.items():
        signal.signal(number, handler)


def files(folder, without=()):
    found = (file for file in folder.rglob("*") if file.is_file() and file.name not in without)
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def only_run(root):
    (run,) = root.iterdir()
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    assert tercet("train", *TRAIN, "--runs", root).returncode == 0
    return only_run(root)


@SIGNALS
def test_training_saves_the_step_under_way(tmp_path, trained, monkeypatch, number):
    def step(self, done, total, status):
        if done == 3:
            signal.raise_signal(number)  # during step 3: after it the checkpoint is written

    with monkeypatch.context() as patched:
        patched.setattr(RunProgress, "step", step)
        done = tercet("train", *TRAIN, "--runs", tmp_path)
    assert done.returncode == 128 + number
    assert done.stderr.splitlines()[-1].endswith("stopped; finished work is kept, run the command again to resume")
    assert max((only_run(tmp_path) / "state").glob("*.pt")).name in ("step_00000003.pt", "step_00000004.pt")
    assert tercet("train", *TRAIN, "--runs", tmp_path).returncode == 0
    assert files(only_run(tmp_path), CHANGING) == files(trained, CHANGING)


def test_a_signal_at_the_end_of_an_epoch(tmp_path, trained, monkeypatch):
    from tercet.training.train import Loop

    validate = Loop._validate

    def interrupted(self, epoch):
        signal.raise_signal(signal.SIGTERM)
        return validate(self, epoch)

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(Loop, "_validate", interrupted)
            assert tercet("train", *TRAIN, "--runs", tmp_path).returncode == 143
    assert tercet("train", *TRAIN, "--runs", tmp_path).returncode == 0
    assert files(only_run(tmp_path), CHANGING) == files(trained, CHANGING)


@pytest.mark.parametrize("receivers", ["command", "all processes"])
def test_compare_lets_its_runs_save(tmp_path, monkeypatch, receivers):
    """SLURM sends a signal to the runs too, and the command then passes it on: the second time it means the same."""
    processes = []
    start = LocalExecutor._start

    def recorded(self, *arguments):
        run = start(self, *arguments)
        processes.append(run.process)
        return run

    def idle(self):
        if len(list(tmp_path.glob("2*/state"))) == 2:
            for process in processes if receivers == "all processes" else ():
                os.kill(process.pid, signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(LocalExecutor, "_start", recorded)
    monkeypatch.setattr(LiveTable, "idle", idle)
    arguments = ("--epochs", 500, "--seeds", 1, "--objectives", "nt-xent", "triplet", "--no-tune", "--no-stack")
    arguments += ("--processes", 2)
    done = tercet("compare", "scenes:60", *arguments, "--runs", tmp_path)
    assert done.returncode == 143, done.stderr
    assert "failed" not in done.stderr
    assert {process.exitcode for process in processes} <= {130, 143}  # not killed: they have saved
    assert not list(tmp_path.rglob(".*.tmp"))


@SIGNALS
def test_mining_saves_the_block_under_way(tmp_path, number):
    w = world()
    scorer = scorer_of(w)(tmp_path)
    blocks = []

    def block(rows, columns):
        blocks.append(rows.start)
        if len(blocks) == 2:
            signal.raise_signal(number)
        return scorer.block(rows, columns)

    def run(name):
        counted = SplitScorer(block, scorer.of_pairs, 5)
        mine(lambda folder: counted, w.data, tmp_path / name, MiningConfig(8, 5), MINING_MODEL)

    with pytest.raises(Stopped) as stopped:
        run("table")
    assert exit_code(stopped.value) == 128 + number
    assert (blocks, (tmp_path / "table").exists()) == ([0, 5], False)
    run("table")
    assert blocks[2] == 10  # saved every 60 seconds otherwise
    run("whole")
    assert files(tmp_path / "table") == files(tmp_path / "whole")


def test_features_save_the_batch_under_way(tmp_path, monkeypatch):
    class Counted(BagOfWords):
        batches = 0

        def encode(self, texts):
            Counted.batches += 1
            if Counted.batches == 2:
                signal.raise_signal(signal.SIGTERM)
            return super().encode(texts)

    monkeypatch.setattr(extraction, "TEXT_BATCH_SIZE", 40)
    data = select_splits(open_data("scenes:21"), ["train"])
    with pytest.raises(Stopped):
        extraction.extract(data, tmp_path / "out", None, Counted())
    assert storage.is_intact(tmp_path / "out.unfinished" / "progress.json")
    assert Counted.batches == 2
    extraction.extract(data, tmp_path / "out", None, Counted())
    resumed, Counted.batches = Counted.batches, 3
    extraction.extract(data, tmp_path / "whole", None, Counted())
    assert resumed == Counted.batches - 3  # no batch was encoded twice
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_second_signal_stops_at_once_unless_it_is_the_same_request(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: clock[0])
    with Interrupt() as requested:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # passed on by a launcher
        assert requested.requested
        clock[0] += 2
        with pytest.raises(Stopped, match="stopped by SIGINT"):
            signal.raise_signal(signal.SIGINT)


def test_handlers_of_the_caller_stay():
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    with stop_on_signals(), Interrupt() as requested:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        assert not requested.requested
    assert received == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_index_and_every_other_command_stop_where_they_are(tmp_path, monkeypatch):
    from tercet.cli import search

    monkeypatch.setattr(search, "index", lambda *_: signal.raise_signal(signal.SIGTERM))
    done = tercet("index", "nowhere", "--images", tmp_path, "--out", tmp_path / "index")
    assert done.returncode == 143
    assert done.stderr == "tercet index: stopped; finished work is kept, run the command again to resume\n"


@pytest.mark.slow
@pytest.mark.parametrize("receiver", ["launcher", "rank 1", "group"])
def test_several_processes_stop_after_the_same_step(tmp_path, trained, receiver):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["train", *map(str, TRAIN), "--epochs", "400", "--runs", str(tmp_path / "runs")]
    program = [*launcher, "-m", "tercet", *arguments, "--checkpoint-every", "100000"]
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(program, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/*/state/*.json")):  # the end of the first epoch
            assert process.poll() is None, (tmp_path / "output.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if receiver == "group":
            os.killpg(process.pid, signal.SIGINT)
        else:
            target = process.pid if receiver == "launcher" else ranks_of(process.pid)[1]
            os.kill(target, signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    text = (tmp_path / "output.txt").read_text()
    assert process.returncode != 0
    assert text.count("stopped; finished work is kept") == 2, text
    run = only_run(tmp_path / "runs")
    assert not list(run.rglob(".*.tmp"))
    assert len(list(run.glob("state/*.pt"))) == 2


def ranks_of(launcher):
    """The processes that torchrun started, by rank."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = dict(v.split("=", 1) for v in (process / "environ").read_text().split("\0") if "=" in v)
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher and "RANK" in variables:
                found[int(variables["RANK"])] = int(process.name)
    return found


def test_an_exit_code_is_128_and_the_signal():
    assert exit_code(KeyboardInterrupt()) == 130
    assert exit_code(Stopped(signal.SIGTERM)) == 143
