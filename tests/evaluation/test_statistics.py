"""The statistics hold what they promise: checked by simulation, and against textbook tests where one applies."""

import numpy as np
import pytest
from scipy import stats

from tercet.evaluation import statistics
from tercet.evaluation.by_image import METRICS, contributions
from tercet.evaluation.metrics import metrics_of
from tercet.evaluation.pairs import Positives
from tercet.evaluation.ranks import rank_positives
from tercet.evaluation.statistics import Spread, compare_runs, detectable, flip_test, holm, power, seeds_needed
from tercet.evaluation.tiles import tiles_of_matrix


@pytest.fixture
def few_flips(monkeypatch):
    """Simulations that are not about flips need not make ten thousand each."""
    monkeypatch.setattr(statistics, "_coins", lambda images: np.ones((1, images), dtype=np.float32))


def drawn(random, seeds, images, seed_std, image_std, rest_std, difference=0.0):
    """Differences of two contestants under the model that the test assumes."""
    return (
        difference
        + seed_std * random.standard_normal((seeds, 1))
        + image_std * random.standard_normal((1, images))
        + rest_std * random.standard_normal((seeds, images))
    )


def rejections(spreads, seeds, images, difference, times, level=0.05):
    random = np.random.default_rng(1)
    zero = np.zeros((seeds, images))
    return np.mean(
        [compare_runs(drawn(random, seeds, images, *spreads, difference), zero).p < level for _ in range(times)]
    )


# Standard deviations of a seed, an image and the rest: only one kind of luck, both, and what recalls look like.
SPREADS = [
    (0.0, 0.0, 50.0),
    (2.0, 0.0, 50.0),
    (0.0, 60.0, 50.0),
    (2.0, 60.0, 50.0),
    (8.0, 20.0, 50.0),
    (3.0, 60.0, 10.0),
]


@pytest.mark.usefixtures("few_flips")
@pytest.mark.parametrize("spreads", SPREADS)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_without_a_difference_false_finds_stay_below_the_level(spreads, seeds):
    times = 600
    random = np.random.default_rng(1)
    p = np.array([compare_runs(drawn(random, seeds, 300, *spreads), np.zeros((seeds, 300))).p for _ in range(times)])
    for level in (0.05, 0.01):  # the correction for many comparisons lives on small levels
        assert (p < level).mean() <= level + 3.3 * np.sqrt(level * (1 - level) / times)


def test_seeds_or_images_alone_would_promise_too_much():
    """Why both are needed: with luck of both kinds, tests that see one of them find what is not there."""
    random = np.random.default_rng(0)
    zero = np.zeros((5, 300))
    both = [compare_runs(drawn(random, 5, 300, 6.0, 60.0, 20.0), zero) for _ in range(600)]
    assert np.mean([each.p < 0.05 for each in both]) <= 0.075
    assert np.mean([each.p_images < 0.05 for each in both]) > 0.12
    assert np.mean([each.p_seeds < 0.05 for each in both]) > 0.12


@pytest.mark.usefixtures("few_flips")
@pytest.mark.parametrize("spreads", [(2.0, 60.0, 50.0), (6.0, 20.0, 50.0), (0.5, 90.0, 20.0)])
@pytest.mark.parametrize("seeds", [3, 6])
def test_known_differences_are_found_as_often_as_predicted(spreads, seeds):
    seed_std, image_std, rest_std = spreads
    spread = Spread(seed_std**2, image_std**2, rest_std**2, images=400)
    least = detectable(spread, seeds)
    assert power(spread, seeds, least) == pytest.approx(0.8, abs=1e-3)
    found = rejections(spreads, seeds, 400, least, times=600)
    assert found == pytest.approx(0.8, abs=0.05)
    needed = seeds_needed(spread, 1.001 * least)
    assert needed is not None
    assert needed <= seeds


@pytest.mark.usefixtures("few_flips")
def test_the_number_of_seeds_that_would_do_does():
    spreads, difference = (4.0, 20.0, 40.0), 7.0
    spread = Spread(16.0, 400.0, 1600.0, images=400)
    needed = seeds_needed(spread, difference)
    assert power(spread, needed - 1, difference) < 0.8 <= power(spread, needed, difference)
    assert rejections(spreads, needed, 400, difference, times=600) == pytest.approx(
        power(spread, needed, difference), abs=0.06
    )


def test_no_number_of_seeds_makes_more_images():
    assert seeds_needed(Spread(1.0, 60.0**2, 400.0, images=100), 5.0) is None


def test_seeds_alone_are_the_paired_t_test():
    random = np.random.default_rng(3)
    first, second = random.random((6, 50)), random.random((6, 50))
    expected = stats.ttest_rel(first.mean(axis=1), second.mean(axis=1)).pvalue
    assert compare_runs(first, second).p_seeds == pytest.approx(expected, rel=1e-12)


def test_where_images_differ_by_nothing_the_crossed_test_is_the_paired_t_test():
    """Every image shifts alike: only seeds bring luck, and the interval is the textbook's."""
    shifts = np.array([1.0, 4.0, 2.5, 3.0])
    d = np.repeat(shifts[:, None], 40, axis=1)
    found = compare_runs(d, np.zeros_like(d))
    textbook = stats.ttest_1samp(shifts, 0.0)
    interval = textbook.confidence_interval(0.95)
    assert found.p == pytest.approx(textbook.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_flips_agree_with_scipy_and_with_all_flips():
    random = np.random.default_rng(5)
    few = random.standard_normal(9) + 0.4
    every = np.array([[1 if number >> bit & 1 else -1 for bit in range(9)] for number in range(512)])
    exact = np.mean(np.abs(every @ few) >= abs(few.sum()) - 1e-12)
    assert flip_test(few) == pytest.approx(exact, abs=0.015)
    many = random.standard_normal(200) + 0.15
    theirs = stats.permutation_test(
        (many, np.zeros(200)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=9999, rng=0
    )
    assert flip_test(many) == pytest.approx(theirs.pvalue, abs=0.012)


def test_same_answer_on_every_call():
    random = np.random.default_rng(8)
    first, second = random.random((3, 80)), random.random((3, 80))
    assert compare_runs(first, second) == compare_runs(first, second)


def test_holm_by_hand_and_its_promise():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    random = np.random.default_rng(2)
    families = np.mean([min(holm(list(random.random(20)))) < 0.05 for _ in range(2000)])
    assert families <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 2000)


def test_without_any_variance_the_number_of_images_speaks():
    found = compare_runs(np.full((2, 5), 100.0), np.zeros((2, 5)))
    assert found.p == found.p_images > 0.05


def test_many_seeds_are_not_called_impossible():
    assert seeds_needed(Spread(25.0, 0.0, 0.0, 1000), 0.1) == 1001
    assert seeds_needed(Spread(25.0, 60.0**2, 0.0, 1000), 0.1) is None
    assert seeds_needed(Spread(25.0, 0.0, 0.0, 1000), 0.0) is None


def test_edges():
    same = np.ones((3, 10))
    found = compare_runs(same, same)
    assert (found.difference, found.p, found.p_seeds, found.p_images) == (0.0, 1.0, 1.0, 1.0)
    one = compare_runs(np.random.default_rng(0).random((1, 30)), np.zeros((1, 30)))
    assert one.p == one.p_images
    assert one.p_seeds is None
    assert one.detectable() is None


@pytest.mark.usefixtures("without_shape_checks")
def test_other_shapes_are_refused():
    for first, second in ((np.zeros((2, 3)), np.zeros((2, 4))), (np.zeros((0, 5)),) * 2, (np.zeros((2, 1)),) * 2):
        with pytest.raises(ValueError, match="seeds"):
            compare_runs(first, second)


@pytest.mark.parametrize("metric", METRICS)
def test_what_images_contribute_averages_to_the_metric(metric):
    random = np.random.default_rng(4)
    owners = np.sort(random.integers(0, 40, 130))  # ragged
    owners = np.unique(owners, return_inverse=True)[1]
    similarity = random.random((owners.max() + 1, 130)) + 0.4 * (owners[None] == np.arange(owners.max() + 1)[:, None])
    import torch

    positives = torch.from_numpy(owners[None] == np.arange(owners.max() + 1)[:, None])
    ranks = rank_positives(tiles_of_matrix(torch.from_numpy(similarity)), Positives.of_mask(positives))
    each = contributions(ranks.arrays(), metric)
    assert each.mean() == pytest.approx(metrics_of(ranks)[metric], rel=1e-12)


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="i2t_medr"):
        contributions({}, "i2t_medr")
