"""Significance of a difference between two variants, trained with the same seeds and evaluated on the same images.

A difference d[seed image] has two sources of variance: training (the seed) and the choice of test images. A replication
would draw both again, so both belong to the standard error of the mean (a crossed random-effects design, as when
subjects read items): d = difference + seed + image + rest. The mean squares of seeds and images estimate their
components of the variance of the mean, one with few degrees of freedom, the other with many; Howe's interval (1974)
uses each component with its own t quantile. Pooling them by Satterthwaite instead gives, with 3 seeds, up to ten times
too many false positives at the small levels that multiple comparisons require. Tests over seeds alone or images alone
answer narrower questions and are reported in addition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.optimize import brentq

LEVEL = 0.05
POWER = 0.8
SIGN_FLIPS = 9999
MAX_SEEDS = 1000
CHI2_QUANTILES = 400  # quantiles that represent the distribution in a mean over it
MIN_LOG10_P = -30.0  # smaller p-values are reported as 10 ** MIN_LOG10_P

Differences = Float[np.ndarray, "seed image"]


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
    low: float
    """Lower end of the 95 % interval over seeds and images."""
    high: float
    p: float
    """Over seeds and images together; with one seed over images alone."""
    p_seeds: float | None
    """Paired t-test over seeds, for these images only."""
    p_images: float
    """Paired permutation test over images (random sign flips), for these weights only."""
    seeds: int
    images: int
    spread: VarianceComponents | None
    """None with one seed: the variance of training is unknown."""

    def detectable(self, level: float = LEVEL) -> float | None:
        """Return the smallest difference that this many seeds detect with a power of 0.8."""
        return None if self.spread is None else detectable(self.spread, self.seeds, level)

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """Return the number of seeds that detects this difference with a power of 0.8; None if no number does.

        `MAX_SEEDS` + 1 means more than `MAX_SEEDS`.
        """
        return None if self.spread is None else seeds_needed(self.spread, self.difference, level)


def compare_runs(first: Differences, second: Differences) -> PairedComparison:
    """Compare the per-image contributions of two variants, one row per seed; same seeds and images in both."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"expected the same seeds and images, got {first.shape} and {second.shape}")
    seeds, images = first.shape
    if not seeds or images < 2:
        raise ValueError(f"significance tests need at least 1 seed and 2 images, got {seeds} seeds and {images} images")
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    mean = float(d.mean())
    p_images = sign_flip_test(d.mean(axis=0))
    if seeds == 1:
        margin = float(np.sqrt(_squared_t(LEVEL, images - 1) * d[0].var(ddof=1) / images))
        return PairedComparison(mean, mean - margin, mean + margin, p_images, None, p_images, 1, images, None)
    by_seed, by_image, rest = _mean_squares(d)
    # A seed mean square below the rest is chance, which is frequent with few seeds: use at least the rest.
    variances = max(by_seed, rest) / (seeds * images), max(0.0, by_image - rest) / (seeds * images)
    margin = _margin(variances, seeds, images, LEVEL)
    spread = VarianceComponents(max(0.0, by_seed - rest) / images, max(0.0, by_image - rest) / seeds, rest, images)
    p_seeds = _p_value(mean, (by_seed / (seeds * images), 0.0), seeds, images)
    # Without any variance only the permutation test, which depends on the number of images, applies.
    p = _p_value(mean, variances, seeds, images) if sum(variances) else p_images
    return PairedComparison(mean, mean - margin, mean + margin, p, p_seeds, p_images, seeds, images, spread)


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


def power(spread: VarianceComponents, seeds: int, difference: float, level: float = LEVEL) -> float:
    """Return the probability that this many seeds detect a difference of this size.

    It is the mean over equally likely quantiles of the variance that the seeds may show.
    """
    seed_variance, image_variance = spread.of_mean(seeds)
    error = float(np.sqrt(seed_variance + image_variance))
    if not error:
        return 1.0 if difference else level
    min_variance = spread.rest / (seeds * spread.images)
    observed = np.maximum(seed_variance * _chi2_quantiles(seeds) / (seeds - 1), min_variance)
    margin = np.sqrt(_squared_t(level, seeds - 1) * observed + _squared_t(level, spread.images - 1) * image_variance)
    size = abs(difference)
    return float(np.mean(special.ndtr((size - margin) / error) + special.ndtr(-(margin + size) / error)))


def detectable(spread: VarianceComponents, seeds: int, level: float = LEVEL) -> float:
    """Return the smallest difference that this many seeds detect with a power of 0.8."""
    upper = 10 * _margin(spread.of_mean(seeds), seeds, spread.images, level)
    if not upper:
        return 0.0
    return float(brentq(lambda size: power(spread, seeds, size, level) - POWER, 0.0, upper, xtol=1e-6 * upper))


def seeds_needed(spread: VarianceComponents, difference: float, level: float = LEVEL) -> int | None:
    """Return the number of seeds that detects this difference with a power of 0.8.

    `MAX_SEEDS` + 1 means more than `MAX_SEEDS`, None that no number of seeds does.
    """
    if power(spread, MAX_SEEDS, difference, level) < POWER:
        # In the limit of many seeds only the variance of images is left.
        images_only = VarianceComponents(0.0, spread.image, 0.0, spread.images)
        limit = power(images_only, MAX_SEEDS, difference, level) if difference else 0.0
        return MAX_SEEDS + 1 if limit >= POWER else None
    low, high = 1, 2  # one seed is never enough
    while power(spread, high, difference, level) < POWER:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(spread, middle, difference, level) >= POWER else (middle, high)
    return high


def _mean_squares(d: Differences) -> tuple[float, float, float]:
    """Return the mean squares of seeds, of images and of the residual."""
    seeds, images = d.shape
    mean, seed_mean, image_mean = d.mean(), d.mean(axis=1), d.mean(axis=0)
    residual = d - seed_mean[:, None] - image_mean[None] + mean
    return (
        float(images * ((seed_mean - mean) ** 2).sum() / (seeds - 1)),
        float(seeds * ((image_mean - mean) ** 2).sum() / (images - 1)),
        float((residual**2).sum() / ((seeds - 1) * (images - 1))),
    )


def _margin(variances: tuple[float, float], seeds: int, images: int, level: float) -> float:
    """Return half the width of the interval, from the variance of the mean by seeds and by images."""
    return float(np.sqrt(_squared_t(level, seeds - 1) * variances[0] + _squared_t(level, images - 1) * variances[1]))


def _p_value(mean: float, variances: tuple[float, float], seeds: int, images: int) -> float:
    """Return the level at which the interval just reaches 0."""
    if not mean or not sum(variances):
        return 0.0 if mean else 1.0

    def excess(exponent: float) -> float:
        return _margin(variances, seeds, images, 10**exponent) - abs(mean)

    return float(10 ** brentq(excess, MIN_LOG10_P, 0.0, xtol=1e-12)) if excess(MIN_LOG10_P) > 0 else 10**MIN_LOG10_P


def _squared_t(level: float, df: int) -> float:
    return float(special.stdtrit(df, level / 2)) ** 2


@lru_cache(maxsize=1024)
def _chi2_quantiles(seeds: int) -> Float[np.ndarray, " quantile"]:
    levels = (np.arange(CHI2_QUANTILES) + 0.5) / CHI2_QUANTILES
    return np.asarray(2 * special.gammaincinv((seeds - 1) / 2, levels))


@lru_cache(maxsize=2)
def _random_signs(images: int) -> Float[np.ndarray, "flip image"]:
    return (np.random.default_rng(0).integers(0, 2, (SIGN_FLIPS, images), dtype=np.int8) * 2 - 1).astype(np.float32)
