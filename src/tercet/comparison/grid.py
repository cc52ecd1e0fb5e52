"""Run the grid of objectives x seeds, each run once, and hand the metrics over."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tercet import runs
from tercet.comparison.settings import CompareSettings
from tercet.comparison.table import Comparison
from tercet.data.batches import batches_per_epoch
from tercet.data.features import FeatureSet
from tercet.data.scenes import scenes
from tercet.objectives import RowObjective, objective
from tercet.training import TrainSettings, evaluate_model, train


def compare(settings: CompareSettings | None = None, /, **named: Any) -> Comparison:
    """`tercet compare` as a function: takes its settings by name, returns the table it prints."""
    settings = settings or CompareSettings(**named)
    objectives = {name: objective(name) for name in settings.objectives}  # a wrong name costs no training
    held_out = scenes("test", settings.scenes // 3)
    training = scenes("train", settings.scenes)
    checksum = training.checksum() + held_out.checksum()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in objectives}
    with _progress() as progress:
        for name, built in objectives.items():
            for seed in range(settings.seeds):
                run = TrainSettings(name, built.settings, seed=seed, epochs=settings.epochs)
                results[name].append(
                    _finished_or_new(built, run, training, held_out, checksum, settings.runs, progress)
                )
    comparison = Comparison(results)
    comparison.save(settings.runs)
    return comparison


def _finished_or_new(
    built: RowObjective,
    run: TrainSettings,
    training: FeatureSet,
    held_out: FeatureSet,
    checksum: str,
    root: Path,
    progress: Progress,
) -> dict[str, float]:
    steps = run.epochs * batches_per_epoch(training, run.batch_size)
    bar = progress.add_task(f"{run.objective} seed {run.seed}", total=steps, monitor="")
    resolved = asdict(run)
    identity = runs.run_hash(resolved, checksum)
    finished = runs.find_run(root, identity)
    if finished is not None:
        progress.update(bar, completed=steps, monitor="kept")
        return runs.read_metrics(finished)
    started = time.perf_counter()
    model = train(built, training, run, lambda hinge: progress.update(bar, advance=1, monitor=f"monitor {hinge:.2f}"))
    metrics = evaluate_model(model, held_out)
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
