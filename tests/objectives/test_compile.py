"""The dense path compiles as one graph and gives the eager gradient to 1e-6."""

import subprocess
import sys
from pathlib import Path

import pytest

from tercet.objectives import CATALOGUE


@pytest.mark.slow
def test_every_objective_compiles_as_one_graph_and_agrees_with_eager():
    script = Path(__file__).with_name("compile_all.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    differences = {line.split()[0]: float(line.split()[1]) for line in run.stdout.splitlines()}
    assert list(differences) == list(CATALOGUE)
    assert max(differences.values()) < 1e-6, differences
