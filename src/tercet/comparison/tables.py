"""Tables of a comparison, in the layout of the papers; `tercet.reporting.table_formats` renders them."""

import csv
import io
from collections.abc import Callable, Sequence
from statistics import mean, median

from tercet.comparison.results import Results, Run, SignificanceTable
from tercet.evaluation.significance import LEVEL
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.reporting.table_formats import Cell, Table

COLUMNS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")


def recalls_table(results: Results, names: Sequence[str], title: str = "") -> Table:
    """Recalls per direction, mean ± std over seeds; the best mean of each column is bold."""
    best = {column: max(results.mean(name, column) for name in names) for column in COLUMNS}
    rows = [(name, [_cell(results, name, column, best[column]) for column in COLUMNS]) for name in names]
    return Table(title or format_spread(results), ("objective", *HEADINGS), rows)


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


def pairs_table(significance: SignificanceTable) -> Table:
    """Every pair with its difference, interval and p-values."""
    rows = []
    for pair in significance.pairs:
        test = pair.test
        rows.append(
            (
                f"{pair.first} - {pair.second}",
                [
                    Cell(f"{test.difference:+.1f}", pair.significant),
                    Cell(f"{test.low:+.1f} to {test.high:+.1f}"),
                    Cell(format_p(pair.corrected_p), pair.significant),
                    Cell(format_p(test.p)),
                    Cell("-" if test.p_seeds is None else format_p(test.p_seeds)),
                    Cell(format_p(test.p_images)),
                ],
            )
        )
    tests = len(significance.pairs)
    title = (
        f"Differences in {significance.metric}; bold: significant (corrected p < {LEVEL}). p: test over seeds and "
        f"images; p corrected: the same, Holm-corrected for {tests} comparison{'' if tests == 1 else 's'}; p seeds and "
        "p images: tests over seeds alone and over images alone"
    )
    return Table(title, ("pair", "difference", "95 % interval", "p corrected", "p", "p seeds", "p images"), rows)


def runs_csv(results: Results, names: Sequence[str]) -> str:
    """One line per run, all metrics at full precision."""
    metrics = sorted({metric for name in names for run in results.runs[name].values() for metric in run.metrics})
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        [
            "objective",
            "model",
            "seed",
            "run",
            "steps",
            "pairs_seen",
            "clipped_share",
            "learning_rate",
            "seconds",
            "memory_mb",
            *metrics,
        ]
    )
    models = {variant.name: variant.model for variant in results.variants}
    for name in names:
        for seed, run in sorted(results.runs[name].items()):
            cost = [run.final["step"], run.final["pairs_seen"], run.clipped, run.learning_rate]
            cost += [run.machine["seconds"], run.machine.get("memory_mb")]
            writer.writerow([name, models[name], seed, run.folder.name, *cost, *(run.metrics.get(m) for m in metrics)])
    return stream.getvalue()


def format_p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _goal_tables(results: Results, prefix: str) -> list[Table]:
    """`prefix`: the model before the name of the objective if there are several models."""
    cells = {(T, P): f"{prefix}{T}/{P}" for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS}
    if not all(name in results.names() for name in cells.values()):
        return []
    tables = []
    for column, heading in (("i2t_r1", "i2t R@1"), ("t2i_r1", "t2i R@1"), ("rsum", "rsum")):
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
