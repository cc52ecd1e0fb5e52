"""Cross-retrieval ranks of two runs side by side (AOQ's supplement, Figure 1): who brings pairs to the front?"""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tercet import runs
from tercet.comparison.report.figures import INTERVALS, shortened
from tercet.dissection.opened import Opened
from tercet.dissection.pair import labels, shared_held_out
from tercet.evaluation.metrics import CROSS_SHARES, cross_ranks_of
from tercet.pages.figure import SERIES, WIDTH, Figure, finished, plotting
from tercet.pages.page import figure_block, scrolling
from tercet.pages.table import Cell, Table


@dataclass(frozen=True)
class CrossRanks:
    """One rank a pair and run; the pairs are the same."""

    names: tuple[str, str]
    ranks: Float[np.ndarray, "2 pair"]

    def counts(self) -> Int[np.ndarray, "2 interval"]:
        return np.stack([np.bincount(places, minlength=len(INTERVALS)) for places in self._places()])

    def moves(self) -> Int[np.ndarray, "interval interval"]:
        """Pairs by their interval in the first run (rows) and in the second (columns)."""
        found = np.zeros((len(INTERVALS), len(INTERVALS)), dtype=np.int64)
        np.add.at(found, tuple(self._places()), 1)
        return found

    def moved(self) -> dict[str, int]:
        """Pairs whose rank is better, worse and the same in the second run."""
        first, second = self.ranks
        return {
            "up": int((second < first).sum()),
            "down": int((second > first).sum()),
            "stayed": int((second == first).sum()),
        }

    def sentence(self) -> str:
        (one, over), (one_second, over_second) = ((int(each[0]), int(each[-1])) for each in self.counts())
        moved = self.moved()
        first, second = self.names
        return (
            f"Of {self.ranks.shape[1]:,} pairs {one:,} have rank 1 with {first} and {one_second:,} with {second}; "
            f"{over:,} and {over_second:,} are over 200. From {first} to {second}, {moved['up']:,} pairs move up, "
            f"{moved['down']:,} down, and {moved['stayed']:,} stay."
        )

    def table(self) -> Table:
        """Counts and shares; bold where more pairs are in front, or fewer behind."""
        counts = self.counts()
        shares = 100 * counts / self.ranks.shape[1]
        rows = []
        for place, interval in enumerate(INTERVALS):
            first, second = counts[:, place].tolist()
            wins = {0: second - first, len(INTERVALS) - 1: first - second}.get(place, 0)  # of the second run
            cells = [
                Cell(f"{first:,}", wins < 0),
                Cell(f"{shares[0, place]:.1f} %"),
                Cell(f"{second:,}", wins > 0),
                Cell(f"{shares[1, place]:.1f} %"),
                Cell(f"{second - first:+,}" if second != first else "0"),
            ]
            rows.append((interval, cells))
        headings = ("rank", self.names[0], "share", self.names[1], "share", "difference")
        return Table("Pairs by cross-retrieval rank", headings, rows)

    def moves_table(self) -> Table:
        rows = [
            (interval, [Cell(f"{count:,}", here == there) for there, count in enumerate(counts)])
            for here, (interval, counts) in enumerate(zip(INTERVALS, self.moves(), strict=True))
        ]
        title = (
            f"Where the pairs of {self.names[0]} (rows) are with {self.names[1]} (columns); bold: in the same interval"
        )
        return Table(title, ("rank", *INTERVALS), rows)

    def figure(self) -> Figure:
        with plotting() as Canvas:
            canvas = Canvas(figsize=(WIDTH, 3.0))
            axes = canvas.subplots()
            places = np.arange(len(INTERVALS))
            for number, (name, counts) in enumerate(zip(self.names, self.counts(), strict=True)):
                drawn = axes.bar(
                    places + 0.4 * (number - 0.5), counts, 0.38, color=SERIES[number], label=shortened(name)
                )
                axes.bar_label(drawn, [f"{count:,}" for count in counts], padding=1, fontsize=7)
            axes.set_xticks(places, INTERVALS)
            axes.grid(axis="x", visible=False)
            axes.set_xlabel("cross-retrieval rank")
            axes.set_title("pairs")
            canvas.legend(loc="outside upper center", ncols=2, fontsize=7)
            return finished(
                canvas,
                "cross_ranks",
                "Cross-retrieval ranks",
                "How many positive pairs have which rank: the worse of a pair's two ranks against negatives, on one "
                f"scale. The left bar of each two is {self.names[0]}, the right one {self.names[1]}.",
            )

    def document(self) -> dict[str, Any]:
        """For programs."""
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

    def _places(self) -> Int[np.ndarray, "2 pair"]:
        """The interval of each rank."""
        lasts = [last for _, last in CROSS_SHARES.values()][:-1]
        return np.searchsorted(lasts, self.ranks, side="left")


def compare_cross_ranks(first: Opened, second: Opened) -> CrossRanks:
    """From the ranks that the runs kept."""
    shared_held_out(first, second)
    a, b = labels([first, second])
    return CrossRanks((a, b), np.stack([_cross_ranks(run) for run in (first, second)]))


def _cross_ranks(run: Opened) -> Float[np.ndarray, " pair"]:
    """In the order of captions: each has one image."""
    arrays = runs.read_ranks(run.folder)
    data = run.held_out
    found = cross_ranks_of(arrays, images=len(data.images), captions=len(data.owners))
    return found[np.argsort(arrays["caption"], kind="stable")].astype(np.float64)


def cross_ranks_block(compared: CrossRanks, out: Path) -> str:
    """The content of a page's section; its figure's files are written beside the page."""
    figure = compared.figure()
    _write_figure(figure, out)
    tables = "".join(scrolling(table.title, table.html()) for table in (compared.table(), compared.moves_table()))
    return f"<p>{escape(compared.sentence())}</p>{figure_block(figure)}{tables}"


def _write_figure(figure: Figure, out: Path) -> None:
    runs.write_beside_runs(out, f"figures/{figure.name}.png", figure.png)
    runs.write_beside_runs(out, f"figures/{figure.name}.svg", figure.file_svg)
