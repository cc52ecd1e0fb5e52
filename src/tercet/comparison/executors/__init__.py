"""Executors: how the runs of a comparison are carried out. `make_executor` chooses one by name."""

from collections.abc import Callable

from tercet.comparison.executors.base import Executor, ExecutorEvents
from tercet.comparison.executors.local import LocalExecutor
from tercet.comparison.plan import PlannedRun, PreparedDatasets
from tercet.plugins import find

__all__ = ["EXECUTORS", "Executor", "ExecutorEvents", "LocalExecutor", "PlannedRun", "make_executor"]

ENTRY_POINTS = "tercet.executors"
ExecutorFactory = Callable[[PreparedDatasets, int | None], Executor]
"""(datasets that are open already, number of runs in parallel or None) -> executor."""
EXECUTORS: dict[str, ExecutorFactory] = {"local": LocalExecutor}


def make_executor(name: str, prepared_datasets: PreparedDatasets, processes: int | None) -> Executor:
    return find("executor", name, EXECUTORS, ENTRY_POINTS)(prepared_datasets, processes)
