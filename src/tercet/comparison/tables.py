"""Results as tables: for the terminal, Markdown, LaTeX, CSV and the report, as the papers print them."""

import csv
import io
from collections.abc import Callable, Sequence
from statistics import mean, median

from tercet.comparison.judgement import Judgement
from tercet.comparison.results import Results, Run
from tercet.objectives.goal import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.pages.table import Cell, Table

COLUMNS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")


def recalls_table(results: Results, names: Sequence[str], title: str = "") -> Table:
    """Per direction, mean and spread over seeds; the best mean of each column is bold."""
    best = {column: max(results.mean(name, column) for name in names) for column in COLUMNS}
    rows = [(name, [_cell(results, name, column, best[column]) for column in COLUMNS]) for name in names]
    return Table(title or spread_said(results), ("objective", *HEADINGS), rows)


def spread_said(results: Results) -> str:
    counts = {len(results.runs[name]) for name in results.names()}
    if counts == {1}:
        return "one seed: no spread is known"
    fewest, most = min(counts), max(counts)
    return f"mean ± std (n-1) over {most if fewest == most else f'{fewest} to {most}'} seeds"


def goal_tables(results: Results) -> list[Table]:
    """GOAL's grid as the paper prints it: a row a pair weight, a column a triplet weight."""
    models = dict.fromkeys(contestant.model for contestant in results.contestants)
    prefixes = [""] if len(models) == 1 else [f"{model} " for model in models]
    return [table for prefix in prefixes for table in _goal_tables(results, prefix)]


def _goal_tables(results: Results, prefix: str) -> list[Table]:
    """`prefix`: the model that stands before the objective's name where there are several."""
    cells = {(T, P): f"{prefix}{T}/{P}" for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS}
    if not all(name in results.names() for name in cells.values()):
        return []
    made = []
    for column, heading in (("i2t_r1", "i2t R@1"), ("t2i_r1", "t2i R@1"), ("rsum", "rsum")):
        best = max(results.mean(name, column) for name in cells.values())
        rows = [(P, [_cell(results, cells[T, P], column, best) for T in TRIPLET_WEIGHTS]) for P in PAIR_WEIGHTS]
        made.append(
            Table(f"GOAL's grid, {prefix}{heading}; {spread_said(results)}", ("pair weight", *TRIPLET_WEIGHTS), rows)
        )
    return made


def cost_table(results: Results, names: Sequence[str]) -> Table:
    """What every run of a contestant was given, and what it took."""
    said: dict[str, Callable[[Sequence[Run]], str]] = {
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
        rows.append((name, [Cell(say(runs)) for say in said.values()]))
    return Table("What it took; seconds and memory are medians of a run", ("objective", *said), rows)


def pairs_table(judgement: Judgement) -> Table:
    """Every difference with its interval and its p-values."""
    rows = []
    for pair in judgement.pairs:
        found = pair.found
        seeds = "-" if found.p_seeds is None else p_said(found.p_seeds)
        rows.append(
            (
                f"{pair.first} - {pair.second}",
                [
                    Cell(f"{found.difference:+.1f}", pair.real),
                    Cell(f"{found.low:+.1f} to {found.high:+.1f}"),
                    Cell(p_said(pair.corrected), pair.real),
                    Cell(p_said(found.p)),
                    Cell(seeds),
                    Cell(p_said(found.p_images)),
                ],
            )
        )
    title = (
        f"Differences in {judgement.metric}, the larger mean first; bold: real (corrected p < 0.05). p: over seeds and "
        f"images, corrected for {len(judgement.pairs)} comparisons (Holm); as it was; over seeds; over images"
    )
    return Table(title, ("pair", "difference", "95 % interval", "p corrected", "p", "p seeds", "p images"), rows)


def csv_of(results: Results, names: Sequence[str]) -> str:
    """One line a run, with every number at full precision."""
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
    models = {contestant.name: contestant.model for contestant in results.contestants}
    for name in names:
        for seed, run in sorted(results.runs[name].items()):
            took = [run.final["step"], run.final["pairs_seen"], run.clipped, run.learning_rate]
            took += [run.machine["seconds"], run.machine.get("memory_mb")]
            writer.writerow([name, models[name], seed, run.folder.name, *took, *(run.metrics.get(m) for m in metrics)])
    return stream.getvalue()


def p_said(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _cell(results: Results, name: str, column: str, best: float) -> Cell:
    spread = results.std(name, column)
    text = f"{results.mean(name, column):.1f}" + ("" if spread is None else f"±{spread:.1f}")
    return Cell(text, results.mean(name, column) == best)


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _memory(runs: Sequence[Run]) -> str:
    known = [run.machine["memory_mb"] for run in runs if run.machine.get("memory_mb") is not None]
    return f"{median(known):.0f}" if known else "-"
