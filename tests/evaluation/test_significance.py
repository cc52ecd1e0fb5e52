"""Error rates and power checked by simulation, p-values against textbook tests where one applies."""

import numpy as np
import pytest
from scipy import stats

from tercet.evaluation import RankTable
from tercet.evaluation.blocked_similarity import tiles_of_matrix
from tercet.evaluation.metrics import contributions, metric_names, metrics_of
from tercet.evaluation.rank_counts import Positives
from tercet.evaluation.ranks import rank_positives
from tercet.evaluation.significance import (
    VarianceComponents,
    compare_runs,
    detectable,
    holm,
    pair_tests,
    power,
    seeds_needed,
    sign_flip_test,
)


def drawn(random, seeds, images, seed_std, image_std, rest_std, difference=0.0, times=()):
    """Differences of two variants under the model that the test assumes."""
    return (
        difference
        + seed_std * random.standard_normal((*times, seeds, 1))
        + image_std * random.standard_normal((*times, 1, images))
        + rest_std * random.standard_normal((*times, seeds, images))
    )


def p_values(spreads, seeds, images, difference, times):
    d = drawn(np.random.default_rng(1), seeds, images, *spreads, difference, (times,))
    return pair_tests(np.stack([d, np.zeros_like(d)], axis=1)).p


# Standard deviations of seed, image and rest: one source of variance only, both, and values typical of recalls.
SPREADS = [
    (0.0, 0.0, 50.0),
    (2.0, 0.0, 50.0),
    (0.0, 60.0, 50.0),
    (2.0, 60.0, 50.0),
    (8.0, 20.0, 50.0),
    (3.0, 60.0, 10.0),
]
TIMES = [60, pytest.param(600, marks=pytest.mark.slow)]  # simulations: tolerances are those of their number


@pytest.mark.parametrize("spreads", SPREADS)
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("times", TIMES)
def test_without_a_difference_false_positives_stay_below_the_level(spreads, seeds, times):
    p = p_values(spreads, seeds, 300, 0.0, times)
    for level in (0.05, 0.01):  # the correction for multiple comparisons uses small levels
        assert (p < level).mean() <= level + 3.3 * np.sqrt(level * (1 - level) / times)


@pytest.mark.slow
def test_tests_over_seeds_or_images_alone_are_too_liberal():
    """With variance of seeds and images, a test over only one of them has too many false positives."""
    random = np.random.default_rng(0)
    zero = np.zeros((5, 300))
    comparisons = [compare_runs(drawn(random, 5, 300, 6.0, 60.0, 20.0), zero) for _ in range(600)]
    assert np.mean([comparison.p < 0.05 for comparison in comparisons]) <= 0.075
    assert np.mean([comparison.p_images < 0.05 for comparison in comparisons]) > 0.12
    assert np.mean([comparison.p_seeds < 0.05 for comparison in comparisons]) > 0.12


@pytest.mark.parametrize("spreads", [(2.0, 60.0, 50.0), (6.0, 20.0, 50.0), (0.5, 90.0, 20.0)])
@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize("times", TIMES)
def test_known_differences_are_detected_as_often_as_predicted(spreads, seeds, times):
    seed_std, image_std, rest_std = spreads
    spread = VarianceComponents(seed_std**2, image_std**2, rest_std**2, images=400)
    smallest = detectable(spread, seeds)
    assert power(spread, seeds, smallest) == pytest.approx(0.8, abs=1e-3)
    rate = (p_values(spreads, seeds, 400, smallest, times) < 0.05).mean()
    assert rate == pytest.approx(0.8, abs=0.05 * np.sqrt(600 / times))
    needed = seeds_needed(spread, 1.001 * smallest)
    assert needed is not None
    assert needed <= seeds


@pytest.mark.parametrize("times", TIMES)
def test_seeds_needed_reach_the_power(times):
    spreads, difference = (4.0, 20.0, 40.0), 7.0
    spread = VarianceComponents(16.0, 400.0, 1600.0, images=400)
    needed = seeds_needed(spread, difference)
    assert power(spread, needed - 1, difference) < 0.8 <= power(spread, needed, difference)
    assert (p_values(spreads, needed, 400, difference, times) < 0.05).mean() == pytest.approx(
        power(spread, needed, difference), abs=0.06 * np.sqrt(600 / times)
    )


def test_no_number_of_seeds_replaces_images():
    assert seeds_needed(VarianceComponents(1.0, 60.0**2, 400.0, images=100), 5.0) is None


def test_seeds_alone_are_the_paired_t_test():
    random = np.random.default_rng(3)
    first, second = random.random((6, 50)), random.random((6, 50))
    expected = stats.ttest_rel(first.mean(axis=1), second.mean(axis=1)).pvalue
    assert compare_runs(first, second).p_seeds == pytest.approx(expected, rel=1e-12)


def test_where_images_differ_by_nothing_the_crossed_test_is_the_paired_t_test():
    """All images shift equally: only seeds have variance, and the interval is the textbook one."""
    shifts = np.array([1.0, 4.0, 2.5, 3.0])
    d = np.repeat(shifts[:, None], 40, axis=1)
    comparison = compare_runs(d, np.zeros_like(d))
    textbook = stats.ttest_1samp(shifts, 0.0)
    interval = textbook.confidence_interval(0.95)
    assert comparison.p == pytest.approx(textbook.pvalue, rel=1e-9)
    assert comparison.interval() == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_one_seed_is_the_paired_t_test_over_images():
    random = np.random.default_rng(9)
    first, second = random.random((1, 40)) + 0.1, random.random((1, 40))
    textbook = stats.ttest_rel(first[0], second[0])
    interval = textbook.confidence_interval(0.99)
    comparison = compare_runs(first, second)
    assert comparison.p == pytest.approx(textbook.pvalue, rel=1e-9)
    assert comparison.interval(0.01) == pytest.approx((interval.low, interval.high), rel=1e-9)


@pytest.mark.slow
def test_variance_components_are_those_of_a_mixed_model():
    """REML of crossed random effects, which equals the mean squares of a balanced design."""
    models = pytest.importorskip("statsmodels.api")
    import pandas as pd

    random = np.random.default_rng(0)
    d = drawn(random, 6, 30, 5.0, 8.0, 10.0, difference=3.0)
    seeds, images = np.indices(d.shape)
    data = pd.DataFrame({"d": d.ravel(), "seed": seeds.ravel(), "image": images.ravel(), "all": 1})
    components = {"seed": "0 + C(seed)", "image": "0 + C(image)"}
    model = models.MixedLM.from_formula("d ~ 1", groups="all", vc_formula=components, data=data)
    fitted = model.fit(reml=True)
    by_name = dict(zip(model.exog_vc.names, fitted.vcomp, strict=True))
    ours = compare_runs(d, np.zeros_like(d))
    assert ours.difference == pytest.approx(fitted.params["Intercept"], rel=1e-6)
    assert ours.spread.seed == pytest.approx(by_name["seed"], rel=1e-3)
    assert ours.spread.image == pytest.approx(by_name["image"], rel=1e-3)
    assert ours.spread.rest == pytest.approx(fitted.scale, rel=1e-3)


def test_sign_flips_agree_with_scipy_and_with_all_flips():
    random = np.random.default_rng(5)
    few = random.standard_normal(9) + 0.4
    all_flips = np.array([[1 if bits >> bit & 1 else -1 for bit in range(9)] for bits in range(512)])
    exact = np.mean(np.abs(all_flips @ few) >= abs(few.sum()) - 1e-12)
    assert sign_flip_test(few) == pytest.approx(exact, abs=0.015)
    many = random.standard_normal(200) + 0.15
    theirs = stats.permutation_test(
        (many, np.zeros(200)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=9999, rng=0
    )
    assert sign_flip_test(many) == pytest.approx(theirs.pvalue, abs=0.012)


def test_the_result_is_deterministic():
    random = np.random.default_rng(8)
    first, second = random.random((3, 80)), random.random((3, 80))
    assert compare_runs(first, second) == compare_runs(first, second)


def test_holm_by_hand_and_of_statsmodels():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = list(np.random.default_rng(3).random(28) ** 4)
    assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1], rel=1e-12)


def test_family_wise_error_of_holm():
    random = np.random.default_rng(2)
    families = np.mean([min(holm(list(random.random(20)))) < 0.05 for _ in range(2000)])
    assert families <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 2000)


def test_without_any_variance_the_permutation_test_over_images_applies():
    comparison = compare_runs(np.full((2, 5), 100.0), np.zeros((2, 5)))
    assert comparison.p == comparison.p_images > 0.05
    assert comparison.interval() == (0.0, 200.0)
    many = compare_runs(np.full((2, 50), 100.0), np.zeros((2, 50)))
    assert many.interval() == (100.0, 100.0)


def test_many_seeds_are_not_called_impossible():
    assert seeds_needed(VarianceComponents(25.0, 0.0, 0.0, 1000), 0.1) == 1001
    assert seeds_needed(VarianceComponents(25.0, 60.0**2, 0.0, 1000), 0.1) is None
    assert seeds_needed(VarianceComponents(25.0, 0.0, 0.0, 1000), 0.0) is None


def test_edges():
    same = np.ones((3, 10))
    equal = compare_runs(same, same)
    assert (equal.difference, equal.p, equal.p_seeds, equal.p_images) == (0.0, 1.0, 1.0, 1.0)
    one = compare_runs(np.random.default_rng(0).random((1, 30)), np.zeros((1, 30)))
    assert one.p_seeds is None
    assert one.detectable() is None


@pytest.mark.usefixtures("without_shape_checks")
def test_other_shapes_are_refused():
    for first, second in ((np.zeros((2, 3)), np.zeros((2, 4))), (np.zeros((0, 5)),) * 2, (np.zeros((2, 1)),) * 2):
        with pytest.raises(ValueError, match="seeds"):
            compare_runs(first, second)


@pytest.mark.parametrize("metric", metric_names())
def test_contributions_of_images_average_to_the_metric(metric):
    random = np.random.default_rng(4)
    owners = np.sort(random.integers(0, 40, 130))  # ragged
    owners = np.unique(owners, return_inverse=True)[1]
    similarity = random.random((owners.max() + 1, 130)) + 0.4 * (owners[None] == np.arange(owners.max() + 1)[:, None])
    import torch

    positives = torch.from_numpy(owners[None] == np.arange(owners.max() + 1)[:, None])
    ranks = rank_positives(tiles_of_matrix(torch.from_numpy(similarity)), Positives.of_mask(positives))
    per_image = contributions(ranks.table(), metric)
    assert per_image.mean() == pytest.approx(metrics_of(ranks)[metric], rel=1e-12)


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="i2t_medr"):
        contributions(RankTable({}), "i2t_medr")
