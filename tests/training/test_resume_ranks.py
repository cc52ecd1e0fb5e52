"""Several processes resume from the same checkpoint, also if one reads later than the others."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

import tercet
from tercet import runs
from tercet.models import build
from tercet.training import runtime
from tercet.training.checkpoint import save_state, state_at
from tercet.training.train import Loop
from tests.training.small_training import SMALL, small_data, small_loop


def sizes(data):
    return {"image_dim": data.images.shape[-1], "caption_dim": data.captions.shape[-1], "embed_dim": 16}


def test_rank_0_chooses_and_the_others_read_that_checkpoint(tmp_path, monkeypatch):
    data = small_data()
    loop = small_loop(tmp_path, build("heads", **sizes(data)), data)
    for step in (4, 6):
        loop.state.step = step
        loop.save()
    told, barriers = [], []
    monkeypatch.setattr(runtime, "from_main", lambda value: told.append(value) or value)
    monkeypatch.setattr(runtime, "barrier", lambda: barriers.append(len(told)))
    assert small_loop(tmp_path, build("heads", **sizes(data)), data).state.step == 6
    assert (told, barriers) == ([6], [1])
    # Rank 1 is told step 4, although a newer checkpoint is there by now.
    monkeypatch.setattr(runtime, "is_main_process", lambda: False)
    monkeypatch.setattr(runtime, "from_main", lambda value: 4)
    other = small_loop(tmp_path, build("heads", **sizes(data)), data)
    assert other.state.step == 4
    assert other.metrics is None
    # Rank 0 starts over: so does rank 1.
    monkeypatch.setattr(runtime, "from_main", lambda value: -1)
    assert small_loop(tmp_path, build("heads", **sizes(data)), data).state.step == 0


def test_a_checkpoint_that_a_rank_cannot_read_is_named(tmp_path):
    save_state(tmp_path, 3, {"step": 3})
    assert state_at(tmp_path, 3) == {"step": 3}
    (tmp_path / "step_00000003.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"step_00000003\.pt: rank 0 resumes from it.*checksum mismatch"):
        state_at(tmp_path, 3)
    with pytest.raises(ValueError, match=r"step_00000009\.pt: rank 0 resumes from it"):
        state_at(tmp_path, 9)


SCRIPT = """
import os, pathlib, sys, time
import tercet
from tercet.training import train as module

def delayed(read):
    def wait_and_read(folder, *arguments):
        before, deadline = set(folder.iterdir()), time.monotonic() + 5
        while set(folder.iterdir()) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        return read(folder, *arguments)
    return wait_and_read

if os.environ["RANK"] == "1":  # until rank 0 has written a newer checkpoint, which it must not
    for name in ("newest_state", "state_at"):
        if hasattr(module, name):
            setattr(module, name, delayed(getattr(module, name)))
tercet.train(**{settings!r}, runs=pathlib.Path({folder!r}))
"""


@pytest.mark.slow
def test_a_late_rank_does_not_start_another_epoch(tmp_path, monkeypatch):
    """The checkpoint is at the last step of an epoch: rank 0 has only to validate before it writes the next one."""

    def stop(self, epoch):
        self.save()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_validate", stop)
        with pytest.raises(KeyboardInterrupt):
            tercet.train(**SMALL, runs=tmp_path / "runs")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(settings=SMALL, folder=str(tmp_path / "runs")))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen([*launcher, str(script)], stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(timeout=240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the ranks too, if they hang
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()
    (folder,) = (tmp_path / "runs").iterdir()
    whole = tercet.train(**SMALL, runs=tmp_path / "whole")
    for one, other in zip(runs.read_lines(folder), runs.read_lines(whole.folder), strict=True):
        assert one["step"] == other["step"]
    one, other = (tercet.load(path).model.state_dict() for path in (folder, whole.folder))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)
