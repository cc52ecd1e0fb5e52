"""Run the grid of objectives x seeds, each run once, and hand the metrics over."""

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tercet import runs
from tercet.comparison.settings import CompareSettings
from tercet.comparison.table import Comparison
from tercet.objectives import objective
from tercet.objectives.catalogue import nearest
from tercet.objectives.from_file import is_file_name
from tercet.training.config import train_settings
from tercet.training.ready import Ready, make_ready
from tercet.training.report import Report
from tercet.training.run import train_run
from tercet.training.settings import TrainSettings


def compare(**settings: Any) -> Comparison:
    """`tercet compare` as a function: takes its settings by name, returns the table it prints."""
    known = [field.name for field in fields(CompareSettings)]
    for name in settings:
        if name not in known:
            raise ValueError(f"compare has no setting {name!r}{nearest(name, known)}; it has: {', '.join(known)}")
    grid = CompareSettings(**settings)
    objectives = _named(grid.objectives)  # before any training: a wrong name costs nothing
    runs.make_root(grid.runs)
    shared = {
        "data": f"scenes:{grid.scenes}",
        "epochs": grid.epochs,
        "ignore_equal_text": grid.ignore_equal_text,
        "runs": grid.runs,
    }
    ready = make_ready(train_settings(shared))
    results: dict[str, list[dict[str, float]]] = {name: [] for name in objectives}
    with _progress() as progress:
        for name in objectives:
            for seed in range(grid.seeds):
                run = train_settings(shared | {"objective": name, "seed": seed})
                results[name].append(_metrics(run, ready, progress))
    comparison = Comparison(results, {"data": ready.name, "scenes": grid.scenes, "epochs": grid.epochs})
    comparison.save(grid.runs)
    return comparison


def _named(names: tuple[str, ...]) -> list[str]:
    """The one name that a table shows; two spellings are one objective."""
    shown = [name if is_file_name(name) else objective(name).name for name in names]
    for name in shown:
        if is_file_name(name):
            objective(name)
        if shown.count(name) > 1:
            raise ValueError(f"objectives name {name} more than once")
    return shown


def _metrics(run: TrainSettings, ready: Ready, progress: Progress) -> dict[str, float]:
    bar = progress.add_task(f"{escape(run.objective)} seed {run.seed}", total=None, news="")
    try:
        metrics = train_run(run, ready, _BarReport(progress, bar)).metrics
    except ValueError as error:
        raise ValueError(f"{run.objective}, seed {run.seed}: {error}") from error
    progress.update(bar, total=1, completed=1, news=f"rsum {metrics['rsum']:.1f}")
    return metrics


class _BarReport(Report):
    """One bar among many; what a run has to say goes to its log alone."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        super().__init__()
        self._progress, self._bar = progress, bar

    def step(self, done: int, total: int, news: Mapping[str, str]) -> None:
        self._progress.update(self._bar, completed=done, total=total, news=f"monitor {news.get('monitor', '')}")


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[news]}"),
    )
    return Progress(*columns, console=Console(file=sys.stderr))
