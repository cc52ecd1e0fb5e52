"""Local executor: one process per run, by default as many in parallel as there are cores.

With fork, a run inherits the data that its parent opened, so it is loaded once for all runs. A forked process must use
one thread only, because the threads of its parent's pool do not survive a fork. If there are so few runs that each gets
several threads, processes are spawned instead and open the data themselves. Objectives and data that were given as
Python objects are known to this process and its forks only: if it cannot be forked, it makes these runs in turn.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from tercet.comparison.executors.base import ExecutorEvents
from tercet.comparison.plan import PlannedRun, PreparedDatasets
from tercet.interrupt import SIGNALS, Interrupt, exit_code, stop_on_signals
from tercet.names import is_in_memory
from tercet.progress import RunProgress
from tercet.training.prepare import PreparedData

SECONDS_BETWEEN_MESSAGES = 0.2
SECONDS_TO_STOP = 60.0


@dataclass
class _ActiveRun:
    plan: PlannedRun
    process: Any
    receiver: Connection
    forked: bool
    ended: bool = False


class LocalExecutor:
    """One process per run on this machine.

    `processes`: runs in parallel; None is the number of cores.
    """

    def __init__(self, prepared_datasets: PreparedDatasets, processes: int | None = None) -> None:
        self._prepared_datasets, self._processes = prepared_datasets, processes

    def run(self, plans: Sequence[PlannedRun], events: ExecutorEvents) -> None:
        if not plans:
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        processes = min(self._processes or cores, len(plans))
        from_python = any(_is_from_python(plan) for plan in plans)
        threads = 1 if from_python else max(1, cores // processes)
        context = _context(plans, threads)
        if from_python and context.get_start_method() != "fork":
            self._run_here(plans, events)
            return
        if context.get_start_method() == "fork":
            _import_for_children()
        waiting, active = deque(plans), list[_ActiveRun]()
        # A flag, not an exception at any point: exceptions raised in the hooks after a fork are lost.
        with Interrupt() as interrupt:
            try:
                while waiting or active:
                    while waiting and len(active) < processes and not interrupt.requested:
                        active.append(self._start(waiting.popleft(), context, threads, active, events))
                    if interrupt.requested:
                        interrupt.stop()
                    _poll(active, events)
                    active = [run for run in active if not run.ended]
                    events.idle()
            except BaseException:
                _stop(active)
                raise

    def _run_here(self, plans: Sequence[PlannedRun], events: ExecutorEvents) -> None:
        from tercet.training.train import train_run

        for plan in plans:
            events.started(plan)
            events.idle()
            try:
                prepared = self._prepared_datasets[plan.variant.model]
                folder = train_run(plan.settings, prepared, _EventProgress(plan, events)).folder
            except Exception as error:
                events.failed(plan, _reason(error))
            else:
                events.finished(plan, folder)

    def _start(
        self, plan: PlannedRun, context: Any, threads: int, others: Sequence[_ActiveRun], events: ExecutorEvents
    ) -> _ActiveRun:
        receiver, sender = context.Pipe(duplex=False)
        forked = context.get_start_method() == "fork"
        prepared = self._prepared_datasets[plan.variant.model] if forked else None
        inherited = [receiver, *(other.receiver for other in others)] if forked else []
        process = context.Process(
            target=_child, args=(plan, prepared, threads, sender, inherited, os.getpid()), name=plan.name, daemon=True
        )
        process.start()
        sender.close()
        events.started(plan)
        return _ActiveRun(plan, process, receiver, forked)


def _context(plans: Sequence[PlannedRun], threads: int) -> BaseContext:
    import torch

    device = plans[0].settings.device
    cuda = device.startswith("cuda") if device is not None else torch.cuda.is_available()
    can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" and not cuda
    return multiprocessing.get_context("fork" if can_fork and threads == 1 else "spawn")


def _import_for_children() -> None:
    """Import what a run imports late: the first optimizer imports torch's compiler, over a second in every process."""
    import torch

    torch.optim.SGD([torch.zeros(1)])


def _is_from_python(plan: PlannedRun) -> bool:
    settings = plan.settings
    return any(is_in_memory(name or "") for name in (settings.data, settings.objective, settings.warmup_objective))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"


class _EventProgress(RunProgress):
    """Steps of a run in this process."""

    def __init__(self, plan: PlannedRun, events: ExecutorEvents) -> None:
        super().__init__()
        self._plan, self._events = plan, events

    def step(self, done: int, total: int, status: Mapping[str, str]) -> None:
        self._events.step(self._plan, done, total, status)
        self._events.idle()


def _poll(active: Sequence[_ActiveRun], events: ExecutorEvents) -> None:
    """Receive messages of the runs, and mark those that ended."""
    handles = [*(run.receiver for run in active), *(run.process.sentinel for run in active)]
    wait(handles, timeout=SECONDS_BETWEEN_MESSAGES)
    for run in active:
        exited = not run.process.is_alive()  # checked first, so that its last message is read below
        with contextlib.suppress(EOFError, OSError):
            while run.receiver.poll():
                _dispatch(run, run.receiver.recv(), events)
        if exited and not run.ended:
            run.ended = True
            events.failed(run.plan, _exit_reason(run.process.exitcode, forked=run.forked))
        if run.ended:
            run.process.join()
            run.receiver.close()


def _dispatch(run: _ActiveRun, message: tuple[Any, ...], events: ExecutorEvents) -> None:
    if message[0] == "step":
        events.step(run.plan, *message[1:])
    elif message[0] == "finished":
        run.ended = True
        events.finished(run.plan, Path(message[1]))
    else:
        run.ended = True
        events.failed(run.plan, message[1])


def _exit_reason(code: int | None, *, forked: bool) -> str:
    if code is not None and code < 0:
        hint = ": out of memory? Try fewer --processes" if -code == signal.SIGKILL else ""
        return f"its process was killed by signal {signal.Signals(-code).name}{hint}"
    if code is not None and code - 128 in SIGNALS:
        return f"it was stopped by {signal.Signals(code - 128).name}: run the command again to resume it"
    # A spawned process imports the calling script again.
    hint = "" if forked else "; a script that calls tercet.compare must do so under if __name__ == '__main__'"
    return f"its process exited with code {code} without a message{hint}"


def _stop(active: Sequence[_ActiveRun]) -> None:
    """Let each run finish its step and write a checkpoint; kill it after a timeout or a second Ctrl-C."""
    running = [run.process for run in active if run.process.is_alive()]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    deadline = time.monotonic() + SECONDS_TO_STOP
    try:
        for process in running:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in running:
            if process.is_alive():
                process.kill()
                process.join()


def _child(
    plan: PlannedRun,
    prepared: PreparedData | None,
    threads: int,
    sender: Connection,
    inherited: Sequence[Connection],
    parent_pid: int,
) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches only the parent, which forwards it once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for connection in inherited:
        connection.close()
    _redirect_output(os.devnull)

    import torch

    from tercet.training.train import train_run

    torch.set_num_threads(threads)
    progress = _PipeProgress(sender, parent_pid)
    try:
        with stop_on_signals():
            sender.send(("finished", str(train_run(plan.settings, prepared, progress).folder)))
    except KeyboardInterrupt as error:
        os._exit(exit_code(error))
    except Exception as error:
        sender.send(("failed", _reason(error)))
        with contextlib.suppress(OSError):  # the folder of a rejected run is already removed
            progress.log("".join(traceback.format_exception(error)))


class _PipeProgress(RunProgress):
    """Sends progress to the parent at a limited rate, and stops the run if the parent is gone."""

    def __init__(self, sender: Connection, parent_pid: int) -> None:
        super().__init__()
        self._sender, self._parent_pid, self._next = sender, parent_pid, 0.0

    def begin(self, log_file: Path) -> None:
        super().begin(log_file)
        _redirect_output(str(log_file))  # prints of a custom objective go to the log of its run

    def step(self, done: int, total: int, status: Mapping[str, str]) -> None:
        now = time.monotonic()
        if now >= self._next or done == total:
            self._next = now + SECONDS_BETWEEN_MESSAGES
            if os.getppid() != self._parent_pid:
                os.kill(os.getpid(), signal.SIGINT)  # the parent was killed: stop as on Ctrl-C
                return
            self._sender.send(("step", done, total, dict(status)))


def _redirect_output(file: str) -> None:
    """Redirect stdout and stderr, also of C code, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
