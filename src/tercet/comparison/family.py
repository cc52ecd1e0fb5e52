"""All tests of a comparison together: every pair of variants, or every variant against a baseline.

p-values are Holm-corrected. Intervals are at the level of Bonferroni, 0.05 / number of tests, so that all of them hold
together. Holm, which tests the larger differences first, can decide a pair whose interval still reaches 0: then the end
towards 0 is that of the level at which Holm tested the pair. So an interval excludes 0 exactly if p < 0.05.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tercet.evaluation.significance import LEVEL, MAX_ADDED_DF, WILD_QUANTILE, PairedComparison, compare_all, holm
from tercet.names import suggest
from tercet.reporting.output_formats import Cell, Table
from tercet.types import IMAGE_TEXT, Sides

Values = dict[str, Float[np.ndarray, "seed image"]]


@dataclass(frozen=True)
class Pair:
    """Test of two variants; `first` has the larger mean."""

    first: str
    second: str
    difference: float
    low: float
    """Ends of the simultaneous interval: above 0 exactly if p < 0.05."""
    high: float
    p: float
    """Over seeds and images (with one seed over images alone), corrected for the number of tests and looks."""
    equivalent: bool | None
    """Whether the interval is within the equivalence margin; None without a margin."""
    test: PairedComparison

    @property
    def differs(self) -> bool:
        """In the test that was possible: with one seed, on these very weights only."""
        return self.p < LEVEL and self.difference > 0

    @property
    def significant(self) -> bool:
        """Never with one seed, which says nothing about training."""
        return self.differs and self.test.seeds > 1

    @property
    def decided(self) -> bool:
        return self.significant or self.test.identical or bool(self.equivalent)


@dataclass(frozen=True, repr=False)
class Significance:
    """Tests of the differences between variants: `pairs`, and `best`, the names that may be the best."""

    order: Sequence[str]
    """Names, largest mean first."""
    means: Mapping[str, float]
    stds: Mapping[str, float | None]
    """Standard deviation over seeds (n-1); None for one seed."""
    seeds: Mapping[str, int]
    images: int
    pairs: Sequence[Pair]
    untested: Sequence[tuple[str, str]]
    """Pairs that share too few seeds."""
    baseline: str | None
    rope: float | None
    share: float
    """Share of the error rate of 0.05 that these tests use; the rest is for other numbers of seeds."""
    sides: Sides = IMAGE_TEXT

    def __repr__(self) -> str:
        if self.one_seed:
            differ = sum(pair.differs for pair in self.pairs)
            differ_of = f"{differ} of {len(self.pairs)} pairs differ on these very weights"
            return f"Significance({len(self.order)} variants, one seed: {differ_of}; nothing is known about training)"
        differ = sum(pair.significant for pair in self.pairs)
        best = ", ".join(name[:40] for name in self.best[:3]) + (", ..." if len(self.best) > 3 else "")
        return f"Significance({len(self.order)} variants, {differ} of {len(self.pairs)} pairs differ; best: {best})"

    def _repr_html_(self) -> str:
        from tercet.reporting.output_formats import tables_html

        return tables_html([self.table(), pairs_table(self)])

    @property
    def best(self) -> list[str]:
        """Names that may be the best: those that no other is significantly better than (Hsu)."""
        beaten = {pair.second for pair in self.pairs if pair.significant}
        return [name for name in self.order if name not in beaten]

    @property
    def level(self) -> float:
        """Bonferroni level of a p-value before correction, for intervals and power estimates."""
        return LEVEL * self.share / max(1, len(self.pairs))

    @property
    def places(self) -> int:
        """Decimal places of the metric: one of percentages and their sums, three of metrics from 0 to 1."""
        return 1 if max(map(abs, self.means.values()), default=0.0) > 1 else 3

    @property
    def one_seed(self) -> bool:
        """The tests are over images alone, and apply to these trained weights only."""
        return all(count == 1 for count in self.seeds.values())

    @property
    def unpooled(self) -> list[str]:
        """Names whose seeds scatter more than those of the others: their variance is not pooled."""
        if len(self.order) < 3 or self.one_seed:
            return []
        return [name for name in self.order if all(pair.test.pooled == 2 for pair in self.of(name))]

    @property
    def decided(self) -> bool:
        """Whether every question is answered: which one is best, or which differ from the baseline."""
        if self.baseline is not None:
            return not self.untested and all(pair.decided for pair in self.pairs)
        of_best = [self.pair(*names) for names in combinations(self.best, 2)]
        return all(pair is not None and pair.decided for pair in of_best)

    def pair(self, one: str, other: str) -> Pair | None:
        return next((pair for pair in self.pairs if {pair.first, pair.second} == {one, other}), None)

    def of(self, name: str) -> list[Pair]:
        """The pairs of one variant with each other, in the order of the others."""
        pairs = [self.pair(name, other) for other in self.order if other != name]
        return [pair for pair in pairs if pair is not None]

    def marks(self, names: Sequence[str]) -> "Marks | None":
        """What a table shows of the tests of these rows; None if there are none."""
        if self.baseline is None:
            letters = self.letters(names)
            return Marks("tie", TIES, letters) if letters else None
        return Marks(
            "base",
            f"base: better (+) or worse (-) than {self.baseline}{'' if self.rope is None else ', or equivalent (=)'}",
            {name: self._sign(name) for name in names if name != self.baseline} | {self.baseline: ""},
        )

    def _sign(self, name: str) -> str:
        pair = self.pair(name, self.baseline or "")
        if pair is None or not pair.decided:
            return ""
        return "=" if not pair.significant else "+" if pair.first == name else "-"

    def letters(self, names: Sequence[str] | None = None) -> dict[str, str]:
        """Group letters of the names, or of some of them; none if all were compared with a baseline only."""
        order = [name for name in self.order if names is None or name in names]
        if self.baseline is not None or len(order) < 2 or self.one_seed:
            return {}
        different = [
            (pair.first, pair.second)
            for pair in self.pairs
            if pair.significant and pair.first in order and pair.second in order
        ]
        return group_letters(order, different)

    def table(self) -> Table:
        """Mean ± std and group letters of every variant."""
        marks = self.marks(self.order)
        rows = []
        for name in self.order:
            std = self.stds[name]
            mean = f"{self.means[name]:.{self.places}f}" + ("" if std is None else f" ± {std:.{self.places}f}")
            cells = [Cell(mean, name in self.best), Cell(str(self.seeds[name]))]
            rows.append((name, cells))
        spread = "One seed" if self.one_seed else "Mean ± std (n-1) over seeds"
        title = f"{spread}, {self.images:,} {self.sides.units}; bold: may be the best"
        return with_marks(Table(title, ("objective", "mean", "seeds"), rows), marks)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        letters = self.letters()
        return {
            "best": self.best,
            "variants": [
                {
                    "name": name,
                    "mean": self.means[name],
                    "std": self.stds[name],
                    "seeds": self.seeds[name],
                    "letters": letters.get(name),
                }
                for name in self.order
            ],
            "images": self.images,
            "pairs": [pair_document(pair, self.level) for pair in self.pairs],
            "untested": [list(pair) for pair in self.untested],
            "baseline": self.baseline,
            "rope": self.rope,
            "share": self.share,
        }


@dataclass(frozen=True)
class Looks:
    """Numbers of seeds at which `--until-decided` tests, and what the runs so far took."""

    planned: Sequence[int]
    reached: int
    runs: int
    seconds: float


class Marks(NamedTuple):
    """A column of a table that shows which rows differ."""

    heading: str
    note: str
    """What the column means, for the title."""
    cells: Mapping[str, str]
    """Of each row that carries a claim."""


def with_marks(table: Table, marks: Marks | None) -> Table:
    """The table with a last column of these marks."""
    if marks is None:
        return table
    rows = [(name, [*cells, Cell(marks.cells.get(name, NO_CLAIM))]) for name, cells in table.rows]
    note = f"{marks.note}; {NO_CLAIM}: not trained to its end" if len(marks.cells) < len(rows) else marks.note
    return Table(f"{table.title}; {note}", (*table.headings, marks.heading), rows)


NO_CLAIM = "n/a"
TIES = "tie: rows that share a letter do not differ significantly"


def significance(
    values: Mapping[str, ArrayLike], baseline: str | None = None, rope: float | None = None
) -> Significance:
    """Test which variants differ, over seeds and images.

    `values` holds an array (seed, image) for each name: what each image contributes to the metric, so that the mean of
    a row is the metric. Rows and columns are paired by position: the same seeds and images in all arrays; a row of NaN
    is a missing seed. With a `baseline` only the differences to it are tested, which needs less correction. `rope` is
    the margin, in points of the metric, within which two variants count as equivalent.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> hits = {name: 100.0 * (random.random((3, 500)) < recall) for name, recall in [("a", 0.5), ("b", 0.3)]}
    >>> significance(hits)
    Significance(2 variants, 1 of 1 pairs differ; best: a)
    """
    return compare_family(check_values(values), baseline=baseline, rope=rope)


def compare_family(
    values: Values,
    *,
    baseline: str | None = None,
    rope: float | None = None,
    share: float = 1.0,
    largest: float = np.inf,
    sides: Sides = IMAGE_TEXT,
) -> Significance:
    """`significance` of checked values, at a share of the error rate. `largest`: value that the metric can have."""
    if baseline is not None and baseline not in values:
        raise ValueError(f"no baseline {baseline!r}{suggest(baseline, values)}; there are: {', '.join(values)}")
    if rope is not None and not 0 < rope < np.inf:
        raise ValueError(f"the equivalence margin must be a number above 0, got {rope!r}")
    seeds_of = {
        name: [seed for seed, row in enumerate(array) if not np.isnan(row[0])] for name, array in values.items()
    }
    means = {name: float(array[seeds_of[name]].mean()) for name, array in values.items()}
    order = sorted(values, key=lambda name: -means[name])
    asked = [pair for pair in combinations(order, 2) if baseline is None or baseline in pair]
    # A test over images alone is used only if no variant has two seeds: one family must not mix two hypotheses.
    min_seeds = 2 if any(len(seeds) > 1 for seeds in seeds_of.values()) else 1
    shared = {pair: tuple(sorted(set(seeds_of[pair[0]]) & set(seeds_of[pair[1]]))) for pair in asked}
    testable = [pair for pair in asked if len(shared[pair]) >= min_seeds]
    compared = _compare(values, order, seeds_of, {pair: shared[pair] for pair in testable}, baseline)
    return Significance(
        order,
        means,
        {name: _std(values[name][seeds_of[name]]) for name in order},
        {name: len(seeds_of[name]) for name in order},
        next(iter(values.values())).shape[1] if values else 0,
        _correct(compared, rope, share, largest),
        [pair for pair in asked if pair not in testable],
        baseline,
        rope,
        share,
        sides,
    )


def check_values(values: Mapping[str, ArrayLike]) -> Values:
    """Arrays of floats; raises if they cannot be compared."""
    if not isinstance(values, Mapping):
        raise ValueError(f"values must be a dict of name: array (seed, image), got {type(values).__name__}")
    arrays = {str(name): np.asarray(array, dtype=np.float64) for name, array in values.items()}
    if not arrays:
        raise ValueError("there are no values to compare: give an array (seed, image) for each name")
    first, shape = next((name, array.shape) for name, array in arrays.items())
    for name, array in arrays.items():
        if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
            raise ValueError(f"{name}: needs an array (seed, image) with at least 2 images, got shape {array.shape}")
        if array.shape != shape:
            raise ValueError(
                f"{name} has {array.shape[0]} seeds and {array.shape[1]} images, {first} {shape[0]} and {shape[1]}: "
                "seeds and images are paired by position, and a missing seed is a row of NaN"
            )
        missing = np.asarray(np.isnan(array).all(axis=1))
        wrong = np.argwhere(~np.isfinite(array) & ~missing[:, None])
        if len(wrong):
            seed, image = wrong[0]
            raise ValueError(f"{name}: seed {seed}, image {image} (both from 0) is {array[seed, image]}, not a number")
        if missing.all():
            raise ValueError(f"{name}: every seed is missing")
    return arrays


def group_letters(order: Sequence[str], different: Collection[tuple[str, str]]) -> dict[str, str]:
    """Letters of each name (a compact letter display, Piepho 2004); `different`: pairs with a significant difference.

    >>> group_letters(["x", "y", "z"], [("x", "z")])
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    groups = [frozenset(order)]
    for first, second in different:
        divided = [part for group in groups for part in _divide(group, first, second)]
        groups = [group for group in dict.fromkeys(divided) if not any(group < other for other in divided)]
    groups.sort(key=lambda group: sorted(map(order.index, group)))
    if len(groups) > len(ascii_letters):
        return {}
    return {
        name: "".join(letter for letter, group in zip(ascii_letters, groups, strict=False) if name in group)
        for name in order
    }


def _divide(group: frozenset[str], first: str, second: str) -> list[frozenset[str]]:
    return [group - {second}, group - {first}] if {first, second} <= group else [group]


def pairs_table(significance: Significance, metric: str = "the metric") -> Table:
    """Every pair with its difference, interval and p-values."""
    rows, places = [], significance.places
    for pair in significance.pairs:
        test = pair.test
        cells = [
            Cell(f"{pair.difference:+.{places}f}", pair.significant),
            Cell(f"{pair.low:+.{places}f} to {pair.high:+.{places}f}"),
            Cell(format_p(pair.p), pair.significant),
            Cell(format_p(test.p)),
            Cell("-" if test.p_seeds is None else format_p(test.p_seeds)),
            Cell(format_p(test.p_images)),
        ]
        if significance.rope is not None:
            cells.insert(3, Cell("yes" if pair.equivalent else "-", bool(pair.equivalent)))
        rows.append((f"{pair.first} - {pair.second}", cells))
    tests = len(significance.pairs)
    units = significance.sides.units
    over = f"over {units}, for these trained weights only" if significance.one_seed else f"over seeds and {units}"
    title = (
        f"Differences in {metric}; bold: significant (corrected p < {LEVEL}). p: test {over}; p corrected: the same, "
        f"Holm-corrected for {tests} comparison{'' if tests == 1 else 's'}"
        f"{'' if significance.share == 1 else ' and for the looks at fewer and more seeds'}; intervals hold together "
        f"with 95 %; p seeds and p {units}: tests over seeds alone and over {units} alone, not corrected"
    )
    equivalent = () if significance.rope is None else (f"within {significance.rope:g}",)
    headings = ("pair", "difference", "95 % interval", "p corrected", *equivalent, "p", "p seeds", f"p {units}")
    return Table(title, headings, rows)


def pair_document(pair: Pair, level: float) -> dict[str, Any]:
    """A pair with all its tests, for JSON."""
    test = pair.test
    return {
        "first": pair.first,
        "second": pair.second,
        "difference": pair.difference,
        "low": pair.low,
        "high": pair.high,
        "p": pair.p,
        "significant": pair.significant,
        "equivalent": pair.equivalent,
        "p_uncorrected": test.p,
        "p_seeds": test.p_seeds,
        "p_images": test.p_images,
        "seeds": test.seeds,
        "images": test.images,
        "pooled": test.pooled,
        "detectable": test.detectable(level),
        "seeds_needed": test.seeds_needed(level),
    }


def methods_of_tests(significance: Significance, looks: Looks | None = None) -> list[str]:
    """Sentences on the tests."""
    tests, units, one_unit = len(significance.pairs), significance.sides.units, significance.sides.one_unit
    if significance.one_seed:
        return [
            f"With one seed, differences were tested by a two-sided paired t-test over {units}, {one_unit} being one "
            f"observation, Holm-corrected (Holm, 1979) for {tests} comparisons: they apply to these "
            "trained weights only."
        ]
    pairs = "all pairs" if significance.baseline is None else f"the differences to the baseline {significance.baseline}"
    sentences = [
        f"Differences were tested two-sided over seeds and {units} as crossed random effects, {one_unit} being one "
        "observation: Howe's interval (Howe, 1974) combines the variance between seeds and the variance between "
        f"{units}, each with its own t quantile."
    ]
    if len(significance.order) > 2:
        apart = significance.unpooled
        sentences.append(
            "The variance between seeds of a pair was moderated by that of the other objectives, with at most "
            f"{MAX_ADDED_DF} added degrees of freedom; objectives beyond the {WILD_QUANTILE} quantile of F against the "
            f"others ({', '.join(apart) if apart else 'there were none'}) were neither pooled nor moderated."
        )
    sentences.append(
        f"p-values of {pairs} were corrected by Holm's method (Holm, 1979) for {tests} comparison"
        f"{'' if tests == 1 else 's'} at a family-wise error rate of {LEVEL}; 95 % intervals are simultaneous."
    )
    if looks is not None:
        sentences.append(
            f"Tests were planned at {', '.join(map(str, looks.planned))} seeds, each with an equal share of the error "
            f"rate, until the question was decided; training stopped at {looks.reached} seeds."
        )
    if significance.rope is not None:
        sentences.append(f"Objectives with an interval within {significance.rope:g} points count as equivalent.")
    return sentences


def format_p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _std(values: Float[np.ndarray, "seed image"]) -> float | None:
    return float(values.mean(axis=1).std(ddof=1)) if len(values) > 1 else None


def _compare(
    values: Values,
    order: Sequence[str],
    seeds_of: Mapping[str, Sequence[int]],
    shared: Mapping[tuple[str, str], tuple[int, ...]],
    baseline: str | None,
) -> dict[tuple[str, str], PairedComparison]:
    """Test each pair over its shared seeds, with the variance of all variants that have these seeds."""
    tests: dict[tuple[tuple[str, str], tuple[int, ...]], PairedComparison] = {}
    for seeds in dict.fromkeys(shared.values()):
        names = [name for name in order if set(seeds) <= set(seeds_of[name])]
        index = names.index(baseline) if baseline in names else None
        compared = compare_all(np.stack([values[name][list(seeds)] for name in names]), index)
        pairs = [pair for pair in combinations(names, 2) if baseline is None or baseline in pair]
        tests |= {(pair, seeds): test for pair, test in zip(pairs, compared, strict=True)}
    return {pair: tests[pair, seeds] for pair, seeds in shared.items()}


def _correct(
    compared: Mapping[tuple[str, str], PairedComparison], rope: float | None, share: float, largest: float
) -> list[Pair]:
    """Pairs with corrected p-values and simultaneous intervals, within what the metric can have."""
    tests, level = list(compared.values()), LEVEL * share
    corrected = holm([test.p for test in tests])
    tested_at = holm_levels([test.p for test in tests], level)
    pairs = []
    for names, test, p, own_level in zip(compared, tests, corrected, tested_at, strict=True):
        if test.difference < 0:  # on the shared seeds the second is better
            names, test = names[::-1], replace(test, difference=-test.difference)
        low, high = test.interval(level / len(tests))
        if p < level and low <= 0:
            low = test.interval(own_level)[0]
        low, high = max(low, -largest), min(high, largest)
        equivalent = None if rope is None else -rope < low and high < rope
        pairs.append(Pair(*names, test.difference, low, high, min(1.0, p / share), equivalent, test))
    return pairs


def holm_levels(p_values: Sequence[float], level: float) -> list[float]:
    """The level at which Holm's procedure tests each p-value, provided that it rejects all smaller ones.

    >>> holm_levels([0.5, 0.01], 0.05)
    [0.05, 0.025]
    """
    position = {index: position for position, index in enumerate(np.argsort(p_values, kind="stable").tolist())}
    return [level / (len(p_values) - position[index]) for index in range(len(p_values))]
