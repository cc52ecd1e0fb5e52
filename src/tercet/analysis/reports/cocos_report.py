"""COCOS of a run: counts over shuffled training batches at its selected weights, for its own or any other objective."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from tercet.analysis.cocos import Counts, cocos
from tercet.analysis.reports.loaded_run import EvaluatedBatch, LoadedRun
from tercet.data.samplers import BatchIndices
from tercet.objectives import RowObjective
from tercet.reporting.output_formats import Cell, Table

DIRECTIONS = ("i2t", "t2i")
MINED_PAIRS = ("(i, t-)", "(i-, t)", "(i-, t-)", "(i-', t-')")
MINED_PAIR_COLUMNS = (0, 1, 0, 0)  # the last two belong to both directions: shown once


@dataclass(frozen=True)
class RunCounts:
    """Mean and std (population, as in the study) over batches of every COCOS quantity, by direction."""

    run: str
    objective: str
    batches: int
    mean: dict[str, Counts]
    std: dict[str, Counts]

    def content(self) -> dict[str, Any]:
        """Content for JSON."""
        return vars(self)


def count_run(
    loaded: LoadedRun,
    objective: RowObjective,
    *,
    label: str | None = None,
    index_batches: Iterable[BatchIndices] | None = None,
    epsilon: float = 0.01,
    as_published: bool = False,
) -> RunCounts:
    """COCOS over the batches, by default all training batches of 128. `as_published`: by the released counters."""
    counts = []
    for indices in loaded.index_batches(objective) if index_batches is None else index_batches:
        batch = loaded.evaluate_batch(indices)
        options: dict[str, Any] = {"epsilon": epsilon, "as_published": as_published}
        truth = loaded.prepared.train.truth
        if truth is not None and not as_published:
            options["matching"] = truth(batch.indices.images, batch.indices.captions)
        if not as_published:  # the released counters take none
            options["ignored"] = batch.ignored
        bound = objective if as_published else batch.bind(objective)
        counts.append(cocos(bound, batch.similarity, _positives(batch, as_published), **options))
    means, stds = (
        {direction: {key: reduce(values) for key, values in _by_key(counts, direction)} for direction in DIRECTIONS}
        for reduce in (_mean, _std)
    )
    if "mined_active" in counts[0]:  # covers both directions: one value per mined pair
        for reduced, reduce in ((means, _mean), (stds, _std)):
            by_pair = zip(*(batch_counts["mined_active"] for batch_counts in counts), strict=True)
            reduced["mined"] = {
                pair: reduce(list(map(float, values))) for pair, values in zip(MINED_PAIRS, by_pair, strict=True)
            }
    return RunCounts(loaded.name, label or objective.name, len(counts), means, stds)


def table(counts: RunCounts) -> Table:
    """One row per quantity, one column per direction."""
    keys = dict.fromkeys(key for direction in DIRECTIONS for key in counts.mean[direction])
    rows = [(key, [Cell(_mean_and_std(counts, direction, key)) for direction in DIRECTIONS]) for key in keys]
    if "mined" in counts.mean:
        for pair, column in zip(MINED_PAIRS, MINED_PAIR_COLUMNS, strict=True):
            cells = [Cell(""), Cell("")]
            cells[column] = Cell(_mean_and_std(counts, "mined", pair))
            rows.append((f"mined_active {pair}", cells))
    title = f"{counts.objective} at the weights of {counts.run}: mean ± std over {counts.batches} training batches"
    return Table(title, ("", *DIRECTIONS), rows)


def _positives(batch: EvaluatedBatch, as_published: bool) -> Any:
    """The released counters assume one caption per image and treat its other captions as negatives."""
    images, captions = batch.similarity.shape
    return None if as_published and images == captions else batch.positives


def _by_key(counts: Sequence[dict[str, Counts]], direction: str) -> Iterator[tuple[str, list[float]]]:
    """Values of each key over batches, without NaN (the mean over no query of a batch)."""
    for key in counts[0][direction]:
        values = [batch_counts[direction][key] for batch_counts in counts]
        yield key, [value for value in values if value == value]


def _mean(values: list[float]) -> float:
    return fmean(values) if values else float("nan")


def _std(values: list[float]) -> float:
    return pstdev(values) if values else float("nan")


def _mean_and_std(counts: RunCounts, direction: str, key: str) -> str:
    if key not in counts.mean[direction]:
        return ""
    return f"{counts.mean[direction][key]:.3f} ± {counts.std[direction][key]:.3f}"
