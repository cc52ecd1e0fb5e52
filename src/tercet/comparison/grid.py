"""Run the grid of objectives x seeds, each run once, and hand the metrics over."""

import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tercet import runs
from tercet.comparison.settings import CompareSettings
from tercet.comparison.table import Comparison
from tercet.data.meetings import batches_per_epoch
from tercet.data.pairs import PairedData, paired
from tercet.data.scenes import scenes_data_set
from tercet.objectives import RowObjective, objective
from tercet.objectives.catalogue import nearest
from tercet.objectives.from_file import is_file_name, source_checksum
from tercet.training import TrainSettings, evaluate_model, train


def compare(**settings: Any) -> Comparison:
    """`tercet compare` as a function: takes its settings by name, returns the table it prints."""
    known = [field.name for field in fields(CompareSettings)]
    for name in settings:
        if name not in known:
            raise ValueError(f"compare has no setting {name!r}{nearest(name, known)}; it has: {', '.join(known)}")
    grid = CompareSettings(**settings)
    objectives = _build(grid.objectives)  # before any training: a wrong name costs nothing
    runs.make_root(grid.runs)
    data = scenes_data_set(grid.scenes)
    training, held_out = (paired("scenes", data.split(split)) for split in ("train", "test"))
    checksum = training.checksum() + held_out.checksum()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in objectives}
    with _progress() as progress:
        for name, (built, source) in objectives.items():
            for seed in range(grid.seeds):
                run = TrainSettings(
                    name,
                    built.settings,
                    source,
                    seed=seed,
                    epochs=grid.epochs,
                    ignore_equal_text=grid.ignore_equal_text,
                )
                results[name].append(_finished_or_new(built, run, training, held_out, checksum, grid.runs, progress))
    comparison = Comparison(results, {"data": training.name, "scenes": grid.scenes, "epochs": grid.epochs})
    comparison.save(grid.runs)
    return comparison


def _build(names: tuple[str, ...]) -> dict[str, tuple[RowObjective, str | None]]:
    """Objective and checksum of its source by the one name that a table shows; two spellings are one objective."""
    built: dict[str, tuple[RowObjective, str | None]] = {}
    for name in names:
        own = is_file_name(name)
        made = objective(name)
        shown = name if own else made.name
        if shown in built:
            raise ValueError(f"objectives name {shown} more than once")
        built[shown] = made, source_checksum(name) if own else None
    return built


def _finished_or_new(
    built: RowObjective,
    run: TrainSettings,
    training: PairedData,
    held_out: PairedData,
    checksum: str,
    root: Path,
    progress: Progress,
) -> dict[str, float]:
    steps = run.epochs * batches_per_epoch(training.owners, run.batch_size)
    bar = progress.add_task(f"{escape(run.objective)} seed {run.seed}", total=steps, monitor="")
    resolved = asdict(run)
    identity = runs.run_hash(resolved, checksum)
    finished = runs.find_run(root, identity)
    if finished is not None:
        progress.update(bar, completed=steps, monitor="kept")
        return runs.read_metrics(finished)
    started = time.perf_counter()
    model = train(built, training, run, lambda hinge: progress.update(bar, advance=1, monitor=f"monitor {hinge:.2f}"))
    try:
        metrics = evaluate_model(model, held_out)
    except ValueError as error:
        raise ValueError(f"{run.objective}, seed {run.seed}: {error}; did training diverge?") from error
    seconds = time.perf_counter() - started
    runs.write_run(root, identity, data=training.name, settings=resolved, metrics=metrics, seconds=seconds)
    progress.update(bar, monitor=f"rsum {metrics['rsum']:.1f}")
    return metrics


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[monitor]}"),
    )
    return Progress(*columns, console=Console(file=sys.stderr))
