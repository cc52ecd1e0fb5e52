"""Local executor: processes that train stacks of runs or single runs, by default as many as there are cores.

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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType
from typing import Any

from tercet.comparison.executors.base import ExecutorEvents
from tercet.comparison.plan import PlannedRun, PreparedDatasets
from tercet.console import RunProgress
from tercet.interrupt import SIGNALS, Interrupt, exit_code, stop_on_signals
from tercet.names import is_in_memory
from tercet.training.prepare import PreparedData
from tercet.training.stacked import Ended, train_stack
from tercet.training.trained import Trained

SECONDS_BETWEEN_MESSAGES = 0.2
SECONDS_TO_STOP = 60.0


STACK_SIZE = 8
"""Runs in a stack, at most: more share little, and their parameters and activations leave the CPU's cache."""

Job = Sequence[PlannedRun]
"""What one process trains: a stack of runs, or a single run."""


@dataclass
class _ActiveJob:
    plans: Job
    process: Any
    receiver: Connection
    training: set[int]
    """Numbers of the runs that have not ended."""


class LocalExecutor:
    """Processes on this machine, each of which trains a stack of runs, or a single run.

    `processes`: in parallel; None is the number of cores.
    """

    def __init__(self, prepared_datasets: PreparedDatasets, processes: int | None = None) -> None:
        self._prepared_datasets, self._processes = prepared_datasets, processes

    def run(self, plans: Sequence[PlannedRun], events: ExecutorEvents) -> None:
        if not plans:
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jobs = make_jobs(plans, self._processes or cores)
        processes = min(self._processes or cores, len(jobs))
        from_python = any(_is_from_python(plan) for plan in plans)
        threads = 1 if from_python else threads_of(plans, self._processes or cores, cores)
        context = _context(plans, threads)
        if from_python and context.get_start_method() != "fork":
            self._run_here(jobs, events)
            return
        if context.get_start_method() == "fork":
            _import_for_children()
        waiting, active = deque(jobs), list[_ActiveJob]()
        # A flag, not an exception at any point: exceptions raised in the hooks after a fork are lost.
        with Interrupt() as interrupt:
            try:
                while waiting or active:
                    while waiting and len(active) < processes and not interrupt.requested:
                        active.append(self._start(waiting.popleft(), context, threads, active, events))
                    if interrupt.requested:
                        interrupt.stop()
                    _poll(active, events)
                    active = [job for job in active if job.training]
                    events.idle()
            except BaseException:
                _stop(active)
                raise

    def _run_here(self, jobs: Sequence[Job], events: ExecutorEvents) -> None:
        for plans in jobs:
            for plan in plans:
                events.started(plan)
            events.idle()

            def ended(number: int, result: Trained | Exception, plans: Job = plans) -> None:
                if isinstance(result, Exception):
                    events.failed(plans[number], _reason(result))
                else:
                    events.finished(plans[number], result.folder)

            progress = [_EventProgress(plan, events) for plan in plans]
            _train(plans, self._prepared_datasets[plans[0].variant.model], progress, ended)

    def _start(
        self, plans: Job, context: Any, threads: int, others: Sequence[_ActiveJob], events: ExecutorEvents
    ) -> _ActiveJob:
        receiver, sender = context.Pipe(duplex=False)
        forked = context.get_start_method() == "fork"
        prepared = self._prepared_datasets[plans[0].variant.model]
        inherited = [receiver, *(other.receiver for other in others)] if forked else []
        process = context.Process(
            target=_child,
            args=(
                plans,
                prepared if forked else None,
                prepared.test is not None,
                threads,
                sender,
                inherited,
                os.getpid(),
            ),
            name=plans[0].name,
            daemon=True,
        )
        with contextlib.nullcontext() if forked else _without_main_module():
            process.start()
        sender.close()
        for plan in plans:
            events.started(plan)
        return _ActiveJob(plans, process, receiver, set(range(len(plans))))


def threads_of(plans: Sequence[PlannedRun], processes: int, cores: int) -> int:
    """Threads per process: as many as when all runs were planned, so that a resumed run ends with the same bits."""
    return max(1, cores // min(processes, max(len(plans), plans[0].together)))


def make_jobs(plans: Sequence[PlannedRun], processes: int) -> list[Job]:
    """Stacks of nearly equal size, as many as keep all processes busy to the end, and single runs."""
    stackable: dict[Hashable, list[PlannedRun]] = {}
    for plan in plans:
        if plan.stack is not None:
            stackable.setdefault(plan.stack, []).append(plan)
    jobs: list[Job] = []
    for group in stackable.values():
        turns = -(-len(group) // (STACK_SIZE * processes))
        count = min(len(group), turns * processes)
        ends = [len(group) * number // count for number in range(count + 1)]
        jobs += [group[start:end] for start, end in pairwise(ends)]
    return [*jobs, *([plan] for plan in plans if plan.stack is None)]


def _train(
    plans: Job,
    prepared: PreparedData | None,
    progress: Sequence[RunProgress],
    ended: Ended,
    *,
    tested: bool = True,
) -> None:
    """Train the runs of a job; `ended` is called once for each, unless it is interrupted.

    Without `prepared` the data is opened here; with `tested=False` (trials of the tuning) without its test split.
    """
    from tercet.training.prepare import prepare_data
    from tercet.training.train import train_run

    training = set(range(len(plans)))

    def end(number: int, result: Trained | Exception) -> None:
        training.discard(number)
        ended(number, result)

    try:
        if prepared is None:
            prepared = prepare_data(plans[0].settings)
            prepared = prepared if tested else replace(prepared, test=None)
        if plans[0].stack is None:
            end(0, train_run(plans[0].settings, prepared, progress[0]))
        else:
            train_stack([plan.settings for plan in plans], prepared, progress, end)
    except Exception as error:
        for number in sorted(training):
            end(number, error)


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


def _poll(active: Sequence[_ActiveJob], events: ExecutorEvents) -> None:
    """Receive messages of the runs, and end those whose process has ended."""
    handles = [*(job.receiver for job in active), *(job.process.sentinel for job in active)]
    wait(handles, timeout=SECONDS_BETWEEN_MESSAGES)
    for job in active:
        exited = not job.process.is_alive()  # checked first, so that its last message is read below
        with contextlib.suppress(EOFError, OSError):
            while job.receiver.poll():
                _dispatch(job, job.receiver.recv(), events)
        if exited:
            reason = _exit_reason(job.process.exitcode)
            for number in sorted(job.training):
                events.failed(job.plans[number], reason)
            job.training.clear()
        if not job.training:
            job.process.join()
            job.receiver.close()


def _dispatch(job: _ActiveJob, message: tuple[Any, ...], events: ExecutorEvents) -> None:
    kind, number, *content = message
    plan = job.plans[number]
    if kind == "step":
        events.step(plan, *content)
        return
    job.training.discard(number)
    if kind == "finished":
        events.finished(plan, Path(content[0]))
    else:
        events.failed(plan, content[0])


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        hint = ": out of memory? Try fewer --processes" if -code == signal.SIGKILL else ""
        return f"its process was killed by signal {signal.Signals(-code).name}{hint}"
    if code is not None and code - 128 in SIGNALS:
        return f"it was stopped by {signal.Signals(code - 128).name}: run the command again to resume it"
    return f"its process exited with code {code} without a message"


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Else a spawned process imports the main module: a script without a `__main__` guard would run again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _stop(active: Sequence[_ActiveJob]) -> None:
    """Let each run finish its step and write a checkpoint; kill it after a timeout or a second Ctrl-C."""
    running = [job.process for job in active if job.process.is_alive()]
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
    plans: Job,
    prepared: PreparedData | None,
    tested: bool,
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

    torch.set_num_threads(threads)
    progress = [_PipeProgress(sender, number, parent_pid) for number in range(len(plans))]

    def ended(number: int, result: Trained | Exception) -> None:
        if not isinstance(result, Exception):
            sender.send(("finished", number, str(result.folder)))
            return
        sender.send(("failed", number, _reason(result)))
        with contextlib.suppress(OSError):  # the folder of a rejected run is already removed
            progress[number].log("".join(traceback.format_exception(result)))

    try:
        with stop_on_signals():
            _train(plans, prepared, progress, ended, tested=tested)
    except KeyboardInterrupt as error:
        os._exit(exit_code(error))


class _PipeProgress(RunProgress):
    """Sends progress to the parent at a limited rate, and stops the run if the parent is gone."""

    def __init__(self, sender: Connection, number: int, parent_pid: int) -> None:
        super().__init__()
        self._sender, self._number, self._parent_pid, self._next = sender, number, parent_pid, 0.0

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
            self._sender.send(("step", self._number, done, total, dict(status)))


def _redirect_output(file: str) -> None:
    """Redirect stdout and stderr, also of C code, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
