"""The answer as a table: mean and spread over seeds, in the terminal, Markdown and JSON."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

COLUMNS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")


@dataclass(frozen=True)
class Comparison:
    """Metrics of every objective, one dict a seed; the best mean of each column is marked."""

    results: dict[str, list[dict[str, float]]]

    def cells(self) -> list[tuple[str, list[str]]]:
        """(objective, its cells), best first."""
        best = {column: max(self._mean(name, column) for name in self.results) for column in COLUMNS}
        order = sorted(self.results, key=lambda name: -self._mean(name, "rsum"))
        return [(name, [self._cell(name, column, best[column]) for column in COLUMNS]) for name in order]

    def print(self, console: Console) -> None:
        # Seven numbers with their spread fit in 80 columns only without borders.
        table = Table(title=self.title, box=None, padding=(0, 1, 0, 0), title_justify="left")
        table.add_column("objective", no_wrap=True)
        for heading in HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        for name, cells in self.cells():
            table.add_row(name, *(cell.replace("**", "[bold]", 1).replace("**", "[/bold]", 1) for cell in cells))
        console.print(table)

    def markdown(self) -> str:
        lines = [f"| objective | {' | '.join(HEADINGS)} |", f"|---|{'---:|' * len(HEADINGS)}"]
        lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in self.cells()]
        return "\n".join([self.title, "", *lines, ""])

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (
            ("comparison.md", self.markdown()),
            ("comparison.json", json.dumps(self.results, indent=2) + "\n"),
        ):
            unfinished = folder / f".{name}"
            unfinished.write_text(content)
            os.replace(unfinished, folder / name)

    @property
    def title(self) -> str:
        seeds = len(next(iter(self.results.values())))
        spread = f"mean ± std (n-1) over {seeds} seeds" if seeds > 1 else "one seed: no spread is known"
        return f"scenes, heads: {spread}"

    def _mean(self, name: str, column: str) -> float:
        return mean(metrics[column] for metrics in self.results[name])

    def _cell(self, name: str, column: str, best: float) -> str:
        numbers = [metrics[column] for metrics in self.results[name]]
        text = f"{mean(numbers):.1f}" + (f"±{stdev(numbers):.1f}" if len(numbers) > 1 else "")
        return f"**{text}**" if mean(numbers) == best else text
