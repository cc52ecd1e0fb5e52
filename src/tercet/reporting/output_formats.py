"""Results in every output format: tables for the terminal, Markdown, LaTeX and notebooks; self-contained HTML pages.

Pages are the templates in `templates/`; their images are inline thumbnails.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from rich.markup import escape
from rich.table import Table as TerminalTable

from tercet.data.dataset import Split

THUMBNAIL_SIZE = 132  # pixels of the longer side


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


def tables_html(tables: Sequence[Table], text: str = "", note: str = "") -> str:
    """Tables with a text before and a note after them, in the fonts and colors of the notebook."""
    return environment().get_template("notebook.html.j2").render(tables=tables, text=text, note=note)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A DataFrame of these rows. pandas is imported only here."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ValueError("to_pandas needs a package: pip install pandas") from error
    return pd.DataFrame(list(rows))


@cache
def environment() -> Environment:
    """The templates; every value is escaped, and a missing one is an error."""
    made = Environment(
        loader=PackageLoader("tercet.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals["style"] = (files(__package__) / "page.css").read_text(encoding="utf-8")
    return made


def render_page(name: str, **values: Any) -> str:
    """The page `name`, as `report.html`, from the template `<name>.j2`."""
    return environment().get_template(f"{name}.j2").render(values)


@dataclass(frozen=True)
class Thumbnail:
    """An image on a page."""

    name: str
    alt: str
    source: str | None
    """Data URI; None if there is no image file: the page shows the name."""
    caption_fallback: str | None = None
    """The first caption, if the data has no image files; the text of a passage."""


@dataclass(frozen=True)
class PageItem:
    """A caption, an image, or a caption with its own image."""

    text: str | None
    image: Thumbnail | None


def query_item(split: Split, direction: Literal["i2t", "t2i"], row: int, *, caption_fallback: bool = True) -> PageItem:
    """The image of `row`, or for t2i the caption with its own image."""
    if direction == "i2t":
        return PageItem(None, thumbnail(split, row, caption_fallback=caption_fallback))
    return PageItem(split.texts[row], thumbnail(split, int(split.owners[row]), caption_fallback=False))


def candidate_item(
    split: Split, direction: Literal["i2t", "t2i"], row: int, *, caption_fallback: bool = True
) -> PageItem:
    """The caption of `row`, or for t2i the image."""
    if direction == "i2t":
        return PageItem(split.texts[row], None)
    return PageItem(None, thumbnail(split, row, caption_fallback=caption_fallback))


def thumbnail(split: Split, image: int, *, caption_fallback: bool) -> Thumbnail:
    """With the first caption of the image as alt text; a passage is shown as its text."""
    name = split.image_names[image]
    if split.image_texts is not None:
        text = split.image_texts[image]
        return Thumbnail(name, f"{name}: {text}", None, text)
    first = split.texts[int(np.searchsorted(split.owners, image))]
    alt = f"{name}: {first}"
    if split.image_files is None:
        return Thumbnail(name, alt, None, first if caption_fallback else None)
    try:
        return Thumbnail(name, alt, _data_uri(split.image_files.open(image)))
    except ValueError:  # the file is missing or damaged by now; the results are still valid
        return Thumbnail(name, alt, None)


def _data_uri(image: Image.Image) -> str:
    image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
