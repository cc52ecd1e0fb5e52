"""Results of a comparison, read from run folders, and pairwise significance tests between its variants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from tercet import runs
from tercet.comparison.variants import Variant
from tercet.evaluation import RankTable
from tercet.evaluation.metrics import contributions
from tercet.evaluation.significance import LEVEL, PairedComparison, compare_runs, holm


@dataclass(frozen=True)
class Run:
    """A finished run of a variant."""

    seed: int
    folder: Path
    metrics: dict[str, float]
    final: dict[str, Any]
    machine: dict[str, Any]
    ranks: RankTable
    learning_rate: float

    @property
    def clipped(self) -> float:
        """Fraction of steps with gradient clipping."""
        return float(self.final["clipped_steps"] / max(1, self.final["step"]))


def read_run(folder: Path, seed: int) -> Run:
    final = runs.read_final(folder)
    if "rsum" not in final:
        raise ValueError(f"{folder.name} was not evaluated: the data has neither a test nor a validation split")
    learning_rate = runs.read_settings(folder).get("learning_rate")
    if not isinstance(learning_rate, float):
        raise ValueError(f"{folder / runs.SETTINGS} is damaged: remove the folder {folder.name} and train it again")
    machine, ranks = runs.read_machine(folder), RankTable(runs.read_ranks(folder))
    return Run(seed, folder, runs.read_metrics(folder), final, machine, ranks, learning_rate)


@dataclass(frozen=True)
class Failure:
    name: str
    why: str
    trial: bool = False
    """The run was a trial of the learning-rate search: no result of the comparison is missing."""


@dataclass(frozen=True)
class Results:
    """Runs of every variant by seed; variants without a finished run are only in `failures`."""

    variants: Sequence[Variant]
    runs: dict[str, dict[int, Run]]
    failures: Sequence[Failure] = field(default=())

    def names(self) -> list[str]:
        """Variants with a finished run, in the order of the settings."""
        return [variant.name for variant in self.variants if self.runs.get(variant.name)]

    def per_seed(self, name: str, metric: str) -> list[float]:
        return [run.metrics[metric] for _, run in sorted(self.runs[name].items())]

    def mean(self, name: str, metric: str) -> float:
        return float(np.mean(self.per_seed(name, metric)))

    def std(self, name: str, metric: str) -> float | None:
        """Standard deviation over seeds (n-1); None for one seed."""
        values = self.per_seed(name, metric)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def ordered(self, metric: str) -> list[str]:
        """Variants by mean, best first."""
        return sorted(self.names(), key=lambda name: -self.mean(name, metric))

    def shared_seeds(self, first: str, second: str) -> list[int]:
        return sorted(self.runs[first].keys() & self.runs[second].keys())

    def per_image(self, name: str, seeds: Sequence[int], metric: str) -> Float[np.ndarray, "seed image"]:
        """Contribution of each image to the metric."""
        return np.stack([contributions(self.runs[name][seed].ranks, metric) for seed in seeds])

    @property
    def split(self) -> str:
        """The split of the metrics: test, or validation if there is no test split."""
        any_run = next(iter(self.runs[self.names()[0]].values()))
        return str(any_run.final["split"])


@dataclass(frozen=True)
class Pair:
    """Test of two variants; `first` has the larger mean."""

    first: str
    second: str
    test: PairedComparison
    corrected_p: float
    """p-value, Holm-corrected for the number of pairs."""

    @property
    def significant(self) -> bool:
        return self.corrected_p < LEVEL and self.test.difference > 0

    @property
    def identical(self) -> bool:
        """The metric is the same on every image and seed."""
        return self.test.difference == 0 == self.test.high - self.test.low


@dataclass(frozen=True)
class SignificanceTable:
    metric: str
    order: Sequence[str]
    """Variants, largest mean first."""
    pairs: Sequence[Pair]
    untested: Sequence[tuple[str, str]]
    """Pairs that share too few seeds."""

    @property
    def level(self) -> float:
        """Bonferroni level of an uncorrected p-value, for power estimates."""
        return LEVEL / max(1, len(self.pairs))

    def pair(self, one: str, other: str) -> Pair | None:
        return next((pair for pair in self.pairs if {pair.first, pair.second} == {one, other}), None)

    def against_best(self) -> list[Pair]:
        """Pairs of the variant with the largest mean and each other variant, in order."""
        pairs = [self.pair(self.order[0], other) for other in self.order[1:]]
        return [pair for pair in pairs if pair is not None]


def pairwise_tests(results: Results, metric: str, pairs: Sequence[tuple[str, str]] | None = None) -> SignificanceTable:
    """Test all pairs, or only planned ones: fewer pairs need less correction."""
    order = results.ordered(metric)
    planned = list(combinations(order, 2)) if pairs is None else [_larger_first(order, pair) for pair in pairs]
    # A test over images alone is used only if no variant has two seeds: one family must not mix two hypotheses.
    min_seeds = 2 if any(len(results.runs[name]) > 1 for name in order) else 1
    testable = [pair for pair in planned if len(results.shared_seeds(*pair)) >= min_seeds]
    tests = [_test(results, *pair, metric) for pair in testable]
    corrected = holm([test.p for test in tests])
    tested = [Pair(*pair, test, p) for pair, test, p in zip(testable, tests, corrected, strict=True)]
    return SignificanceTable(metric, order, tested, [pair for pair in planned if pair not in testable])


def _larger_first(order: Sequence[str], pair: tuple[str, str]) -> tuple[str, str]:
    first, second = sorted(pair, key=order.index)
    return first, second


def _test(results: Results, first: str, second: str, metric: str) -> PairedComparison:
    """Paired test over the shared seeds."""
    seeds = results.shared_seeds(first, second)
    return compare_runs(results.per_image(first, seeds, metric), results.per_image(second, seeds, metric))
