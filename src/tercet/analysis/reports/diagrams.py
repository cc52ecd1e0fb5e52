"""Figures and tables of objectives: triplet diagrams, GOAL's Figures 2 and 3, and which GOAL cells have a loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.analysis.integrability import Circulation, positive_circulation, triplet_circulation
from tercet.analysis.triplet_diagram import MINED_SIMILARITY, RELATIVE_TERM, Plane, plane
from tercet.objectives import RowObjective, objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.goal.cells import PAIR_WEIGHTS, READINGS, TRIPLET_WEIGHTS
from tercet.reporting.output_formats import Cell, Table
from tercet.reporting.svg_figure import INK, SERIES, WIDTH, Figure, plotting, render_figure

EpochTriplets = Mapping[int, Mapping[str, Sequence[float | None]]]
"""Epoch -> triplets of a batch: s_p, and the hardest negative's similarity as i2t and t2i."""

CONTOUR_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)  # shares of the largest weight
COLORMAP = "Blues"
MARKERS = ("o", "^", "s", "D")
FIGURE_WIDTH = 1.5 * WIDTH

# All fifteen cells, as printed in the paper and as in the authors' code.
CELLS = [(f"{T}/{P}", reading) for reading in READINGS for P in PAIR_WEIGHTS for T in TRIPLET_WEIGHTS]
# The losses that the paper's Table 1 names for cells; it calls the other ten New.
TABLE_1 = {
    "con/con": "triplet loss",
    "nca/con": "NT-Xent loss",
    "cir/lin": "circle loss",
    "con/sig": "binomial deviance",
    "con/sig-ms": "MS loss",
}
# (cell, reading) -> how it differs from the loss that Table 1 names, or that a cell called New has a loss.
DIFFERENCES = {
    (
        "con/con",
        "code",
    ): "Has a loss, S_n - S_p, but not the triplet loss: without the gate no triplet is ever satisfied.",
    ("con/sig", "paper"): "Binomial deviance has no margin. Gated by Eq. 5, the gradient jumps across S_p - S_n = m by "
    "(-P+, P-), which is perpendicular to that line only where P+ = P-: a loss would be discontinuous along it.",
    (
        "con/sig-ms",
        "paper",
    ): "Gated like con/sig, and each pair's weight depends on other pairs without the gradient on "
    "them that a loss would give: MS loss spreads its gradient over all pairs of its sets, this cell pushes one.",
    (
        "con/sig-ms",
        "code",
    ): "Without the gate a single triplet has a loss, but a weight depends on other positive pairs "
    "that get no gradient: MS loss sums over its sets and pulls all pairs, this cell takes a mean and pulls one.",
    ("con/lin", "code"): "Called New; without the gate it is the gradient of (1 - S_p)^2 / 2 + S_n^2 / 2.",
}


def goal_figure_2() -> tuple[Figure, dict[str, Any]]:
    """The three triplet weights: the figure and its data."""
    planes = {T: plane(objective(f"{T}/con")) for T in TRIPLET_WEIGHTS}
    with plotting() as Canvas:
        canvas = Canvas(figsize=(FIGURE_WIDTH, 2.9))
        grid = canvas.subplots(1, 3, sharey=True)
        for axes, (name, weights) in zip(grid, planes.items(), strict=True):
            assert weights.triplet_weight is not None
            image = _heatmap(axes, weights, weights.triplet_weight.numpy(), top=1.0)
            _contours(axes, weights, weights.triplet_weight.numpy())
            axes.set(title=f"T {name}", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            _plane_labels(axes, first=name == "con")
        canvas.colorbar(image, ax=grid, shrink=0.8, label="weight")
        figure = render_figure(
            canvas,
            "goal_figure_2",
            "Triplet weights",
            "T by positive and negative similarity, margin 0.2, tau 10. Contours join equal weights: one step for con, "
            "straight lines for nca, circles around (1, 0) for cir.",
        )
    return figure, {name: weights.content() for name, weights in planes.items()}


def goal_figure_3() -> tuple[Figure, dict[str, Any]]:
    """The five pair weights: the figure and its data."""
    planes = {P: plane(objective(f"con/{P}")) for P in PAIR_WEIGHTS}
    with plotting() as Canvas:
        canvas = Canvas(figsize=(FIGURE_WIDTH, 3.0))
        left, right = canvas.subplots(1, 2)
        for color, (name, weights) in zip(SERIES, planes.items(), strict=False):
            assert weights.positive_weight is not None
            assert weights.negative_weight is not None
            style = {"color": color, "linestyle": "--" if name.endswith("-ms") else "-", "label": name}
            left.plot(weights.s_p, weights.positive_weight, **style)
            right.plot(weights.s_n, weights.negative_weight, **style)
        left.set(title="P+", xlabel="positive similarity", ylabel="weight", ylim=(0, None))
        right.set(title="P-", xlabel="negative similarity", ylim=(0, None))
        canvas.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
        figure = render_figure(
            canvas,
            "goal_figure_3",
            "Pair weights",
            f"alpha 2, beta 10, lambda 0.5; relative terms of the -ms weights fixed at {RELATIVE_TERM:g}.",
        )
    content: dict[str, Any] = {
        name: {key: weights.content()[key] for key in ("s_p", "s_n", "positive_weight", "negative_weight")}
        for name, weights in planes.items()
    }
    return figure, content


def diagram(
    objective: RowObjective,
    triplets: EpochTriplets | None = None,
    *,
    name: str,
    label: str | None = None,
    mined: float = MINED_SIMILARITY,
) -> tuple[Figure, dict[str, Any]]:
    """Heatmaps of |dL/dS_p| and |dL/dS_n|, T and P if declared, and a run's own triplets as points, with the data.

    `label` is the objective's name with its settings; `name` is the file name.
    """
    low, high = _limits(triplets)
    weights = plane(objective, low=low, high=high, mined=mined)
    panels = {"pull: |dL/dS_p|": weights.pull, "push: |dL/dS_n|": weights.push}
    if weights.triplet_weight is not None:
        panels["T"] = weights.triplet_weight
    with plotting() as Canvas:
        has_pair_weights = weights.positive_weight is not None
        canvas = Canvas(figsize=(FIGURE_WIDTH, 3.2 if not has_pair_weights else 5.8))
        if has_pair_weights:
            upper, lower = canvas.subfigures(2, 1, height_ratios=(1, 1))
            grid = [*upper.subplots(1, 2, sharey=True), *lower.subplots(1, 2)]
            _pair_weights(grid[3], weights)
        else:
            grid = list(canvas.subplots(1, 2, sharey=True))
        for column, (axes, (title, values)) in enumerate(zip(grid, panels.items(), strict=False)):
            image = _heatmap(axes, weights, values.numpy())
            axes.figure.colorbar(image, ax=axes, shrink=0.8)
            _contours(axes, weights, values.numpy())
            _scatter(axes, triplets or {})
            axes.set_title(title)
            _plane_labels(axes, first=column != 1)
        if triplets:
            handles, labels = grid[0].get_legend_handles_labels()
            canvas.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        canvas.suptitle(label or objective.name, x=0.01, ha="left", fontsize=9)
        title = f"{label or objective.name}: pull on the positive, push on the negative"
        figure = render_figure(canvas, name, title, _caption(objective, triplets, mined))
    relative = RELATIVE_TERM if getattr(objective, "relative", None) is not None else None
    content = {
        "objective": objective.name,
        "settings": _json_settings(objective.settings),
        "relative": relative,
        **weights.content(),
        "mined": mined if isinstance(objective, AOQ) else None,
        "caption": figure.caption,
        "triplets": dict(triplets or {}),
    }
    return figure, content


def select_epochs(triplets: EpochTriplets, epochs: Sequence[int]) -> EpochTriplets:
    """The given epochs; by default the first, the middle and the last."""
    available = sorted(triplets)
    if not available:
        raise ValueError(
            "the run has no saved triplets: it was trained with --cocos-every 0, or by a version that did not save them"
        )
    if not epochs:
        epochs = sorted({available[0], available[len(available) // 2], available[-1]})
    for epoch in epochs:
        if epoch not in triplets:
            raise ValueError(f"no triplets of epoch {epoch}; the run has epochs {available[0]} to {available[-1]}")
    return {epoch: triplets[epoch] for epoch in epochs}


@dataclass(frozen=True)
class CellIntegrability:
    """Circulation of the gradient of one GOAL cell."""

    cell: str
    reading: str
    triplets: Circulation
    positives: Circulation

    @property
    def has_loss(self) -> bool:
        return self.triplets.vanishes and self.positives.vanishes

    def content(self) -> dict[str, Any]:
        """Content for JSON."""
        return {
            "cell": self.cell,
            "reading": self.reading,
            "triplets": vars(self.triplets),
            "positives": vars(self.positives),
            "has_loss": self.has_loss,
            "table_1": TABLE_1.get(self.cell, "New"),
        }


def cell_integrability(cell: str, reading: str) -> CellIntegrability:
    goal = objective(cell, reading=reading)
    return CellIntegrability(cell, reading, triplet_circulation(goal), positive_circulation(goal))


def integrability_tables(cells: Sequence[CellIntegrability]) -> list[Table]:
    """One table per reading."""
    headings = ("cell", "Table 1", "in (S_p, S_n)", "in (S_p, S_p')", "a loss exists")
    return [
        Table(
            f"Largest circulation of the gradient, reading={reading}",
            headings,
            [(cell.cell, _table_row(cell)) for cell in cells if cell.reading == reading],
        )
        for reading in READINGS
    ]


def integrability_notes(cells: Sequence[CellIntegrability]) -> list[str]:
    """One sentence for each cell that differs from Table 1."""
    notes = [(cell, DIFFERENCES.get((cell.cell, cell.reading))) for cell in cells]
    return [f"{cell.cell}, reading={cell.reading}: {note}" for cell, note in notes if note is not None]


def _table_row(cell: CellIntegrability) -> list[Cell]:
    return [
        Cell(TABLE_1.get(cell.cell, "New")),
        *(Cell("0" if each.vanishes else f"{each.largest:.3f}") for each in (cell.triplets, cell.positives)),
        Cell("yes" if cell.has_loss else "no", cell.has_loss),
    ]


def _limits(triplets: EpochTriplets | None) -> tuple[float, float]:
    """Axis limits: 0 to 1, extended to include all triplets."""
    values = [
        value
        for epoch in (triplets or {}).values()
        for similarities in epoch.values()
        for value in similarities
        if value is not None
    ]
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def _heatmap(axes: Any, weights: Plane, values: np.ndarray, top: float | None = None) -> Any:
    extent = (float(weights.s_p[0]), float(weights.s_p[-1]), float(weights.s_n[0]), float(weights.s_n[-1]))
    return axes.imshow(
        values, origin="lower", extent=extent, cmap=COLORMAP, vmin=0.0, vmax=top or max(float(values.max()), 1e-12)
    )


def _contours(axes: Any, weights: Plane, values: np.ndarray) -> None:
    """Lines of equal weight; none if the weight is constant, one if it has only two values."""
    if values.max() - values.min() <= 1e-9 * max(abs(values.max()), 1e-300):
        return
    distinct = np.unique(values)
    levels = (
        [share * float(values.max()) for share in CONTOUR_LEVELS] if len(distinct) > 2 else [float(distinct.mean())]
    )
    axes.contour(weights.s_p, weights.s_n, values, levels=levels, colors=INK, linewidths=0.8)


def _scatter(axes: Any, triplets: EpochTriplets) -> None:
    """Triplets of both directions as points; one color and marker per epoch."""
    for index, (epoch, similarities) in enumerate(triplets.items()):
        points = [
            (s_p, s_n)
            for direction in ("i2t", "t2i")
            for s_p, s_n in zip(similarities["s_p"], similarities[direction], strict=True)
            if s_p is not None and s_n is not None
        ]
        if points:
            axes.scatter(
                *np.array(points).T,
                s=7,
                marker=MARKERS[index % len(MARKERS)],
                color=SERIES[(index + 1) % len(SERIES)],
                alpha=0.6,
                linewidths=0,
                label=f"epoch {epoch}",
            )


def _pair_weights(axes: Any, weights: Plane) -> None:
    axes.plot(weights.s_p, weights.positive_weight, color=SERIES[0], label="P+ of the positive")
    axes.plot(weights.s_n, weights.negative_weight, color=SERIES[1], label="P- of the negative")
    axes.set(title="P", xlabel="similarity", ylim=(0, None))
    axes.legend(fontsize=8)


def _plane_labels(axes: Any, *, first: bool) -> None:
    axes.grid(visible=False)
    axes.set_xlabel("positive similarity")
    if first:
        axes.set_ylabel("negative similarity")


def _json_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Custom functions by name."""
    return {key: getattr(value, "__name__", value) for key, value in settings.items()}


def _caption(objective: RowObjective, triplets: EpochTriplets | None, mined: float) -> str:
    text = "A query with one positive and one negative, before reduction; contours join equal weights."
    if getattr(objective, "relative", None) is not None:
        text += f" Relative terms, which need a batch, are fixed at {RELATIVE_TERM:g}."
    if triplets:
        text += " Points: triplets of the epoch's last training batch, each positive with its hardest negatives."
    if isinstance(objective, AOQ):
        text += f" Mined negatives have similarity {mined:g}."
    return text
