"""How figures look: drawn once with matplotlib, for files as they are, for the page with the page's own colours."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

# Colours that can be told apart by colour-blind readers (after Okabe and Ito); on the page each is a variable with a
# lighter twin for dark screens.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b14d8c", "#8a6d00", "#3aa0d8", "#5b5b5b", "#7a3b00")
INK = "#1b1b1c"
FAINT = "#d9d9da"
WIDTH = 4.8  # inches: readable on a phone without zooming


@dataclass(frozen=True)
class Figure:
    """`svg` takes the colours of the page it stands in; `png` is for papers and slides."""

    name: str
    title: str
    caption: str
    svg: str
    file_svg: str
    png: bytes


@contextmanager
def plotting() -> Iterator[Any]:
    """matplotlib's pyplot with the settings of the report; imported only where something is drawn."""
    import matplotlib

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a name may hold any sign
        "svg.hashsalt": "tercet",
        "font.family": "sans-serif",
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlesize": 9.0,
        "axes.titlecolor": INK,
        "axes.titlelocation": "left",
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": FAINT,
        "axes.grid": True,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure as Canvas

        yield Canvas


def finished(canvas: Any, name: str, title: str, caption: str) -> Figure:
    """The same bytes for the same numbers."""
    drawn, pixels = io.StringIO(), io.BytesIO()
    canvas.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    canvas.savefig(pixels, format="png", dpi=180, facecolor="white", metadata={"Software": None})
    file_svg = drawn.getvalue()
    return Figure(name, title, caption, _for_page(file_svg, name, title), file_svg, pixels.getvalue())


def _for_page(svg: str, name: str, title: str) -> str:
    """Without a size of its own, ids of its own, the page's colours and fonts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"font: (?:bold|600|700) ([\d.]+)px[^;\"]*", r"font-size: \1px; font-weight: 600", svg)
    for number, colour in enumerate(SERIES):
        svg = svg.replace(colour, f"var(--series-{number})")
    return svg.replace(INK, "var(--ink)").replace(FAINT, "var(--line)")
