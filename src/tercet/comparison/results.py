"""Results of a comparison: runs read from their folders, their significance tests and tables."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from jaxtyping import Float

from tercet import runs
from tercet.comparison.family import Significance, compare_family
from tercet.comparison.plan import Variant
from tercet.evaluation import RankTable
from tercet.evaluation.metrics import contributions, largest_value
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.reporting.output_formats import Cell, Table
from tercet.types import IMAGE_TEXT, Sides


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run of a variant."""

    seed: int
    folder: Path
    metrics: dict[str, float]
    final: dict[str, Any]
    machine: dict[str, Any]
    ranks: RankTable
    learning_rate: float

    def __repr__(self) -> str:
        return f"Run({self.folder.name}, rsum {self.metrics['rsum']:.1f})"

    @property
    def clipped(self) -> float:
        """Fraction of steps with gradient clipping."""
        return float(self.final["clipped_steps"] / max(1, self.final["step"]))


def read_run(folder: Path, seed: int) -> Run:
    runs.check_run(folder)  # all files, also the weights, which only the report reads
    final = runs.read_final(folder)
    if "rsum" not in final:
        raise ValueError(f"{folder.name} was not evaluated: the data has neither a test nor a validation split")
    learning_rate = runs.read_settings(folder).get("learning_rate")
    if not isinstance(learning_rate, float):
        raise ValueError(f"{folder / runs.SETTINGS} is damaged: remove the folder {folder.name} and train it again")
    machine, ranks = runs.read_machine(folder), RankTable(runs.read_ranks(folder))
    return Run(seed, folder, runs.read_metrics(folder), final, machine, ranks, learning_rate)


@dataclass(frozen=True)
class Failure:
    name: str
    why: str
    trial: bool = False
    """The run was a trial of the learning-rate search: no result of the comparison is missing."""


@dataclass(frozen=True, repr=False)
class Results:
    """Runs of every variant by seed; variants without a finished run are only in `failures`."""

    variants: Sequence[Variant]
    runs: dict[str, dict[int, Run]]
    failures: Sequence[Failure] = field(default=())

    def __repr__(self) -> str:
        finished = sum(map(len, self.runs.values()))
        return f"Results({len(self.variants)} variants, {finished} runs, {len(self.failures)} failures)"

    @property
    def sides(self) -> Sides:
        """What the two sides of the data are called."""
        any_run = next((run for by_seed in self.runs.values() for run in by_seed.values()), None)
        return IMAGE_TEXT if any_run is None else runs.read_sides(any_run.folder)

    def in_order(self, variants: Sequence[Variant]) -> dict[str, dict[int, Run]]:
        """The runs by variant and seed, not in the order in which they ended: the same runs give the same report."""
        return {each.name: dict(sorted(self.runs[each.name].items())) for each in variants if each.name in self.runs}

    def names(self) -> list[str]:
        """Variants with a finished run, in the order of the settings."""
        return [variant.name for variant in self.variants if self.runs.get(variant.name)]

    def per_seed(self, name: str, metric: str) -> list[float]:
        return [run.metrics[metric] for _, run in sorted(self.runs[name].items())]

    def mean(self, name: str, metric: str) -> float:
        return float(np.mean(self.per_seed(name, metric)))

    def std(self, name: str, metric: str) -> float | None:
        """Standard deviation over seeds (n-1); None for one seed."""
        values = self.per_seed(name, metric)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def ordered(self, metric: str) -> list[str]:
        """Variants by mean, best first."""
        return sorted(self.names(), key=lambda name: -self.mean(name, metric))

    def per_image(self, name: str, seeds: Sequence[int], metric: str) -> Float[np.ndarray, "seed image"]:
        """Contribution of each image to the metric."""
        return np.stack([contributions(self.runs[name][seed].ranks, metric) for seed in seeds])

    @property
    def split(self) -> str:
        """The split of the metrics: test, or validation if there is no test split."""
        any_run = next(iter(self.runs[self.names()[0]].values()))
        return str(any_run.final["split"])


def significance_of(
    results: Results, metric: str, *, baseline: str | None = None, rope: float | None = None, share: float = 1.0
) -> Significance:
    """Test the differences of all pairs of variants, or to the baseline if it has a finished run."""
    names = results.names()
    seeds = sorted({seed for name in names for seed in results.runs[name]})
    rows = {
        name: {seed: contributions(run.ranks, metric) for seed, run in results.runs[name].items()} for name in names
    }
    images = max((len(row) for by_seed in rows.values() for row in by_seed.values()), default=0)
    missing = np.full(images, np.nan)
    values = {name: np.stack([rows[name].get(seed, missing) for seed in seeds]) for name in names}
    baseline = baseline if baseline in names else None
    options: dict[str, Any] = {"share": share, "largest": largest_value(metric), "sides": results.sides}
    return compare_family(values, baseline=baseline, rope=rope, **options)


COLUMNS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")


_RECALLS = [(column[:3], column.partition("_r")[2]) for column in COLUMNS[:-1]]


def recalls_table(results: Results, names: Sequence[str], title: str = "") -> Table:
    """Recalls per direction, mean ± std over seeds; the best mean of each column is bold."""
    best = {column: max(results.mean(name, column) for name in names) for column in COLUMNS}
    rows = [(name, [_cell(results, name, column, best[column]) for column in COLUMNS]) for name in names]
    headings = [f"{results.sides.short(way)} R@1" if rank == "1" else f"R@{rank}" for way, rank in _RECALLS]
    return Table(title or format_spread(results), ("objective", *headings, "rsum"), rows)


def format_spread(results: Results) -> str:
    """What the ± of the table is."""
    counts = {len(results.runs[name]) for name in results.names()}
    if counts == {1}:
        return "one seed, no standard deviation"
    fewest, most = min(counts), max(counts)
    return f"mean ± std (n-1) over {most if fewest == most else f'{fewest} to {most}'} seeds"


def goal_tables(results: Results) -> list[Table]:
    """GOAL's grid as in the paper, one row per pair weight and one column per triplet weight; [] if incomplete."""
    models = dict.fromkeys(variant.model for variant in results.variants)
    prefixes = [""] if len(models) == 1 else [f"{model} " for model in models]
    return [table for prefix in prefixes for table in _goal_tables(results, prefix)]


def cost_table(results: Results, names: Sequence[str]) -> Table:
    """Training budget and cost of each variant."""
    columns: dict[str, Callable[[Sequence[Run]], str]] = {
        "steps": lambda runs: _range([run.final["step"] for run in runs]),
        "pairs seen": lambda runs: _range([run.final["pairs_seen"] for run in runs]),
        "learning rate": lambda runs: "/".join(f"{rate:g}" for rate in sorted({run.learning_rate for run in runs})),
        "clipped steps": lambda runs: f"{100 * mean(run.clipped for run in runs):.0f} %",
        "seconds": lambda runs: f"{median(run.machine['seconds'] for run in runs):.1f}",
        "memory, MB": lambda runs: _memory(runs),
    }
    rows = []
    for name in names:
        runs = list(results.runs[name].values())
        rows.append((name, [Cell(column(runs)) for column in columns.values()]))
    return Table("Training budget and cost; seconds and memory: median per run", ("objective", *columns), rows)


BUDGETS: dict[str, Callable[[Run], float]] = {
    "steps": lambda run: run.final["step"],
    "pairs seen": lambda run: run.final["pairs_seen"],
    "seconds": lambda run: run.machine["seconds"],
}


def equal_budget_table(results: Results, names: Sequence[str]) -> Table | None:
    """rsum on validation at the largest budget that every variant has: of steps, of pairs, of seconds.

    Pairs and seconds are spread evenly over the steps of a run. None without validation.
    """
    every = [run for name in names for run in results.runs[name].values()]
    curves = {run.folder: [(line["step"], line["rsum"]) for line in runs.read_validation(run.folder)] for run in every}
    if not every or not all(curves.values()):
        return None
    limits = {unit: min(spent(run) for run in every) for unit, spent in BUDGETS.items()}

    def value(name: str, unit: str) -> Cell:
        reached = []
        for run in results.runs[name].values():
            steps = run.final["step"] * min(1.0, limits[unit] / max(BUDGETS[unit](run), 1e-9))
            reached.append(max((rsum for step, rsum in curves[run.folder] if step <= steps), default=None))
        known = [rsum for rsum in reached if rsum is not None]
        return Cell(f"{mean(known):.1f}" if len(known) == len(reached) else "-")

    headings = [f"{limit:,.0f} {unit}" for unit, limit in limits.items()]
    title = "rsum on validation at equal budgets (best epoch within it; -: before the first validation)"
    return Table(title, ("objective", *headings), [(name, [value(name, unit) for unit in BUDGETS]) for name in names])


def run_records(results: Results, names: Sequence[str]) -> list[dict[str, Any]]:
    """One record per run: what it is, its training budget and cost, and all metrics at full precision."""
    models = {variant.name: variant.model for variant in results.variants}
    metrics = sorted({metric for name in names for run in results.runs[name].values() for metric in run.metrics})
    return [
        {
            "objective": name,
            "model": models[name],
            "seed": seed,
            "run": run.folder.name,
            "steps": run.final["step"],
            "pairs_seen": run.final["pairs_seen"],
            "clipped_share": run.clipped,
            "learning_rate": run.learning_rate,
            "seconds": run.machine["seconds"],
            "memory_mb": run.machine.get("memory_mb"),
            **{metric: run.metrics.get(metric) for metric in metrics},
        }
        for name in names
        for seed, run in sorted(results.runs[name].items())
    ]


def runs_csv(results: Results, names: Sequence[str]) -> str:
    """One line per run."""
    records = run_records(results, names)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in record.items()} for record in records)
    return stream.getvalue()


def _csv_cell(value: object) -> object:
    """A text that a spreadsheet would compute as a formula gets an apostrophe, which spreadsheets do not show."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _goal_tables(results: Results, prefix: str) -> list[Table]:
    """`prefix`: the model before the name of the objective if there are several models."""
    cells = {(T, P): f"{prefix}{T}/{P}" for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS}
    if not all(name in results.names() for name in cells.values()):
        return []
    tables = []
    shown = {f"{way}_r1": f"{results.sides.short(way)} R@1" for way in ("i2t", "t2i")} | {"rsum": "rsum"}
    for column, heading in shown.items():
        best = max(results.mean(name, column) for name in cells.values())
        rows = [(P, [_cell(results, cells[T, P], column, best) for T in TRIPLET_WEIGHTS]) for P in PAIR_WEIGHTS]
        title = f"GOAL's grid, {prefix}{heading}; {format_spread(results)}"
        tables.append(Table(title, ("pair weight", *TRIPLET_WEIGHTS), rows))
    return tables


def _cell(results: Results, name: str, column: str, best: float) -> Cell:
    std = results.std(name, column)
    text = f"{results.mean(name, column):.1f}" + ("" if std is None else f"±{std:.1f}")
    return Cell(text, results.mean(name, column) == best)


def _range(counts: Sequence[int]) -> str:
    smallest, largest = min(counts), max(counts)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def _memory(runs: Sequence[Run]) -> str:
    megabytes = [run.machine["memory_mb"] for run in runs if run.machine.get("memory_mb") is not None]
    return f"{median(megabytes):.0f}" if megabytes else "-"
