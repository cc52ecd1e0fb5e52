"""Diagrams as figures: GOAL's Figures 2 and 3, and any objective's gradient over the plane of triplets."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tercet.analysis.diagram import MINED, RELATIVE, Plane, plane
from tercet.objectives import RowObjective, objective
from tercet.objectives.goal import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.pages.figure import INK, SERIES, WIDTH, Figure, finished, plotting

Laid = Mapping[int, Mapping[str, Sequence[float | None]]]
"""Epoch -> triplets of a batch: s_p, and the hardest negative's similarity as i2t and t2i."""

EQUAL_WEIGHT = (0.1, 0.3, 0.5, 0.7, 0.9)
SHADES = "Blues"
MARKS = ("o", "^", "s", "D")
WIDE = 1.5 * WIDTH


def goal_figure_2() -> tuple[Figure, dict[str, Any]]:
    """The three triplet weights."""
    planes = {T: plane(objective(f"{T}/con")) for T in TRIPLET_WEIGHTS}
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDE, 2.9))
        grid = canvas.subplots(1, 3, sharey=True)
        for axes, (name, each) in zip(grid, planes.items(), strict=True):
            assert each.triplet_weight is not None
            drawn = _shaded(axes, each, each.triplet_weight.numpy(), top=1.0)
            _equal_lines(axes, each, each.triplet_weight.numpy())
            axes.set(title=f"T {name}", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            _plane_labels(axes, first=name == "con")
        canvas.colorbar(drawn, ax=grid, shrink=0.8, label="weight")
        made = finished(
            canvas,
            "goal_figure_2",
            "Triplet weights",
            "T over the plane, margin 0.2, tau 10. Lines join equal weights: the one step of con, straight for nca, "
            "circles about (1, 0) for cir.",
        )
    return made, {name: each.content() for name, each in planes.items()}


def goal_figure_3() -> tuple[Figure, dict[str, Any]]:
    """The five pair weights."""
    planes = {P: plane(objective(f"con/{P}")) for P in PAIR_WEIGHTS}
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDE, 3.0))
        left, right = canvas.subplots(1, 2)
        for number, (name, each) in enumerate(planes.items()):
            assert each.positive_weight is not None
            assert each.negative_weight is not None
            style = {"color": SERIES[number], "linestyle": "--" if name.endswith("-ms") else "-", "label": name}
            left.plot(each.s_p, each.positive_weight, **style)
            right.plot(each.s_n, each.negative_weight, **style)
        left.set(title="P+", xlabel="positive similarity", ylabel="weight", ylim=(0, None))
        right.set(title="P-", xlabel="negative similarity", ylim=(0, None))
        canvas.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
        made = finished(
            canvas,
            "goal_figure_3",
            "Pair weights",
            f"alpha 2, beta 10, lambda 0.5; relative terms of the -ms weights fixed at {RELATIVE:g}.",
        )
    content: dict[str, Any] = {
        name: {part: each.content()[part] for part in ("s_p", "s_n", "positive_weight", "negative_weight")}
        for name, each in planes.items()
    }
    return made, content


def diagram(
    made_by: RowObjective, laid: Laid | None = None, *, name: str, label: str | None = None, mined: float = MINED
) -> tuple[Figure, dict[str, Any]]:
    """|dL/dS_p| and |dL/dS_n|, with T and P where they are declared, and a run's own triplets on top.

    `label` names the objective with its settings; files are called after `name`.
    """
    low, high = _reach(laid)
    each = plane(made_by, low=low, high=high, mined=mined)
    panels = {"pull: |dL/dS_p|": each.pull, "push: |dL/dS_n|": each.push}
    if each.triplet_weight is not None:
        panels["T"] = each.triplet_weight
    with plotting() as Canvas:
        declared = each.positive_weight is not None
        canvas = Canvas(figsize=(WIDE, 3.2 if not declared else 5.8))
        if declared:
            upper, lower = canvas.subfigures(2, 1, height_ratios=(1, 1))
            shown = [*upper.subplots(1, 2, sharey=True), *lower.subplots(1, 2)]
            _pair_weights(shown[3], each)
        else:
            shown = list(canvas.subplots(1, 2, sharey=True))
        for number, (axes, (title, values)) in enumerate(zip(shown, panels.items(), strict=False)):
            drawn = _shaded(axes, each, values.numpy())
            axes.figure.colorbar(drawn, ax=axes, shrink=0.8)
            _equal_lines(axes, each, values.numpy())
            _lay(axes, laid or {})
            axes.set_title(title)
            _plane_labels(axes, first=number != 1)
        if laid:
            handles, labels = shown[0].get_legend_handles_labels()
            canvas.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        canvas.suptitle(label or made_by.name, x=0.01, ha="left", fontsize=9)
        title = f"{label or made_by.name}: who is pulled, who is pushed"
        said = f" Offline members at {mined:g}." if made_by.takes_mined else ""
        figure = finished(canvas, name, title, _caption(made_by, laid) + said)
    fixed = RELATIVE if getattr(made_by, "relative", None) is not None else None
    content = {"objective": made_by.name, "settings": _plain(made_by.settings), "relative": fixed, **each.content()}
    content["mined"] = mined if made_by.takes_mined else None
    content |= {"caption": figure.caption, "triplets": dict(laid or {})}
    return figure, content


def chosen_epochs(laid: Laid, epochs: Sequence[int]) -> Laid:
    """Those asked for; the first, a middle and the last one where none are."""
    known = sorted(laid)
    if not known:
        raise ValueError("the run kept no triplets: it was trained with --cocos-every 0, or before triplets were kept")
    if not epochs:
        epochs = sorted({known[0], known[len(known) // 2], known[-1]})
    for epoch in epochs:
        if epoch not in laid:
            raise ValueError(f"no triplets of epoch {epoch}; the run has epochs {known[0]} to {known[-1]}")
    return {epoch: laid[epoch] for epoch in epochs}


def _reach(laid: Laid | None) -> tuple[float, float]:
    """0 to 1, or as far as the triplets go."""
    numbers = [x for each in (laid or {}).values() for side in each.values() for x in side if x is not None]
    return min(0.0, *numbers, 0.0), max(1.0, *numbers, 1.0)


def _shaded(axes: Any, each: Plane, values: np.ndarray, top: float | None = None) -> Any:
    corners = (float(each.s_p[0]), float(each.s_p[-1]), float(each.s_n[0]), float(each.s_n[-1]))
    return axes.imshow(
        values, origin="lower", extent=corners, cmap=SHADES, vmin=0.0, vmax=top or max(float(values.max()), 1e-12)
    )


def _equal_lines(axes: Any, each: Plane, values: np.ndarray) -> None:
    """None where the weight is the same everywhere. Levels are shares of the largest."""
    if values.max() - values.min() <= 1e-9 * max(abs(values.max()), 1e-300):
        return
    steps = np.unique(values)
    levels = [share * float(values.max()) for share in EQUAL_WEIGHT] if len(steps) > 2 else [float(steps.mean())]
    axes.contour(each.s_p, each.s_n, values, levels=levels, colors=INK, linewidths=0.8)


def _lay(axes: Any, laid: Laid) -> None:
    """Image anchors' triplets and caption anchors' alike; an epoch a colour and a mark."""
    for number, (epoch, triplets) in enumerate(laid.items()):
        points = [
            (x, y)
            for side in ("i2t", "t2i")
            for x, y in zip(triplets["s_p"], triplets[side], strict=True)
            if x is not None and y is not None
        ]
        if points:
            axes.scatter(
                *np.array(points).T,
                s=7,
                marker=MARKS[number % len(MARKS)],
                color=SERIES[(number + 1) % len(SERIES)],
                alpha=0.6,
                linewidths=0,
                label=f"epoch {epoch}",
            )


def _pair_weights(axes: Any, each: Plane) -> None:
    axes.plot(each.s_p, each.positive_weight, color=SERIES[0], label="P+ of the positive")
    axes.plot(each.s_n, each.negative_weight, color=SERIES[1], label="P- of the negative")
    axes.set(title="P", xlabel="similarity", ylim=(0, None))
    axes.legend(fontsize=8)


def _plane_labels(axes: Any, *, first: bool) -> None:
    axes.grid(visible=False)
    axes.set_xlabel("positive similarity")
    if first:
        axes.set_ylabel("negative similarity")


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Ready for JSON: functions of one's own by their name."""
    return {key: getattr(value, "__name__", value) for key, value in settings.items()}


def _caption(made_by: RowObjective, laid: Laid | None) -> str:
    said = "A query with one positive and one negative, before reduction; lines join equal weights."
    if getattr(made_by, "relative", None) is not None:
        said += f" Relative terms, which need a batch, are fixed at {RELATIVE:g}."
    if laid:
        said += " Points: triplets of the epoch's last training batch, each positive with its hardest negatives."
    return said
