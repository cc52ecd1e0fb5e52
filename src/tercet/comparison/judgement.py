"""Which differences are real: every pair of contestants, tested over seeds and images, corrected for their number."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tercet.comparison.results import Results
from tercet.evaluation.statistics import LEVEL, Compared, compare_runs, holm


@dataclass(frozen=True)
class Pair:
    """`first` has the larger mean."""

    first: str
    second: str
    found: Compared
    corrected: float
    """The p-value, corrected for the number of pairs."""

    @property
    def real(self) -> bool:
        return self.corrected < LEVEL and self.found.difference > 0

    @property
    def same(self) -> bool:
        """To the last digit, on every image and seed."""
        return self.found.difference == 0 == self.found.high - self.found.low


@dataclass(frozen=True)
class Judgement:
    metric: str
    order: Sequence[str]
    """Contestants, the largest mean first."""
    pairs: Sequence[Pair]
    untested: Sequence[tuple[str, str]]
    """Pairs that share too few seeds."""

    @property
    def level(self) -> float:
        """What an uncorrected p-value must be below where all pairs are tested: for planning."""
        return LEVEL / max(1, len(self.pairs))

    def pair(self, one: str, other: str) -> Pair | None:
        return next((pair for pair in self.pairs if {pair.first, pair.second} == {one, other}), None)

    def against_best(self) -> list[Pair]:
        """The contestant with the largest mean beside each other one, in order."""
        found = [self.pair(self.order[0], other) for other in self.order[1:]]
        return [pair for pair in found if pair is not None]


def judge(results: Results, metric: str, pairs: Sequence[tuple[str, str]] | None = None) -> Judgement:
    """All pairs, or those that were named beforehand: the fewer, the milder the correction."""
    order = results.ordered(metric)
    wanted = list(combinations(order, 2)) if pairs is None else [_larger_first(order, pair) for pair in pairs]
    # Over images alone is told only where nobody has more than one seed: in one family two questions do not mix.
    enough = 2 if any(len(results.runs[name]) > 1 for name in order) else 1
    testable = [pair for pair in wanted if len(results.shared_seeds(*pair)) >= enough]
    found = [_compared(results, *pair, metric) for pair in testable]
    corrected = holm([each.p for each in found])
    made = [Pair(first, second, each, p) for (first, second), each, p in zip(testable, found, corrected, strict=True)]
    return Judgement(metric, order, made, [pair for pair in wanted if pair not in testable])


def _larger_first(order: Sequence[str], pair: tuple[str, str]) -> tuple[str, str]:
    first, second = sorted(pair, key=order.index)
    return first, second


def _compared(results: Results, first: str, second: str, metric: str) -> Compared:
    """Over the seeds that both have."""
    seeds = results.shared_seeds(first, second)
    return compare_runs(results.by_image(first, seeds, metric), results.by_image(second, seeds, metric))
