"""torchrun with two and three processes gives the weights and metrics of one."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from tercet import runs
from tests.commands import tercet

ARGUMENTS = ["scenes:120", "--epochs", "2", "--batch-size", "50", "--precision", "float64"]
CASES = {
    "heads": ["--objective", "nt-xent", "--model-settings", "embed_dim=16"],
    "several captions": ["--objective", "smooth-ap", "--captions-per-image", "5", "--model-settings", "embed_dim=16"],
    "scan": [
        *("--model", "scan", "--features", "regions", "--objective", "triplet-sh", "--positives", "ids"),
        *("--model-settings", "embed_dim=8", "word_dim=8"),
    ],
    "vsepp": ["--model", "vsepp", "--objective", "cir/sig-ms", "--model-settings", "embed_dim=16", "word_dim=8"],
}


def train(folder, count, more):
    arguments = ["train", *ARGUMENTS, *more, "--runs", str(folder)]
    if count == 1:
        done = tercet(*arguments)
    else:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", "tercet"]
        command, environment = [sys.executable, "-m", *launcher, *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("heads", 2),
        *(pytest.param(case, n, marks=pytest.mark.slow) for case in CASES for n in (2, 3) if (case, n) != ("heads", 2)),
    ],
)
def test_several_processes_make_the_steps_of_one(tmp_path, case, count):
    alone, several = (train(tmp_path / str(n), n, CASES[case]) for n in (1, count))
    assert several.name.split("_")[-1] == alone.name.split("_")[-1]  # it is the same run
    one, other = (load_file(run / "weights.safetensors") for run in (alone, several))
    assert max((one[name] - other[name]).abs().max().item() for name in one) < 1e-10
    assert runs.read_metrics(alone) == pytest.approx(runs.read_metrics(several), abs=1e-9)
    assert json.loads((several / "machine.json").read_text())["processes"] == count


@pytest.mark.slow
def test_batch_norm_in_several_processes_is_refused(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    more = ["scenes:60", "--model", "vsrn", "--features", "regions", "--model-settings", "embed_dim=8"]
    command += ["tercet", "train", "--epochs", "1", "--batch-size", "20", *more, "--runs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode != 0
    assert "is a BatchNorm" in done.stdout + done.stderr
