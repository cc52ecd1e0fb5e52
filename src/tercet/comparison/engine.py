"""Who carries the runs of a comparison out. An engine is given plans; what comes of them lies in run folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from tercet.comparison.plan import Plan


@runtime_checkable
class Watcher(Protocol):
    """Is told what becomes of each plan, in the process that asked for it."""

    def began(self, plan: Plan) -> None: ...

    def step(self, plan: Plan, done: int, total: int, news: Mapping[str, str]) -> None: ...

    def finished(self, plan: Plan, folder: Path) -> None: ...

    def failed(self, plan: Plan, why: str) -> None:
        """One line; the rest is in the log of the run."""
        ...

    def idle(self) -> None:
        """Now and then, also when nothing happens."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Local processes are one (`local.py`); a cluster could be another."""

    def run(self, plans: Sequence[Plan], watcher: Watcher) -> None:
        """Returns when every plan has finished or failed. One that fails does not stop the others.

        A KeyboardInterrupt stops all of them where they can be gone on from, and is raised again.
        """
        ...
