"""Validation during training, of one run or of many."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tercet import runs
from tercet.reporting.svg_figure import MARKERS, SERIES, WIDTH, Figure, plotting, render_figure, short_label

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
