"""A table, rendered for the terminal, as Markdown, as LaTeX and as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as html_escape

from rich.markup import escape
from rich.table import Table as TerminalTable


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False
    """Bold."""

    def html(self) -> str:
        text = html_escape(self.text)
        return f"<td><b>{text}</b></td>" if self.best else f"<td>{text}</td>"


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
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in (name, *texts)) + " |")
        return "\n".join([self.title, "", *lines, ""])

    def latex(self) -> str:
        """A tabular with booktabs rules; the title is a comment."""
        lines = [f"\\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}", "\\toprule"]
        lines += [" & ".join(_tex(heading) for heading in self.headings) + " \\\\", "\\midrule"]
        for name, cells in self.rows:
            texts = [f"\\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in cells]
            lines.append(" & ".join([_tex(name), *texts]) + " \\\\")
        return "\n".join([f"% {self.title}", *lines, "\\bottomrule", "\\end{tabular}", ""])

    def html(self) -> str:
        """Without the title, which can be wider than a phone screen."""
        head = "".join(f'<th scope="col">{html_escape(heading)}</th>' for heading in self.headings)
        rows = "".join(
            f'<tr><th scope="row">{html_escape(name)}</th>{"".join(cell.html() for cell in cells)}</tr>'
            for name, cells in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _tex(text: str) -> str:
    return text.translate(_TEX)


_TEX = str.maketrans(
    {"\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\~{}", "±": "$\\pm$"}
    | {character: f"\\{character}" for character in "_%&#${}"}
)
