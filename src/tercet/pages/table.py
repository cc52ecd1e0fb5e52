"""One table for the terminal, Markdown, LaTeX and pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as html_escape

from rich.markup import escape
from rich.table import Table as TerminalTable


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False

    def html(self) -> str:
        shown = html_escape(self.text)
        return f"<td><b>{shown}</b></td>" if self.best else f"<td>{shown}</td>"


@dataclass(frozen=True)
class Table:
    """The first column names the row."""

    title: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def terminal(self) -> TerminalTable:
        # Seven numbers with their spread fit in 80 columns only without borders.
        made = TerminalTable(title=escape(self.title) or None, box=None, padding=(0, 1, 0, 0), title_justify="left")
        made.add_column(self.headings[0], overflow="fold")
        for heading in self.headings[1:]:
            made.add_column(heading, justify="right", no_wrap=True)
        for name, cells in self.rows:
            shown = [(escape(cell.text), cell.best) for cell in cells]
            made.add_row(escape(name), *(f"[bold]{text}[/bold]" if best else text for text, best in shown))
        return made

    def markdown(self) -> str:
        lines = [f"| {' | '.join(self.headings)} |", f"|---|{'---:|' * (len(self.headings) - 1)}"]
        for name, cells in self.rows:
            shown = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
            lines.append("| " + " | ".join(part.replace("|", "\\|") for part in (name, *shown)) + " |")
        return "\n".join([self.title, "", *lines, ""])

    def latex(self) -> str:
        """With booktabs."""
        lines = [f"\\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}", "\\toprule"]
        lines += [" & ".join(_tex(heading) for heading in self.headings) + " \\\\", "\\midrule"]
        for name, cells in self.rows:
            shown = [f"\\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in cells]
            lines.append(" & ".join([_tex(name), *shown]) + " \\\\")
        return "\n".join([f"% {self.title}", *lines, "\\bottomrule", "\\end{tabular}", ""])

    def html(self) -> str:
        """Without its title, which may be longer than a phone is wide."""
        head = "".join(f'<th scope="col">{html_escape(heading)}</th>' for heading in self.headings)
        rows = "".join(
            f'<tr><th scope="row">{html_escape(name)}</th>{"".join(cell.html() for cell in cells)}</tr>'
            for name, cells in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _tex(text: str) -> str:
    return text.translate(_TEX)


_TEX = str.maketrans(
    {"\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\~{}", "±": "$\\pm$"} | {sign: f"\\{sign}" for sign in "_%&#${}"}
)
