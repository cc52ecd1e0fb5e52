"""A finished run as a result: its metrics in the terminal, in a notebook, as a DataFrame and as a figure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tercet import runs
from tercet.console import terminal_console
from tercet.names import is_in_memory, short_name
from tercet.reporting.output_formats import Cell, Table
from tercet.types import Sides

COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "median rank", "meanr": "mean rank", "map5": "mAP@5"}


def metrics_table(metrics: Mapping[str, float], title: str, sides: Sides) -> Table:
    """One row per direction."""
    rows = []
    for direction in ("i2t", "t2i"):
        values = {column: metrics[f"{direction}_{column}"] for column in COLUMNS}
        cells = [Cell(f"{value:.3f}" if column == "map5" else f"{value:.1f}") for column, value in values.items()]
        rows.append((sides.long(direction), cells))
    return Table(title, ("", *COLUMNS.values()), rows)


@dataclass(frozen=True, repr=False)
class Trained:
    """A finished run: `tercet.load(run.folder)` is its model."""

    folder: Path
    metrics: dict[str, float]
    """With the weights that were best on validation."""
    split: str
    """The split of the metrics: test, or validation if the dataset has no test split."""

    def __repr__(self) -> str:
        shown = {"rsum": "rsum"} | {f"{way}_r1": f"{self.sides.short(way)} R@1" for way in ("i2t", "t2i")}
        values = ", ".join(f"{label} {self.metrics[name]:.1f}" for name, label in shown.items() if name in self.metrics)
        return f"Trained({str(self.folder)[-160:]!r}, {self.split}: {values or 'no metrics'})"

    @property
    def sides(self) -> Sides:
        """What the two sides of its data are called."""
        return runs.read_sides(self.folder)

    def tables(self) -> list[Table]:
        """The metrics; none if the data has neither a test nor a validation split."""
        title = f"{self.split}, rsum {self.metrics['rsum']:.1f}" if self.metrics else ""
        return [metrics_table(self.metrics, title, self.sides)] if self.metrics else []

    def print(self, console: Console | None = None) -> None:
        console = console or terminal_console()
        for table in self.tables():
            console.print(table.terminal())
        console.print(f"\n{self._note()}", soft_wrap=True, highlight=False, markup=False)

    def _repr_html_(self) -> str:
        from tercet.reporting.output_formats import tables_html

        return tables_html(self.tables(), note=self._note())

    def to_pandas(self) -> Any:
        """A DataFrame of all metrics: one row per validated epoch, and one of the selected weights at the end."""
        from tercet.reporting.output_formats import data_frame

        lines = [*runs.read_validation(self.folder), runs.read_final(self.folder)]
        return data_frame([{"epoch": line.get("epoch"), "split": line.get("split"), **line} for line in lines])

    def plot(self) -> Any:
        """rsum on validation after every epoch, as a matplotlib figure."""
        from tercet.reporting.svg_figure import plot_learning, validation_curve

        curve = validation_curve(self.folder)
        if not curve:
            raise ValueError(f"{self.folder.name} was not validated: its data has no validation split")
        objective = str(runs.read_settings(self.folder)["objective"])
        return plot_learning({short_name(objective) if is_in_memory(objective) else objective: [curve]}).canvas

    def _note(self) -> str:
        return f"run folder {self.folder}; load its model with tercet.load({str(self.folder)!r})"
