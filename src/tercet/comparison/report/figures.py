"""Figures of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tercet import runs
from tercet.comparison.results import Results
from tercet.evaluation.metrics import CROSS_SHARES, largest_value
from tercet.evaluation.significance import compare_runs
from tercet.reporting.svg_figure import (
    SERIES,
    WIDTH,
    Figure,
    plot_learning,
    plotting,
    render_figure,
    short_label,
    validation_curve,
)
from tercet.training.eval_loop import EmbeddedSplit
from tercet.types import Sides

DIRECTIONS = ("i2t", "t2i")
INTERVALS = ("1", "2 to 10", "11 to 50", "51 to 200", "over 200")  # of cross-retrieval ranks
RATIOS = (1.5, 4.0, 16.0)  # bin edges of rank ratios


@dataclass(frozen=True)
class Similarities:
    """Similarity of each caption to its own image, the most similar of several, and to the most similar other image."""

    own: Float[np.ndarray, " caption"]
    hardest: Float[np.ndarray, " caption"]


def similarities(embedded: EmbeddedSplit) -> Similarities:
    image, caption = embedded.pairs.numpy().T
    own, hardest = (np.full(len(embedded.captions), -np.inf, dtype=np.float32) for _ in range(2))
    for block, S in embedded.blocks():
        in_block = (image >= block.start) & (image < block.stop)
        rows, columns = image[in_block] - block.start, caption[in_block]
        np.maximum.at(own, columns, S[rows, columns])
        S[rows, columns] = -np.inf
        hardest = np.maximum(hardest, S.max(axis=0))
    return Similarities(own, hardest)


def recalls(results: Results, names: Sequence[str], metric: str) -> Figure:
    """Bars of mean recalls with 95 % intervals over seeds and images."""
    metrics = list(dict.fromkeys(["i2t_r1", "t2i_r1", metric]))
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, len(metrics) * (0.55 + 0.19 * len(names))))
        for axes, panel_metric in zip(canvas.subplots(len(metrics), squeeze=False)[:, 0], metrics, strict=True):
            means = [results.mean(name, panel_metric) for name in names]
            intervals = np.array([_interval(results, name, panel_metric) for name in names]).T
            axes.barh(range(len(names)), means, color=SERIES[0], height=0.7)
            errors = np.abs(intervals - np.array(means))
            axes.errorbar(means, range(len(names)), xerr=errors, fmt="none", ecolor=SERIES[1], elinewidth=1.2)
            axes.set_yticks(range(len(names)), [short_label(name) for name in names])
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            axes.set_xlim(0, min(axes.get_xlim()[1], largest_value(panel_metric)))  # an interval may reach further
            axes.set_title(_metric_label(panel_metric, results.sides))
        axes.set_xlabel(f"lines: 95 % intervals over seeds and {results.sides.units}")
        return render_figure(
            canvas,
            "recalls",
            "Recalls",
            f"Means over seeds; error bars: 95 % intervals over seeds and {results.sides.units}. Variants with "
            "overlapping intervals can still differ significantly, because they share seeds and "
            f"{results.sides.units}: see the significance tests.",
        )


def learning_curves(results: Results, names: Sequence[str]) -> Figure | None:
    """rsum on validation during training, mean and range over seeds; None if a run was not validated."""
    curves_of = {name: [validation_curve(run.folder) for run in results.runs[name].values()] for name in names}
    return plot_learning(curves_of) if all(curve for curves in curves_of.values() for curve in curves) else None


def contributing_negatives(results: Results, names: Sequence[str]) -> Figure | None:
    """Negatives per query that contribute to the gradient, during training (COCOS); None if a run has no counts."""
    counts_of = {name: [runs.read_counts(run.folder) for run in results.runs[name].values()] for name in names}
    if not all(lines for counts in counts_of.values() for lines in counts):
        return None
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 4.6))
        for axes, direction in zip(canvas.subplots(2, sharex=True), DIRECTIONS, strict=True):
            for index, (name, counts) in enumerate(counts_of.items()):
                shortest = min(len(lines) for lines in counts)
                steps = np.array([line["step"] for line in counts[0][:shortest]])
                values = np.array(
                    [[line["cocos"][direction]["negatives"] or 0.0 for line in lines[:shortest]] for lines in counts]
                )
                axes.plot(
                    *_downsampled(steps, values.mean(axis=0)),
                    color=SERIES[index % len(SERIES)],
                    label=short_label(name),
                    linewidth=1.2,
                    marker="o" if len(steps) == 1 else None,  # a line of one point is invisible
                    markersize=3,
                )
            axes.set_yscale("symlog", linthresh=1)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_title(f"contributing negatives per query, {results.sides.long(direction)}")
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)
        return render_figure(
            canvas,
            "contributing",
            "COCOS during training",
            "Negatives per query whose part of the gradient is over 1 % of the query's largest, in training batches; "
            "mean over seeds.",
        )


def similarity_histograms(by_variant: Mapping[str, Similarities], sides: Sides) -> Figure:
    """Similarities of captions to their own image and to the most similar other image."""
    with plotting() as Canvas:
        rows = (len(by_variant) + 1) // 2
        canvas = Canvas(figsize=(WIDTH, 0.4 + 1.25 * rows))
        values = np.concatenate([np.concatenate([each.own, each.hardest]) for each in by_variant.values()])
        bins = np.linspace(values.min(), values.max(), 41)
        grid = canvas.subplots(rows, 2, squeeze=False, sharex=True)
        for axes, (name, each) in zip(grid.flat, by_variant.items(), strict=False):
            axes.hist(each.own, bins, color=SERIES[0], alpha=0.75, label=f"own {sides.image}")
            axes.hist(each.hardest, bins, color=SERIES[1], alpha=0.6, label="hardest negative")
            axes.set_title(short_label(name))
            axes.set_yticks([])
        for axes in list(grid.flat)[len(by_variant) :]:
            axes.set_visible(False)
        canvas.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return render_figure(
            canvas,
            "similarities",
            "Similarities",
            f"Similarity of every held-out {sides.caption} to its own {sides.image} and to the most similar other "
            f"{sides.image}; first shared seed.",
        )


def cross_ranks(results: Results, names: Sequence[str]) -> Figure | None:
    """Percentage of pairs per interval of cross-retrieval ranks; None if a run has no such ranks."""
    if not all("cross_1" in run.metrics for name in names for run in results.runs[name].values()):
        return None
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 0.9 + 0.22 * len(names)))
        axes = canvas.subplots()
        left = np.zeros(len(names))
        for index, (key, label) in enumerate(zip(CROSS_SHARES, INTERVALS, strict=True)):
            shares = np.array([results.mean(name, key) for name in names])
            axes.barh(range(len(names)), shares, left=left, color=SERIES[index], label=label, height=0.75)
            left += shares
        axes.set_yticks(range(len(names)), [short_label(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("% of pairs")
        canvas.legend(loc="outside upper center", ncols=5, fontsize=7, handlelength=1, columnspacing=1)
        return render_figure(
            canvas,
            "cross",
            "Cross-retrieval ranks",
            "The cross-retrieval rank of a pair is the worse of its two ranks, on one scale.",
        )


def rank_changes(results: Results, first: str, second: str, seed: int) -> Figure:
    """How the ranks of queries change between two variants."""
    edges = np.array([-np.inf, *(-np.log(RATIOS[::-1])), *np.log(RATIOS), np.inf])
    sizes = [f"{RATIOS[0]:g} to {RATIOS[1]:g}x", f"{RATIOS[1]:g} to {RATIOS[2]:g}x", f"over {RATIOS[2]:g}x"]
    labels = [*(f"{size} worse" for size in sizes[::-1]), "about the same", *(f"{size} better" for size in sizes)]
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, 3.8))
        for axes, direction in zip(canvas.subplots(2, sharex=True), DIRECTIONS, strict=True):
            best = [results.runs[name][seed].ranks.best(direction) for name in (first, second)]
            first_ranks, second_ranks = (ranks[np.isfinite(ranks)] for ranks in best)
            ratios = np.log(second_ranks / first_ranks)
            shares = 100 * np.histogram(ratios, edges)[0] / len(ratios)
            colors = [SERIES[1]] * 3 + [SERIES[6]] + [SERIES[0]] * 3
            bars = axes.barh(range(7), shares, color=colors, height=0.75)
            axes.bar_label(bars, fmt="%.0f %%", padding=2, fontsize=7)
            axes.set_yticks(range(7), labels)
            axes.grid(axis="y", visible=False)
            axes.set_title(results.sides.long(direction))
        axes.set_xlabel("% of queries")
        return render_figure(
            canvas,
            "moves",
            f"Rank changes from {second} to {first}",
            f"Change of a query's best rank from {second} to {first}, first shared seed. Variants with equal recall "
            "can succeed on different queries.",
        )


def costs(results: Results, names: Sequence[str]) -> Figure:
    """Seconds and memory per run."""
    seconds = [np.median([run.machine["seconds"] for run in results.runs[name].values()]) for name in names]
    memory = [np.median([run.machine.get("memory_mb") or 0 for run in results.runs[name].values()]) for name in names]
    panels = {"seconds per run": seconds} | ({"memory per run, MB": memory} if any(memory) else {})
    with plotting() as Canvas:
        canvas = Canvas(figsize=(WIDTH, len(panels) * (0.55 + 0.19 * len(names))))
        for axes, (title, values) in zip(
            canvas.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True
        ):
            axes.barh(range(len(names)), values, color=SERIES[2], height=0.7)
            axes.set_yticks(range(len(names)), [short_label(name) for name in names])
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            axes.set_title(title)
        return render_figure(
            canvas,
            "costs",
            "Time and memory",
            "Medians over runs, which ran in parallel on one machine; memory: peak increase during the run.",
        )


def _interval(results: Results, name: str, metric: str) -> tuple[float, float]:
    values = results.per_image(name, sorted(results.runs[name]), metric)
    return compare_runs(values, np.zeros_like(values)).interval()


def _downsampled(steps: np.ndarray, values: np.ndarray, points: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbours, for readable lines."""
    size = max(1, len(steps) // points)
    length = len(steps) // size * size
    return steps[:length].reshape(-1, size).mean(axis=1), values[:length].reshape(-1, size).mean(axis=1)


def _metric_label(metric: str, sides: Sides) -> str:
    direction, _, rest = metric.partition("_")
    return (
        f"{sides.long(direction)}, {rest.replace('r', 'R@')}"
        if direction in DIRECTIONS and rest.startswith("r")
        else metric
    )
