"""Figures drawn with matplotlib in one style: as PNG, as SVG, and as inline SVG in the colors of the page.

Learning curves are here because single runs and comparisons draw them.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tercet import runs

# Color-blind safe palette (after Okabe and Ito). On the page each color is a CSS variable with a lighter value in dark
# mode.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b14d8c", "#8a6d00", "#3aa0d8", "#5b5b5b", "#7a3b00")
INK = "#1b1b1c"
FAINT = "#d9d9da"
WIDTH = 4.8  # inches: readable on a phone
MARKERS = "osD^vPX*"
MAX_LABEL = 28  # characters of a name in a figure


@dataclass(frozen=True)
class Figure:
    """`svg` is for inlining in a page; `file_svg` and `png` are stand-alone files; `canvas` is matplotlib's figure."""

    name: str
    title: str
    caption: str
    svg: str
    file_svg: str
    png: bytes
    canvas: Any = field(repr=False, compare=False)


@contextmanager
def plotting() -> Iterator[Any]:
    """Context with the matplotlib settings of the reports; yields matplotlib's Figure class, imported only here.

    A notebook shows such a figure below its cell, also if pyplot was not imported.
    """
    import matplotlib

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # names may contain any character, also $
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
        from matplotlib.figure import Figure as MatplotlibFigure

        class Canvas(MatplotlibFigure):
            def _repr_png_(self) -> bytes:
                png = io.BytesIO()
                self.savefig(png, format="png", dpi=110, facecolor="white")
                return png.getvalue()

        yield Canvas


def render_figure(canvas: Any, name: str, title: str, caption: str) -> Figure:
    """Save as SVG and PNG, deterministically: no dates or versions in the files."""
    svg, png = io.StringIO(), io.BytesIO()
    canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    canvas.savefig(png, format="png", dpi=180, facecolor="white", metadata={"Software": None})
    file_svg = svg.getvalue()
    return Figure(name, title, caption, _inline_svg(file_svg, name, title), file_svg, png.getvalue(), canvas)


def short_label(name: str) -> str:
    """Keep the end of a long name. A leading underscore is padded: matplotlib hides such names in legends."""
    label = name if len(name) <= MAX_LABEL else f"…{name[1 - MAX_LABEL :]}"
    return f" {label}" if label.startswith("_") else label


def _inline_svg(svg: str, name: str, title: str) -> str:
    """For inlining: no fixed size, unique ids, and the colors and fonts of the page."""
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
    for index, color in enumerate(SERIES):
        svg = svg.replace(color, f"var(--series-{index})")
    return svg.replace(INK, "var(--ink)").replace(FAINT, "var(--line)")


Curve = Sequence[tuple[int, float]]
"""Step and rsum of every validation of a run."""


def validation_curve(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["rsum"]) for line in runs.read_validation(folder)]


def plot_learning(curves_of: Mapping[str, Sequence[Curve]]) -> Figure:
    """Label -> curves of its seeds: their mean, and their range."""
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 3.2))
        axes = canvas.subplots()
        for index, (name, curves) in enumerate(curves_of.items()):
            shortest = min(len(curve) for curve in curves)
            steps = [step for step, _ in curves[0][:shortest]]
            values = np.array([[value for _, value in curve[:shortest]] for curve in curves])
            color = SERIES[index % len(SERIES)]
            axes.plot(
                steps,
                values.mean(axis=0),
                color=color,
                label=short_label(name),
                marker=MARKERS[index % len(MARKERS)],
                markersize=3,
            )
            if len(values) > 1:
                axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, linewidth=0)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title("rsum on validation")
        axes.legend(fontsize=7, ncols=2)
        return render_figure(
            canvas, "learning", "Learning curves", "rsum on validation: mean over seeds; shaded: minimum to maximum."
        )
