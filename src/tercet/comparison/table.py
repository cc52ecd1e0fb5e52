"""The answer as a table: mean and spread over seeds, in the terminal, Markdown and JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tercet import runs

COLUMNS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")


@dataclass(frozen=True)
class Comparison:
    """Metrics of every objective, one dict a seed, and what the grid was; the best mean of each column is marked."""

    results: dict[str, list[dict[str, float]]]
    grid: dict[str, Any]

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
            table.add_row(escape(name), *(_bold(cell) for cell in cells))
        console.print(table)

    def markdown(self) -> str:
        lines = [f"| objective | {' | '.join(HEADINGS)} |", f"|---|{'---:|' * len(HEADINGS)}"]
        lines += [f"| {name.replace('|', chr(92) + '|')} | {' | '.join(cells)} |" for name, cells in self.cells()]
        return "\n".join([self.title, "", *lines, ""])

    def save(self, root: Path) -> None:
        """As Markdown and JSON beside the runs, under a name of this grid's own."""
        document = {"grid": self.grid, "results": self.results}
        runs.write_beside_runs(root, f"{self.file_stem}.md", self.markdown())
        runs.write_beside_runs(root, f"{self.file_stem}.json", json.dumps(document, indent=2) + "\n")

    @property
    def file_stem(self) -> str:
        identity = {**self.grid, "objectives": list(self.results), "seeds": self._seeds}
        return f"comparison_{runs.run_hash(identity, '')}"

    @property
    def _seeds(self) -> int:
        return len(next(iter(self.results.values())))

    @property
    def title(self) -> str:
        spread = f"mean ± std (n-1) over {self._seeds} seeds" if self._seeds > 1 else "one seed: no spread is known"
        return f"{self.grid['scenes']} {self.grid['data']}, {self.grid['epochs']} epochs, heads; {spread}"

    def _mean(self, name: str, column: str) -> float:
        return mean(metrics[column] for metrics in self.results[name])

    def _cell(self, name: str, column: str, best: float) -> str:
        numbers = [metrics[column] for metrics in self.results[name]]
        text = f"{mean(numbers):.1f}" + (f"±{stdev(numbers):.1f}" if len(numbers) > 1 else "")
        return f"**{text}**" if mean(numbers) == best else text


def _bold(cell: str) -> str:
    return f"[bold]{cell.strip('*')}[/bold]" if cell.startswith("**") else cell
