"""Interface of an executor: it takes planned runs and executes them; results are in the run folders.

`EXECUTORS` has those of Tercet; others come from entry points of the group `tercet.executors`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from tercet.comparison.plan import PlannedRun


@runtime_checkable
class ExecutorEvents(Protocol):
    """Callbacks of an executor, called in the process that started it."""

    def started(self, plan: PlannedRun) -> None: ...

    def step(self, plan: PlannedRun, done: int, total: int, status: Mapping[str, str]) -> None: ...

    def finished(self, plan: PlannedRun, folder: Path) -> None: ...

    def failed(self, plan: PlannedRun, why: str) -> None:
        """`why` is one line; the traceback is in the log of the run."""
        ...

    def idle(self) -> None:
        """Called periodically, also if nothing happens."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Implemented by local processes (`local.py`)."""

    def run(self, plans: Sequence[PlannedRun], events: ExecutorEvents) -> None:
        """Return when every run has finished or failed. A failed run does not stop the others.

        On KeyboardInterrupt, stop all runs at a step from which they can resume, and raise it again.
        """
        ...
