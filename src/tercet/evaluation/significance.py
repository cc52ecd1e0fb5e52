"""Significance of differences between variants, trained with the same seeds and evaluated on the same images.

A difference d[seed image] has two sources of variance: training (the seed) and the choice of test images. A replication
would draw both again, so both belong to the standard error of the mean (a crossed random-effects design, as when
subjects read items): d = difference + seed + image + rest. The mean squares of seeds and images estimate their
components of the variance of the mean, one with few degrees of freedom, the other with many; Howe's interval (1974)
uses each component with its own t quantile. Pooling them by Satterthwaite instead gives, with 3 seeds, up to ten times
too many false positives at the small levels that multiple comparisons require. The component of seeds is moderated by
the other variants: with 3 seeds a pair estimates its own with 2 degrees of freedom, and corrected for many pairs the
quantile of t is then several times as large as with a few more. Runs of one comparison scatter alike, so each estimate
is combined with that of the others; a variant that scatters clearly more than the others is neither pooled nor
moderated. Tests over seeds alone or images alone answer narrower questions and are reported in addition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special
from scipy.optimize import brentq

LEVEL = 0.05
POWER = 0.8
SIGN_FLIPS = 9999
MAX_SEEDS = 1000
CHI2_QUANTILES = 400  # quantiles that represent the distribution in a mean over it
MIN_LOG10_P = -30.0  # smaller p-values are reported as 10 ** MIN_LOG10_P
HALVINGS = 50  # of the interval that contains the logarithm of a p-value
MAX_ADDED_DF = 4  # more would rely too much on variants that may scatter differently
WILD_QUANTILE = 0.99
WILD_BASELINE_QUANTILE = 0.95  # every test depends on the variance of a baseline
WILD_LOOKS = 2  # one variant that scatters can hide another

Differences = Float[np.ndarray, "seed image"]
PerPair = Float[np.ndarray, "*family pair"]
SeedMeans = Float[np.ndarray, "*family variant seed"]


class PairTests(NamedTuple):
    """Tests of all pairs of variants, first minus second, in the order of `itertools.combinations`."""

    difference: PerPair
    seed_variance: PerPair
    """Variance of the mean by seeds, at least that of the rest."""
    image_variance: PerPair
    """Variance of the mean by images."""
    rest: PerPair
    """Mean square of seed x image."""
    pooled: Int[np.ndarray, "*family pair"]
    """Number of variants that the variance of seeds is estimated from; 2: the pair alone."""
    seeds: int
    images: int

    def margin(self, level: PerPair | float) -> PerPair:
        """Half the width of the intervals."""
        return _margin(self.seed_variance, self.image_variance, self.df, self.images, level)

    @property
    def df(self) -> Int[np.ndarray, "*family pair"]:
        """Degrees of freedom of the variance by seeds."""
        return np.maximum(1, self.seeds - 1 + added_df(self.seeds, self.pooled))  # with one seed it is not used

    @property
    def p(self) -> PerPair:
        """The level at which the interval just reaches 0."""
        low, high = np.full(self.difference.shape, MIN_LOG10_P), np.zeros(self.difference.shape)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            reaches = self.margin(10**middle) > np.abs(self.difference)
            low, high = np.where(reaches, middle, low), np.where(reaches, high, middle)
        return np.where(self.difference == 0, 1.0, 10**high)


def pair_tests(values: Float[np.ndarray, "*family variant seed image"], baseline: int | None = None) -> PairTests:
    """Test every pair of variants; leading dimensions are further families, for simulations.

    `baseline`: the variant that the asked pairs have in common.
    """
    seeds, images = values.shape[-2:]
    if not seeds or images < 2:
        raise ValueError(f"significance tests need at least 1 seed and 2 images, got {seeds} seeds and {images} images")
    values = values.astype(np.float64, copy=False)
    pairs = list(combinations(range(values.shape[-3]), 2))
    squares = [_mean_squares(values[..., first, :, :] - values[..., second, :, :]) for first, second in pairs]
    difference, by_image, rest = (np.stack(each, axis=-1) for each in zip(*squares, strict=True))
    if seeds == 1:
        nothing = np.zeros_like(difference)
        return PairTests(difference, nothing, by_image / images, rest, np.full(rest.shape, 2), 1, images)
    variance, pooled = moderated_variances(values.mean(axis=-1), baseline)
    # Seeds that vary less than the rest implies do so by chance, which is frequent with few of them: use the rest.
    by_seed = np.maximum(variance, rest / images) / seeds
    return PairTests(
        difference, by_seed, np.maximum(0.0, by_image - rest) / (seeds * images), rest, pooled, seeds, images
    )


class SeedVariances(NamedTuple):
    """Of every pair of variants, in the order of `itertools.combinations`."""

    variance: Float[np.ndarray, "*family pair"]
    """Of the difference at one seed, moderated."""
    pooled: Int[np.ndarray, "*family pair"]
    """Number of variants whose variance it is; 2: the pair alone."""


def moderated_variances(means: SeedMeans, baseline: int | None = None) -> SeedVariances:
    """Combine the variance of each pair with that of the other variants. `means`: metric of each variant and seed.

    The pair has S-1 degrees of freedom of its own, the K-2 other variants (K-2)(S-1), of which at most 4 are used.
    """
    seeds = means.shape[-1]
    wild = wild_variants(means)
    if baseline is not None:
        wild[..., baseline] |= wild_variants(means, WILD_BASELINE_QUANTILE)[..., baseline]
    pool = ~wild
    count = np.asarray(pool.sum(axis=-1))
    centred = means - means.mean(axis=-1, keepdims=True)
    total = _interaction(centred, pool)
    variances, pooled = [], []
    for first, second in combinations(range(means.shape[-2]), 2):
        own = ((centred[..., first, :] - centred[..., second, :]) ** 2).sum(axis=-1)
        both = pool[..., first] & pool[..., second]
        # The pair's contrast has the sum of squares own / 2 of the total; the rest is independent of it.
        others = np.maximum(2 * total - own, 0.0) / np.maximum((count - 2) * (seeds - 1), 1)
        added = np.where(both, added_df(seeds, count), 0)
        variances.append((own + added * others) / (seeds - 1 + added))
        pooled.append(np.where(both, count, 2))
    return SeedVariances(np.stack(variances, axis=-1), np.stack(pooled, axis=-1))


def added_df(seeds: int, pooled: Int[np.ndarray, "*family"]) -> Int[np.ndarray, "*family"]:
    """Degrees of freedom that the other variants add to the S-1 of a pair."""
    return np.asarray(np.clip((pooled - 2) * (seeds - 1), 0, MAX_ADDED_DF))


def wild_variants(means: SeedMeans, quantile: float = WILD_QUANTILE) -> Bool[np.ndarray, "*family variant"]:
    """Variants whose seeds scatter more than this quantile of F allows, against the others'."""
    seeds, variants = means.shape[-1], means.shape[-2]
    centred = means - means.mean(axis=-1, keepdims=True)
    wild = np.zeros(means.shape[:-1], dtype=bool)
    for _ in range(WILD_LOOKS):
        pool = ~wild
        count = np.asarray(pool.sum(axis=-1))
        total = _interaction(centred, pool)
        others_df = np.maximum(count - 2, 1) * (seeds - 1)
        limit = special.fdtri(seeds - 1, others_df, quantile)
        pool_sum = (centred * pool[..., None]).sum(axis=-2)
        found = []
        for variant in range(variants):
            others_mean = (pool_sum - centred[..., variant, :]) / np.maximum(count - 1, 1)[..., None]
            contrast = ((centred[..., variant, :] - others_mean) ** 2).sum(axis=-1)
            own = contrast * (count - 1) / np.maximum(count, 1)
            others = np.maximum(total - own, 0.0)
            found.append(pool[..., variant] & (count > 2) & (own / (seeds - 1) > limit * others / others_df))
        wild = wild | np.stack(found, axis=-1)
    return wild


def _interaction(centred: SeedMeans, pool: Bool[np.ndarray, "*family variant"]) -> Float[np.ndarray, "*family"]:
    """Sum of squares of variant x seed within the pool: what all variants share at a seed does not count."""
    weights = pool[..., None]
    shared = (centred * weights).sum(axis=-2, keepdims=True) / np.maximum(pool.sum(axis=-1), 1)[..., None, None]
    return np.asarray((((centred - shared) * weights) ** 2).sum(axis=(-1, -2)))


@dataclass(frozen=True)
class VarianceComponents:
    """Variance components of a difference: seed, image, and the rest (seed x image)."""

    seed: float
    image: float
    rest: float
    images: int

    def of_mean(self, seeds: int) -> tuple[float, float]:
        """Return the variance of the mean over that many seeds: the component of seeds and rest, and that of images."""
        return self.seed / seeds + self.rest / (seeds * self.images), self.image / self.images


@dataclass(frozen=True)
class PairedComparison:
    """First minus second, in points of the metric."""

    difference: float
    seed_variance: float
    """Variance of the mean difference by seeds."""
    image_variance: float
    p: float
    """Over seeds and images together; with one seed over images alone."""
    p_seeds: float | None
    """Paired t-test over seeds, for these images only."""
    p_images: float
    """Paired permutation test over images (random sign flips), for these weights only."""
    seeds: int
    images: int
    pooled: int
    """Number of variants that the variance of seeds is estimated from; 2: the pair alone."""
    spread: VarianceComponents | None
    """None with one seed: the variance of training is unknown."""
    identical: bool
    """The same on every image and seed."""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval over seeds and images, which excludes 0 exactly if p is below the level."""
        if self.identical:
            return 0.0, 0.0
        df = max(1, self.seeds - 1 + int(added_df(self.seeds, np.asarray(self.pooled))))
        margin = float(_margin(self.seed_variance, self.image_variance, df, self.images, level))
        if not margin and self.p >= level:  # no variance at all: `p` is that of the permutation test
            margin = abs(self.difference)
        return self.difference - margin, self.difference + margin

    def detectable(self, level: float = LEVEL) -> float | None:
        """Return the smallest difference that this many seeds detect with a power of 0.8."""
        return None if self.spread is None else detectable(self.spread, self.seeds, level, self.pooled)

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """Return the number of seeds that detects this difference with a power of 0.8; None if no number does.

        `MAX_SEEDS` + 1 means more than `MAX_SEEDS`.
        """
        return None if self.spread is None else seeds_needed(self.spread, self.difference, level, self.pooled)


def compare_runs(first: Differences, second: Differences) -> PairedComparison:
    """Compare the per-image contributions of two variants, one row per seed; same seeds and images in both."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"expected the same seeds and images, got {first.shape} and {second.shape}")
    (comparison,) = compare_all(np.stack([first, second]).astype(np.float64))
    return comparison


def compare_all(values: Float[np.ndarray, "variant seed image"], baseline: int | None = None) -> list[PairedComparison]:
    """Compare every pair of variants, or those with the baseline, in the order of `itertools.combinations`."""
    tests, compared = pair_tests(values, baseline), []
    p_values = tests.p
    for pair, (first, second) in enumerate(combinations(range(len(values)), 2)):
        if baseline not in (None, first, second):
            continue
        d = values[first] - values[second]
        by_seed, by_image = float(tests.seed_variance[pair]), float(tests.image_variance[pair])
        p_images = sign_flip_test(d.mean(axis=0))
        compared.append(
            PairedComparison(
                float(tests.difference[pair]),
                by_seed,
                by_image,
                # Without any variance only the permutation test, which depends on the number of images, applies.
                float(p_values[pair]) if by_seed + by_image else p_images,
                _p_seeds(d),
                p_images,
                tests.seeds,
                tests.images,
                int(tests.pooled[pair]),
                _components(by_seed, by_image, float(tests.rest[pair]), tests) if tests.seeds > 1 else None,
                not d.any(),
            )
        )
    return compared


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple comparisons (Holm, 1979): family-wise error rate at most the level.

    >>> holm([0.25, 0.03125, 0.5])
    [0.5, 0.09375, 0.5]
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.maximum.accumulate([(len(order) - position) * p_values[index] for position, index in enumerate(order)])
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(raised, 1.0)
    return [float(p) for p in corrected]


def sign_flip_test(d: Float[np.ndarray, " image"]) -> float:
    """Return the p-value of a paired permutation test: under the null each image's sign is random.

    Every call uses the same random sign flips.
    """
    observed = abs(d.sum())
    if not observed:
        return 1.0
    as_extreme = np.abs(_random_signs(len(d)) @ d.astype(np.float32)) >= observed * (1 - 1e-6)
    return float((1 + as_extreme.sum()) / (SIGN_FLIPS + 1))


def power(spread: VarianceComponents, seeds: int, difference: float, level: float = LEVEL, pooled: int = 2) -> float:
    """Return the probability that this many seeds detect a difference of this size.

    It is the mean over equally likely quantiles of the variance that the seeds of the pooled variants may show.
    """
    seed_variance, image_variance = spread.of_mean(seeds)
    error = float(np.sqrt(seed_variance + image_variance))
    if not error:
        return 1.0 if difference else level
    df = seeds - 1 + int(added_df(seeds, np.asarray(pooled)))
    min_variance = spread.rest / (seeds * spread.images)
    observed = np.maximum(seed_variance * _chi2_quantiles(df) / df, min_variance)
    margin = _margin(observed, image_variance, df, spread.images, level)
    size = abs(difference)
    return float(np.mean(special.ndtr((size - margin) / error) + special.ndtr(-(margin + size) / error)))


def detectable(spread: VarianceComponents, seeds: int, level: float = LEVEL, pooled: int = 2) -> float:
    """Return the smallest difference that this many seeds detect with a power of 0.8."""
    upper = 10 * float(_margin(*spread.of_mean(seeds), seeds - 1, spread.images, level))
    if not upper:
        return 0.0
    return float(brentq(lambda size: power(spread, seeds, size, level, pooled) - POWER, 0.0, upper, xtol=1e-6 * upper))


def seeds_needed(spread: VarianceComponents, difference: float, level: float = LEVEL, pooled: int = 2) -> int | None:
    """Return the number of seeds that detects this difference with a power of 0.8.

    `MAX_SEEDS` + 1 means more than `MAX_SEEDS`, None that no number of seeds does.
    """

    def enough(seeds: int) -> bool:
        return power(spread, seeds, difference, level, pooled) >= POWER

    if not enough(MAX_SEEDS):
        # In the limit of many seeds only the variance of images is left.
        images_only = VarianceComponents(0.0, spread.image, 0.0, spread.images)
        limit = power(images_only, MAX_SEEDS, difference, level) if difference else 0.0
        return MAX_SEEDS + 1 if limit >= POWER else None
    low, high = 1, 2  # one seed is never enough
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _mean_squares(
    d: Float[np.ndarray, "*family seed image"],
) -> tuple[Float[np.ndarray, "*family"], Float[np.ndarray, "*family"], Float[np.ndarray, "*family"]]:
    """Return the mean, and the mean squares of images and of the residual, which is 0 with one seed."""
    seeds, images = d.shape[-2:]
    seed_mean, image_mean = d.mean(axis=-1), d.mean(axis=-2)
    mean = seed_mean.mean(axis=-1)
    residual = d - seed_mean[..., :, None] - image_mean[..., None, :] + mean[..., None, None]
    by_image = seeds * ((image_mean - mean[..., None]) ** 2).sum(axis=-1) / (images - 1)
    rest = (residual**2).sum(axis=(-1, -2)) / (max(1, seeds - 1) * (images - 1))
    return np.asarray(mean), np.asarray(by_image), np.asarray(rest)


def _components(by_seed: float, by_image: float, rest: float, tests: PairTests) -> VarianceComponents:
    """Variance components of one difference from those of the mean."""
    seed = max(0.0, by_seed * tests.seeds - rest / tests.images)
    return VarianceComponents(seed, by_image * tests.images, rest, tests.images)


def _p_seeds(d: Differences) -> float | None:
    """Two-sided paired t-test over seeds."""
    seeds = len(d)
    if seeds == 1:
        return None
    means = d.mean(axis=1)
    error = float(means.std(ddof=1)) / seeds**0.5
    if not error:
        return 0.0 if means.mean() else 1.0
    return float(2 * special.stdtr(seeds - 1, -abs(means.mean()) / error))


def _margin(
    by_seed: np.ndarray | float, by_image: np.ndarray | float, df: np.ndarray | int, images: int, level: PerPair | float
) -> np.ndarray:
    """Half the width of Howe's interval, from the variance of the mean by seeds and by images."""
    by_seed = special.stdtrit(df, level / 2) ** 2 * by_seed
    by_image = special.stdtrit(images - 1, level / 2) ** 2 * by_image
    return np.asarray(np.sqrt(by_seed + by_image))


@lru_cache(maxsize=1024)
def _chi2_quantiles(df: int) -> Float[np.ndarray, " quantile"]:
    levels = (np.arange(CHI2_QUANTILES) + 0.5) / CHI2_QUANTILES
    return np.asarray(2 * special.gammaincinv(df / 2, levels))


@lru_cache(maxsize=2)
def _random_signs(images: int) -> Float[np.ndarray, "flip image"]:
    return (np.random.default_rng(0).integers(0, 2, (SIGN_FLIPS, images), dtype=np.int8) * 2 - 1).astype(np.float32)
