"""The figures of a report: each from numbers to one drawing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tercet import runs
from tercet.comparison.report.evidence import Similarities
from tercet.comparison.results import Results
from tercet.evaluation.metrics import CROSS_SHARES
from tercet.evaluation.statistics import compare_runs
from tercet.pages.figure import SERIES, WIDTH, Figure, finished, plotting

SIDES = {"i2t": "image to text", "t2i": "text to image"}
INTERVALS = ("1", "2 to 10", "11 to 50", "51 to 200", "over 200")  # of cross-retrieval ranks
LONGEST = 28  # signs of a name in a figure
MOVES = (1.5, 4.0, 16.0)  # times by which a rank may change


def recalls(results: Results, names: Sequence[str], metric: str) -> Figure:
    """Bars with the interval over seeds and images."""
    metrics = list(dict.fromkeys(["i2t_r1", "t2i_r1", metric]))
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, len(metrics) * (0.55 + 0.19 * len(names))))
        for axes, which in zip(canvas.subplots(len(metrics), squeeze=False)[:, 0], metrics, strict=True):
            means = [results.mean(name, which) for name in names]
            reach = np.array([_interval(results, name, which) for name in names]).T
            axes.barh(range(len(names)), means, color=SERIES[0], height=0.7)
            errors = np.abs(reach - np.array(means))
            axes.errorbar(means, range(len(names)), xerr=errors, fmt="none", ecolor=SERIES[1], elinewidth=1.2)
            axes.set_yticks(range(len(names)), [shortened(name) for name in names])
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            axes.set_title(_metric_said(which))
        return finished(
            canvas,
            "recalls",
            "Recalls",
            "Means over seeds; lines: 95 % intervals over seeds and images together. Two intervals that "
            "overlap may still differ for sure, since contestants share seeds and images: the table of pairs says.",
        )


def learning(results: Results, names: Sequence[str]) -> Figure | None:
    """rsum on validation over training, mean and range of seeds."""
    curves = {name: [_validation(run.folder) for run in results.runs[name].values()] for name in names}
    if not all(curve for each in curves.values() for curve in each):
        return None
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 3.2))
        axes = canvas.subplots()
        for number, (name, each) in enumerate(curves.items()):
            shortest = min(len(curve) for curve in each)
            steps = [step for step, _ in each[0][:shortest]]
            values = np.array([[value for _, value in curve[:shortest]] for curve in each])
            colour = SERIES[number % len(SERIES)]
            axes.plot(
                steps,
                values.mean(axis=0),
                color=colour,
                label=shortened(name),
                marker=_MARKS[number % len(_MARKS)],
                markersize=3,
            )
            if len(values) > 1:
                axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("step")
        axes.set_title("rsum on validation")
        axes.legend(fontsize=7, ncols=2)
        return finished(canvas, "learning", "Learning curves", "Mean over seeds, shaded from the least to the largest.")


def contributing(results: Results, names: Sequence[str]) -> Figure | None:
    """COCOS over training: the negatives behind a query's gradient."""
    counted = {name: [runs.read_counts(run.folder) for run in results.runs[name].values()] for name in names}
    if not all(lines for each in counted.values() for lines in each):
        return None
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 4.6))
        for axes, side in zip(canvas.subplots(2, sharex=True), SIDES, strict=True):
            for number, (name, each) in enumerate(counted.items()):
                shortest = min(len(lines) for lines in each)
                steps = np.array([line["step"] for line in each[0][:shortest]])
                values = np.array(
                    [[line["cocos"][side]["negatives"] or 0.0 for line in lines[:shortest]] for lines in each]
                )
                axes.plot(
                    *_thinned(steps, values.mean(axis=0)),
                    color=SERIES[number % len(SERIES)],
                    label=shortened(name),
                    linewidth=1.2,
                )
            axes.set_yscale("symlog", linthresh=1)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_title(f"contributing negatives a query, {SIDES[side]}")
        axes.set_xlabel("step")
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)
        return finished(
            canvas,
            "contributing",
            "COCOS over training",
            "Negatives of a query whose part of the gradient is over 1 % of its largest, in training batches; mean "
            "over seeds.",
        )


def distributions(found: Mapping[str, Similarities]) -> Figure:
    """Captions with their own image, and with the nearest other one."""
    with plotting() as Canvas:
        rows = (len(found) + 1) // 2
        canvas = Canvas(figsize=(WIDTH, 0.4 + 1.25 * rows))
        every = np.concatenate([np.concatenate([each.own, each.hardest]) for each in found.values()])
        bins = np.linspace(every.min(), every.max(), 41)
        grid = canvas.subplots(rows, 2, squeeze=False, sharex=True)
        for axes, (name, each) in zip(grid.flat, found.items(), strict=False):
            axes.hist(each.own, bins, color=SERIES[0], alpha=0.75, label="own image")
            axes.hist(each.hardest, bins, color=SERIES[1], alpha=0.6, label="nearest other")
            axes.set_title(shortened(name))
            axes.set_yticks([])
        for axes in list(grid.flat)[len(found) :]:
            axes.set_visible(False)
        canvas.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return finished(
            canvas,
            "similarities",
            "Similarities",
            "Of every held-out caption: with its own image, and with the nearest other image. First seed.",
        )


def cross_ranks(results: Results, names: Sequence[str]) -> Figure | None:
    """Shares of pairs by cross-retrieval rank."""
    if not all("cross_1" in run.metrics for name in names for run in results.runs[name].values()):
        return None
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 0.9 + 0.22 * len(names)))
        axes = canvas.subplots()
        left = np.zeros(len(names))
        for number, (key, label) in enumerate(zip(CROSS_SHARES, INTERVALS, strict=True)):
            shares = np.array([results.mean(name, key) for name in names])
            axes.barh(range(len(names)), shares, left=left, color=SERIES[number], label=label, height=0.75)
            left += shares
        axes.set_yticks(range(len(names)), [shortened(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("% of pairs")
        canvas.legend(loc="outside upper center", ncols=5, fontsize=7, handlelength=1, columnspacing=1)
        return finished(
            canvas,
            "cross",
            "Cross-retrieval ranks",
            "The worse of a pair's two ranks, on one scale: where an image and its caption find each other.",
        )


def rank_changes(results: Results, first: str, second: str, seed: int) -> Figure:
    """How queries move between two contestants."""
    edges = np.array([-np.inf, *(-np.log(MOVES[::-1])), *np.log(MOVES), np.inf])
    sizes = [f"{MOVES[0]:g} to {MOVES[1]:g}x", f"{MOVES[1]:g} to {MOVES[2]:g}x", f"over {MOVES[2]:g}x"]
    labels = [*(f"{size} worse" for size in sizes[::-1]), "about the same", *(f"{size} better" for size in sizes)]
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 3.8))
        for axes, side in zip(canvas.subplots(2, sharex=True), SIDES, strict=True):
            ours, theirs = (_best_ranks(results.runs[name][seed].ranks, side) for name in (first, second))
            moves = np.log(theirs / ours)
            shares = 100 * np.histogram(moves, edges)[0] / len(moves)
            colours = [SERIES[1]] * 3 + [SERIES[6]] + [SERIES[0]] * 3
            drawn = axes.barh(range(7), shares, color=colours, height=0.75)
            axes.bar_label(drawn, fmt="%.0f %%", padding=2, fontsize=7)
            axes.set_yticks(range(7), labels)
            axes.grid(axis="y", visible=False)
            axes.set_title(SIDES[side])
        axes.set_xlabel("% of queries")
        return finished(
            canvas,
            "moves",
            f"Rank changes, {second} to {first}",
            f"By how much a query's best rank changes from {second} to {first}, first seed. Equal totals can hide that "
            "other queries are served.",
        )


def costs(results: Results, names: Sequence[str]) -> Figure:
    """Seconds and memory of a run."""
    seconds = [np.median([run.machine["seconds"] for run in results.runs[name].values()]) for name in names]
    memory = [np.median([run.machine.get("memory_mb") or 0 for run in results.runs[name].values()]) for name in names]
    shown = {"seconds a run": seconds} | ({"memory a run, MB": memory} if any(memory) else {})
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, len(shown) * (0.55 + 0.19 * len(names))))
        for axes, (title, values) in zip(canvas.subplots(len(shown), squeeze=False)[:, 0], shown.items(), strict=True):
            axes.barh(range(len(names)), values, color=SERIES[2], height=0.7)
            axes.set_yticks(range(len(names)), [shortened(name) for name in names])
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            axes.set_title(title)
        return finished(
            canvas,
            "costs",
            "Time and memory",
            "Medians of runs that shared the machine; memory above what was held before.",
        )


_MARKS = "osD^vPX*"


def _interval(results: Results, name: str, metric: str) -> tuple[float, float]:
    values = results.by_image(name, sorted(results.runs[name]), metric)
    found = compare_runs(values, np.zeros_like(values))
    return found.low, found.high


def _validation(folder: Any) -> list[tuple[int, float]]:
    return [(line["step"], line["rsum"]) for line in runs.read_validation(folder)]


def _best_ranks(ranks: Mapping[str, np.ndarray], side: str) -> np.ndarray:
    """Of each query."""
    anchors = ranks[f"{side}_image" if f"{side}_image" in ranks else "image"]
    if side == "t2i":
        anchors = ranks[f"{side}_caption" if f"{side}_caption" in ranks else "caption"]
    best = np.full(int(anchors.max()) + 1, np.inf)
    np.minimum.at(best, anchors, ranks[f"{side}_rank"])
    return best[np.isfinite(best)]


def _thinned(steps: np.ndarray, values: np.ndarray, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbours: a line of a thousand points is no clearer."""
    several = max(1, len(steps) // most)
    whole = len(steps) // several * several
    return steps[:whole].reshape(-1, several).mean(axis=1), values[:whole].reshape(-1, several).mean(axis=1)


def shortened(name: str) -> str:
    """The end of a long name; matplotlib leaves names with a leading underscore out of legends."""
    shown = name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
    return f" {shown}" if shown.startswith("_") else shown


def _metric_said(metric: str) -> str:
    side, _, rest = metric.partition("_")
    return f"{SIDES[side]}, {rest.replace('r', 'R@')}" if side in SIDES and rest.startswith("r") else metric
