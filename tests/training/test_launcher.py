"""Processes of torchrun end if torchrun itself is killed."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tercet.training import runtime

LAUNCHER = """
import os, signal, subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
rank.stderr.readline()  # it knows its launcher now
os.kill(os.getpid(), signal.SIGKILL)
"""
RANK = """
import sys, threading
from tercet.interrupt import Stopped, stop_on_signals
from tercet.training import runtime
runtime.SECONDS_BETWEEN_LOOKS = 0.01
try:
    with stop_on_signals(), runtime._stopped_without_launcher():
        print("ready", file=sys.stderr, flush=True)
        threading.Event().wait(60)
except Stopped as stop:
    print(stop.number)
"""


def test_a_launcher_that_is_gone_is_one_line_instead_of_half_an_hour(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(ValueError, match=f"torchrun is gone: no answer from 127.0.0.1, port {port}"),
        runtime.distributed_run("cpu"),
    ):
        pass


def test_a_rank_stops_as_on_sigterm_if_its_launcher_is_killed():
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    command = [sys.executable, "-c", LAUNCHER, RANK]
    # Ends when the rank, which has the same stdout, ends.
    launcher = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120)
    assert launcher.returncode == -signal.SIGKILL
    assert launcher.stdout == f"{int(signal.SIGTERM)}\n"


PEER = """
import os, signal, sys
from tercet.training import runtime
try:
    with runtime.distributed_run("cpu"):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        runtime.barrier()
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_rank_whose_peer_is_killed_ends_with_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PEER],
            env=os.environ | address | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (left, errors), _ = [rank.communicate(timeout=120) for rank in ranks]
    assert left.startswith("rank 0 stopped because another process of the run has ended"), errors
    assert len(left.splitlines()) == 1
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL]
