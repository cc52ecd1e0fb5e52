"""A table, rendered for the terminal, as Markdown and as LaTeX; `templates/macros.html.j2` shows it on pages."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table as TerminalTable


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False
    """Bold."""


@dataclass(frozen=True)
class Table:
    """`rows`: name of the row, which is the first column, and its other cells."""

    title: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def terminal(self) -> TerminalTable:
        # Seven columns of mean±std fit into 80 characters only without borders.
        table = TerminalTable(title=escape(self.title) or None, box=None, padding=(0, 1, 0, 0), title_justify="left")
        table.add_column(self.headings[0], overflow="fold")
        for heading in self.headings[1:]:
            table.add_column(heading, justify="right", no_wrap=True)
        for name, cells in self.rows:
            texts = [(escape(cell.text), cell.best) for cell in cells]
            table.add_row(escape(name), *(f"[bold]{text}[/bold]" if best else text for text, best in texts))
        return table

    def markdown(self) -> str:
        lines = [f"| {' | '.join(self.headings)} |", f"|---|{'---:|' * (len(self.headings) - 1)}"]
        for name, cells in self.rows:
            texts = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
            lines.append("| " + " | ".join(_one_line(text).replace("|", "\\|") for text in (name, *texts)) + " |")
        return "\n".join([_one_line(self.title), "", *lines, ""])

    def latex(self) -> str:
        """A tabular with booktabs rules; the title is a comment."""
        lines = [f"\\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}", "\\toprule"]
        lines += [" & ".join(_tex(heading) for heading in self.headings) + " \\\\", "\\midrule"]
        for name, cells in self.rows:
            texts = [f"\\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in cells]
            lines.append(" & ".join([_tex(name), *texts]) + " \\\\")
        return "\n".join([f"% {_one_line(self.title)}", *lines, "\\bottomrule", "\\end{tabular}", ""])


def _one_line(text: str) -> str:
    """Names come from files: a line break would end a row, or the comment that holds a title."""
    return " ".join(text.splitlines())


def _tex(text: str) -> str:
    return _one_line(text).translate(_TEX)


_TEX = str.maketrans(
    {"\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\~{}", "±": "$\\pm$"}
    | {character: f"\\{character}" for character in "_%&#${}"}
)
