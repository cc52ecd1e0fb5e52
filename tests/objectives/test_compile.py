"""The dense path compiles as one graph, and its gradient equals the eager one to 1e-6."""

import subprocess
import sys
from pathlib import Path

import pytest

from tercet.objectives import OBJECTIVES


@pytest.mark.slow
def test_every_objective_compiles_as_one_graph_and_agrees_with_eager():
    script = Path(__file__).with_name("compile_all.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    differences = {line.split()[0]: float(line.split()[1]) for line in run.stdout.splitlines()}
    assert list(differences) == [*OBJECTIVES, "own_gradient"]
    assert max(differences.values()) < 1e-6, differences


@pytest.mark.slow
def test_compiled_smooth_ap_allocates_no_3d_tensor():
    """Peak memory of the process on a batch whose anchor x candidate x candidate tensor would be 400 MB."""
    program = """
import torch, tercet, resource
o = tercet.objective("smooth-ap")
owners = torch.arange(160).repeat_interleave(5)
call = torch.compile(lambda x, y: o(x, y, owners=owners), fullgraph=True)
def run():
    x, y = torch.randn(160, 8, requires_grad=True), torch.randn(800, 8, requires_grad=True)
    call(x, y).backward()
    return x.grad
grad = run()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run()
assert grad.isfinite().all()
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    eager = program.replace("torch.compile(", "(").replace(", fullgraph=True)", ")")
    peaks = [
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()[1])
        for code in (program, eager)
    ]
    assert peaks[0] - peaks[1] < 300 * 1024  # kB, used by the compiler itself
