"""`tercet.significance`: corrected tests, simultaneous intervals, possible bests, baseline, equivalence, letters."""

import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tercet
from tercet.comparison.family import check_values, compare_family, group_letters
from tests.evaluation.moderated_reference import moderated_tests
from tests.examples import others_slow

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from significance import STEPS, WORLDS, draw

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")


def family(seeds=3, step=1.0, world="all alike", random=0):
    """Eight variants, a the worst and h the best; neighbors are 10 points apart."""
    values = draw(np.random.default_rng(random), WORLDS[world], seeds, step * STEPS, 1)[0]
    return dict(zip(NAMES, values, strict=True))


@pytest.mark.parametrize("step", others_slow([1.0, 0.0, 0.5, 3.0], 1))
@pytest.mark.parametrize("world", ["all alike", "one wild, seed std 30"])
def test_pairs_equal_the_slow_reference(step, world):
    values = family(step=step, world=world, random=7)
    for name, array in values.items():
        values[name] = array[:, :60]
    found = tercet.significance(values)
    expected = moderated_tests(np.stack(list(values.values())))
    for (one, other), test in zip(combinations(NAMES, 2), expected, strict=True):
        pair = found.pair(one, other)
        sign = 1 if pair.first == one else -1
        ends = sorted(sign * end for end in (pair.low, pair.high))
        assert pair.difference == pytest.approx(abs(test["difference"]), rel=1e-9)
        assert pair.p == pytest.approx(test["corrected"], rel=1e-6)
        assert ends == pytest.approx([test["low"], test["high"]], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("baseline", [None, "d"])
def test_an_interval_excludes_zero_exactly_if_the_difference_is_significant(seeds, baseline):
    kinds = set()
    for random, step in enumerate((0.0, 0.3, 0.6, 1.0)):
        found = tercet.significance(family(seeds, step, random=random), baseline)
        for pair in found.pairs:
            assert pair.difference >= 0
            assert (pair.low > 0) == (pair.p < 0.05) == pair.differs
            assert pair.significant == (pair.differs and seeds > 1)
            assert pair.low <= pair.difference <= pair.high
            kinds.add(pair.differs)
    assert kinds == {True, False}


def test_one_seed_gives_no_best_and_no_letters():
    found = tercet.significance(family(1, 1.0))
    assert any(pair.differs for pair in found.pairs)
    assert "on these very weights; nothing is known about training" in repr(found)
    assert found.best == list(found.order)
    assert found.letters() == {}
    assert not any(pair["significant"] for pair in found.to_dict()["pairs"])


def test_the_end_toward_zero_is_at_the_level_at_which_holm_tested_the_pair():
    """At Bonferroni's level some of these intervals would still reach 0."""
    found = tercet.significance(family(random=3))
    stepped = [pair for pair in found.pairs if pair.significant and pair.test.interval(found.level)[0] <= 0]
    assert stepped
    for pair in stepped:
        assert pair.high == pytest.approx(pair.test.interval(found.level)[1])
    wide = [pair for pair in found.pairs if pair not in stepped]
    assert all((pair.low, pair.high) == pair.test.interval(found.level) for pair in wide)


def test_possible_bests_are_those_that_nobody_beats():
    values = family(step=2.0)
    assert tercet.significance(values).best == ["h"]
    values["g"] = values["h"] + 0.1
    close = tercet.significance(values)
    assert close.best == ["g", "h"]
    assert not close.decided
    assert tercet.significance({"only": values["a"]}).best == ["only"]


def test_a_baseline_has_fewer_tests_and_more_power():
    values = family(step=0.6, random=5)
    every, against = tercet.significance(values), tercet.significance(values, baseline="d")
    assert len(against.pairs) == 7
    assert all("d" in (pair.first, pair.second) for pair in against.pairs)
    for pair in against.pairs:
        assert pair.p <= every.pair(pair.first, pair.second).p
    assert against.letters() == {}
    assert against.baseline == "d"
    with pytest.raises(ValueError, match=r"no baseline 'e2' .*; there are: a, b, c, d, e, f, g, h"):
        tercet.significance(values, baseline="e2")


def test_equivalence_is_an_interval_within_the_margin():
    values = family(seeds=5, step=0.0)
    wide = max(max(abs(pair.low), pair.high) for pair in tercet.significance(values).pairs)
    assert all(pair.equivalent for pair in tercet.significance(values, rope=1.01 * wide).pairs)
    assert not all(pair.equivalent for pair in tercet.significance(values, rope=0.5 * wide).pairs)
    assert tercet.significance(values, rope=1.01 * wide).decided
    assert all(pair.equivalent is None for pair in tercet.significance(values).pairs)
    for rope in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="equivalence margin"):
            tercet.significance(values, rope=rope)


def test_missing_seeds_are_rows_of_nan():
    values = family(seeds=4)
    complete = tercet.significance(values)
    values["b"] = values["b"].copy()
    values["b"][2] = np.nan
    found = tercet.significance(values)
    assert found.seeds == {name: 3 if name == "b" else 4 for name in found.order}
    assert found.means["b"] == pytest.approx(values["b"][[0, 1, 3]].mean())
    assert {pair.test.seeds for pair in found.of("b")} == {3}
    assert {pair.test.seeds for pair in found.of("c") if "b" not in (pair.first, pair.second)} == {4}
    # Pairs of b are tested on the shared seeds of all; the others among those that have every seed.
    on_shared = tercet.significance({name: array[[0, 1, 3]] for name, array in values.items()})
    assert found.pair("a", "b").test == on_shared.pair("a", "b").test
    without = tercet.significance({name: array for name, array in values.items() if name != "b"})
    assert found.pair("a", "c").test == without.pair("a", "c").test
    assert found.pair("a", "c").test.p != complete.pair("a", "c").test.p
    for name in ("c", "d"):
        values[name] = np.where(np.arange(4)[:, None] == (0 if name == "c" else 1), values[name], np.nan)
    sparse = tercet.significance(values)
    assert {tuple(sorted(pair)) for pair in sparse.untested} >= {("c", "d"), ("a", "c"), ("b", "c")}
    assert not sparse.decided or "h" in sparse.best


def test_wrong_values_are_named():
    array = np.random.default_rng(0).random((2, 5))
    holed = array.copy()
    holed[1, 3] = np.nan
    for values, message in (
        ({}, "no values"),
        ({"a": array[0]}, r"a: needs an array \(seed, image\)"),
        ({"a": array[:, :1]}, "at least 2 images"),
        ({"a": array, "b": array[:1]}, "b has 1 seeds and 5 images, a 2 and 5"),
        ({"a": array, "b": holed}, "b: seed 1, image 3 .both from 0. is nan"),
        ({"a": array * np.inf}, "a: seed 0, image 0"),
        ({"a": array * np.nan}, "a: every seed is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            check_values(values)


def test_intervals_stay_within_what_the_metric_can_have():
    random = np.random.default_rng(0)
    values = {name: 100.0 * (random.random((2, 12)) < 0.5) for name in "ab"}
    assert tercet.significance(values).pairs[0].high > 100
    (pair,) = compare_family(values, largest=100.0).pairs
    assert (pair.low, pair.high) == (-100.0, 100.0)


def test_a_share_of_the_error_rate_multiplies_p_and_widens_intervals():
    values = family(step=0.6)
    whole, quarter = compare_family(values), compare_family(values, share=0.25)
    for pair, other in zip(whole.pairs, quarter.pairs, strict=True):
        assert other.p == pytest.approx(min(1.0, 4 * pair.p))
        assert other.high >= pair.high
        assert (other.low > 0) == (other.p < 0.05)


def test_the_result_can_be_printed_and_written():
    found = tercet.significance(family(), rope=3.0)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["best"] == found.best
    assert [pair["p"] for pair in document["pairs"]] == [pair.p for pair in found.pairs]
    assert {"first", "second", "difference", "low", "high", "p", "equivalent"} <= set(document["pairs"][0])
    assert len(repr(found)) < 200
    page = found._repr_html_()
    assert page.count("<table>") == 2
    assert "within 3" in page
    assert found.table().rows[0][0] == found.order[0]


def test_metrics_from_0_to_1_have_three_decimal_places():
    random = np.random.default_rng(0)
    found = tercet.significance({name: random.random((3, 40)) for name in "ab"})
    assert "0." in found.table().rows[0][1][0].text
    assert len(found.table().rows[0][1][0].text.split()[0]) == 5


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_rows_share_a_letter_exactly_if_they_are_not_different(size, drawn):
    order = list("abcdefg"[:size])
    different = {tuple(sorted((order[i], order[j]))) for i, j in drawn if i != j and max(i, j) < size}
    letters = group_letters(order, different)
    for one, other in combinations(order, 2):
        assert bool(set(letters[one]) & set(letters[other])) == ((one, other) not in different)
    assert all(letters.values())
    assert letters[order[0]].startswith("a")


def test_letters_by_hand():
    assert group_letters(["x", "y", "z"], []) == {"x": "a", "y": "a", "z": "a"}
    assert group_letters(["x", "y", "z"], [("x", "y"), ("y", "z"), ("x", "z")]) == {"x": "a", "y": "b", "z": "c"}
    assert group_letters(["w", "x", "y", "z"], [("w", "y"), ("w", "z")]) == {"w": "a", "x": "ab", "y": "b", "z": "b"}
