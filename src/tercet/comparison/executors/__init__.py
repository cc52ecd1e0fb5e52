"""Executors: how the runs of a comparison are carried out, by name."""

from collections.abc import Callable

from tercet.comparison.executors.base import Executor, ExecutorEvents
from tercet.comparison.executors.local import LocalExecutor
from tercet.comparison.plan import PlannedRun, PreparedDatasets

__all__ = ["EXECUTORS", "Executor", "ExecutorEvents", "LocalExecutor", "PlannedRun"]

ENTRY_POINTS = "tercet.executors"
ExecutorFactory = Callable[[PreparedDatasets, int | None], Executor]
"""(datasets that are open already, number of runs in parallel or None) -> executor."""
EXECUTORS: dict[str, ExecutorFactory] = {"local": LocalExecutor}
