"""Cross-retrieval ranks of two runs, side by side (AOQ's supplement, Figure 1), and whether two runs are comparable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tercet.analysis.reports.loaded_run import LoadedRun
from tercet.comparison.report.figures import INTERVALS
from tercet.data.dataset import Split
from tercet.evaluation.metrics import CROSS_SHARES, cross_ranks_of
from tercet.reporting.output_formats import Cell, Table
from tercet.reporting.svg_figure import SERIES, WIDTH, Figure, plotting, render_figure, short_label


@dataclass(frozen=True)
class CrossRanks:
    """The cross-retrieval rank of every pair in both runs."""

    names: tuple[str, str]
    ranks: Float[np.ndarray, "2 pair"]

    def counts(self) -> Int[np.ndarray, "2 interval"]:
        return np.stack([np.bincount(intervals, minlength=len(INTERVALS)) for intervals in self._intervals()])

    def moves(self) -> Int[np.ndarray, "interval interval"]:
        """Number of pairs by interval in the first run (rows) and in the second (columns)."""
        counts = np.zeros((len(INTERVALS), len(INTERVALS)), dtype=np.int64)
        np.add.at(counts, tuple(self._intervals()), 1)
        return counts

    def moved(self) -> dict[str, int]:
        """Number of pairs whose rank is better, worse and the same in the second run."""
        first, second = self.ranks
        return {
            "up": int((second < first).sum()),
            "down": int((second > first).sum()),
            "stayed": int((second == first).sum()),
        }

    def sentence(self) -> str:
        (one, over), (one_second, over_second) = ((int(counts[0]), int(counts[-1])) for counts in self.counts())
        moved = self.moved()
        first, second = self.names
        return (
            f"Of {self.ranks.shape[1]:,} pairs, {one:,} have rank 1 with {first} and {one_second:,} with {second}; "
            f"{over:,} and {over_second:,} are over 200. From {first} to {second}, {moved['up']:,} pairs move up, "
            f"{moved['down']:,} move down and {moved['stayed']:,} keep their rank."
        )

    def table(self) -> Table:
        """Counts and shares; bold: more pairs in the first interval, or fewer in the last."""
        counts = self.counts()
        shares = 100 * counts / self.ranks.shape[1]
        rows = []
        for index, interval in enumerate(INTERVALS):
            first, second = counts[:, index].tolist()
            gain = {0: second - first, len(INTERVALS) - 1: first - second}.get(index, 0)  # of the second run
            cells = [
                Cell(f"{first:,}", gain < 0),
                Cell(f"{shares[0, index]:.1f} %"),
                Cell(f"{second:,}", gain > 0),
                Cell(f"{shares[1, index]:.1f} %"),
                Cell(f"{second - first:+,}" if second != first else "0"),
            ]
            rows.append((interval, cells))
        headings = ("rank", self.names[0], "share", self.names[1], "share", "difference")
        return Table("Pairs by cross-retrieval rank", headings, rows)

    def moves_table(self) -> Table:
        rows = [
            (interval, [Cell(f"{count:,}", row == column) for column, count in enumerate(counts)])
            for row, (interval, counts) in enumerate(zip(INTERVALS, self.moves(), strict=True))
        ]
        title = f"Pairs by rank with {self.names[0]} (rows) and with {self.names[1]} (columns); bold: same interval"
        return Table(title, ("rank", *INTERVALS), rows)

    def figure(self) -> Figure:
        with plotting() as Canvas:
            canvas = Canvas(figsize=(WIDTH, 3.0))
            axes = canvas.subplots()
            positions = np.arange(len(INTERVALS))
            for run, (name, counts) in enumerate(zip(self.names, self.counts(), strict=True)):
                bars = axes.bar(positions + 0.4 * (run - 0.5), counts, 0.38, color=SERIES[run], label=short_label(name))
                axes.bar_label(bars, [f"{count:,}" for count in counts], padding=1, fontsize=7)
            axes.set_xticks(positions, INTERVALS)
            axes.grid(axis="x", visible=False)
            axes.set_xlabel("cross-retrieval rank")
            axes.set_title("pairs")
            canvas.legend(loc="outside upper center", ncols=2, fontsize=7)
            return render_figure(
                canvas,
                "cross_ranks",
                "Cross-retrieval ranks",
                "Number of positive pairs by cross-retrieval rank: the worse of a pair's two ranks among negatives, on "
                f"one scale. Left bars: {self.names[0]}; right bars: {self.names[1]}.",
            )

    def document(self) -> dict[str, Any]:
        """Content for JSON."""
        counts = self.counts()
        return {
            "pairs": self.ranks.shape[1],
            "runs": {
                name: {
                    "counts": dict(zip(CROSS_SHARES, counts[run].tolist(), strict=True)),
                    "shares": dict(zip(CROSS_SHARES, (100 * counts[run] / self.ranks.shape[1]).tolist(), strict=True)),
                }
                for run, name in enumerate(self.names)
            },
            "moved": self.moved(),
            "moves": self.moves().tolist(),
        }

    def _intervals(self) -> Int[np.ndarray, "2 pair"]:
        """The interval index of each rank."""
        upper_bounds = [last for _, last in CROSS_SHARES.values()][:-1]
        return np.searchsorted(upper_bounds, self.ranks, side="left")


def compare_cross_ranks(first: LoadedRun, second: LoadedRun) -> CrossRanks:
    """From the saved ranks of the runs."""
    shared_held_out(first, second)
    a, b = run_labels([first, second])
    return CrossRanks((a, b), np.stack([_cross_ranks(run) for run in (first, second)]))


def run_labels(loaded: Sequence[LoadedRun]) -> list[str]:
    """Distinct labels: the objectives; with seeds if the objectives are equal; else the folder names."""
    objectives = [run.objective.name for run in loaded]
    with_seeds = [f"{run.objective.name} (seed {run.settings.seed})" for run in loaded]
    for labels in (objectives, with_seeds):
        if len(set(labels)) == len(labels):
            return labels
    return [run.name for run in loaded]


def shared_held_out(first: LoadedRun, second: LoadedRun | None) -> Split:
    """The held-out split of both runs; `ValueError` if they were evaluated on different data."""
    split = first.split(first.held_out)
    if second is None:
        return split
    if first.folder.resolve() == second.folder.resolve():
        raise ValueError(f"{first.name} is given twice: expected two different runs")
    other = second.split(second.held_out)
    if difference := _difference(split, other):
        raise ValueError(
            f"{first.name} and {second.name} were evaluated on different data and cannot be compared: {difference}"
        )
    return split


def _difference(split: Split, other: Split) -> str:
    for kind, first, second in (
        ("image", split.image_names, other.image_names),
        ("caption", split.texts, other.texts),
        ("the image of caption", tuple(split.owners), tuple(other.owners)),
    ):
        if len(first) != len(second):
            return f"{len(first):,} {kind}s and {len(second):,}"
        if first != second:
            row = next(index for index, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
            return f"{kind} {row} is {first[row]!r} and {second[row]!r}"
    return ""


def _cross_ranks(run: LoadedRun) -> Float[np.ndarray, " pair"]:
    """One rank per caption, in the order of captions: each has one image."""
    data = run.held_out
    ranks = cross_ranks_of(run.ranks, images=len(data.images), captions=len(data.owners))
    return ranks[np.argsort(run.ranks.caption("t2i"), kind="stable")].astype(np.float64)
