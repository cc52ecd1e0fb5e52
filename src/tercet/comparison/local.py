"""An engine of processes on this machine: one a run, as many at a time as there are cores.

Where the system can fork, a run inherits the data that its parent opened: it is loaded once for all runs. A forked
process must not use more than one thread, since those of its parent's pool are gone; where runs are so few that each
could have several, they are started anew instead and open the data themselves.
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

from tercet.comparison.engine import Watcher
from tercet.comparison.plan import Plan, Readies
from tercet.training.interrupt import Interrupt
from tercet.training.ready import Ready
from tercet.training.report import Report

SECONDS_BETWEEN_WORDS = 0.2
SECONDS_TO_STOP = 60.0


@dataclass
class _Active:
    plan: Plan
    process: Any
    link: Connection
    forked: bool
    ended: bool = False


class LocalProcesses:
    def __init__(self, readies: Readies, workers: int | None = None) -> None:
        self._readies, self._workers = readies, workers

    def run(self, plans: Sequence[Plan], watcher: Watcher) -> None:
        if not plans:
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(self._workers or cores, len(plans))
        threads = max(1, cores // workers)
        context = _context(plans, threads)
        waiting, active = deque(plans), list[_Active]()
        try:
            # Not an exception wherever the signal arrives: those of the hooks that run after a fork are lost.
            with Interrupt() as interrupt:
                while waiting or active:
                    while waiting and len(active) < workers and not interrupt.asked:
                        active.append(self._start(waiting.popleft(), context, threads, active, watcher))
                    if interrupt.asked:
                        raise KeyboardInterrupt
                    _listen(active, watcher)
                    active = [run for run in active if not run.ended]
                    watcher.idle()
        except BaseException:
            _stop(active)
            raise

    def _start(self, plan: Plan, context: Any, threads: int, others: Sequence[_Active], watcher: Watcher) -> _Active:
        here, there = context.Pipe(duplex=False)
        forks = context.get_start_method() == "fork"
        ready = self._readies[plan.contestant.model] if forks else None
        unneeded = [here, *(other.link for other in others)] if forks else []
        process = context.Process(
            target=_child, args=(plan, ready, threads, there, unneeded, os.getpid()), name=plan.name, daemon=True
        )
        process.start()
        there.close()
        watcher.began(plan)
        return _Active(plan, process, here, forks)


def _context(plans: Sequence[Plan], threads: int) -> BaseContext:
    import torch

    device = plans[0].settings.device
    cuda = device.startswith("cuda") if device is not None else torch.cuda.is_available()
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" and not cuda
    return multiprocessing.get_context("fork" if forks and threads == 1 else "spawn")


def _listen(active: Sequence[_Active], watcher: Watcher) -> None:
    """Hands on what the runs have said, and sees which have ended."""
    wait([*(run.link for run in active), *(run.process.sentinel for run in active)], timeout=SECONDS_BETWEEN_WORDS)
    for run in active:
        gone = not run.process.is_alive()  # asked first: what it said last is read after
        with contextlib.suppress(EOFError, OSError):
            while run.link.poll():
                _hand_on(run, run.link.recv(), watcher)
        if gone and not run.ended:
            run.ended = True
            watcher.failed(run.plan, _how_it_died(run.process.exitcode, forked=run.forked))
        if run.ended:
            run.process.join()
            run.link.close()


def _hand_on(run: _Active, said: tuple[Any, ...], watcher: Watcher) -> None:
    if said[0] == "step":
        watcher.step(run.plan, *said[1:])
    elif said[0] == "finished":
        run.ended = True
        watcher.finished(run.plan, Path(said[1]))
    else:
        run.ended = True
        watcher.failed(run.plan, said[1])


def _how_it_died(code: int | None, *, forked: bool) -> str:
    if code is not None and code < 0:
        hint = ": out of memory? Fewer --workers need less" if -code == signal.SIGKILL else ""
        return f"its process was ended by signal {signal.Signals(-code).name}{hint}"
    # A process that is started anew runs the calling script again, up to where it is told not to.
    hint = "" if forked else "; a script that calls tercet.compare must do so under if __name__ == '__main__'"
    return f"its process ended with code {code} and no word{hint}"


def _stop(active: Sequence[_Active]) -> None:
    """Each finishes its step and keeps it; what takes too long, or a second Ctrl-C, ends it at once."""
    running = [run.process for run in active if run.process.is_alive()]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    until = time.monotonic() + SECONDS_TO_STOP
    try:
        for process in running:
            process.join(max(0.0, until - time.monotonic()))
    finally:
        for process in running:
            if process.is_alive():
                process.kill()
                process.join()


def _child(
    plan: Plan, ready: Ready | None, threads: int, link: Connection, unneeded: Sequence[Connection], parent: int
) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent alone, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for other in unneeded:
        other.close()
    _redirect(os.devnull)

    import torch

    from tercet.training.run import train_run

    torch.set_num_threads(threads)
    report = _Link(link, parent)
    try:
        link.send(("finished", str(train_run(plan.settings, ready, report).folder)))
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        expected = isinstance(error, (ValueError, OSError))
        link.send(("failed", str(error) if expected else f"{type(error).__name__}: {error}"))
        with contextlib.suppress(OSError):  # a run that was refused has no folder any more
            report.say("".join(traceback.format_exception(error)))


class _Link(Report):
    """Tells the parent, not too often; stops with it."""

    def __init__(self, link: Connection, parent: int) -> None:
        super().__init__()
        self._link, self._parent, self._next = link, parent, 0.0

    def begin(self, log: Path) -> None:
        super().begin(log)
        _redirect(str(log))  # what an own objective prints belongs to its run

    def step(self, done: int, total: int, news: Mapping[str, str]) -> None:
        now = time.monotonic()
        if now >= self._next or done == total:
            self._next = now + SECONDS_BETWEEN_WORDS
            if os.getppid() != self._parent:
                os.kill(os.getpid(), signal.SIGINT)  # it was killed: stop as if asked to
                return
            self._link.send(("step", done, total, dict(news)))


def _redirect(file: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
