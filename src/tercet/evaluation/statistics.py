"""Is a difference real? Two contestants on the same images, each trained with the same seeds.

Two kinds of luck are in a difference d[seed image]: that of training, and that of which images are in the test set.
Both are drawn anew when somebody repeats the work, so both belong into the error of the mean (a crossed design, as when
subjects read items): d = difference + seed + image + rest, with the variance of the mean from the three mean squares,
and Satterthwaite's degrees of freedom. Tests over seeds alone, or over images alone, answer narrower questions and are
told beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.optimize import brentq

LEVEL = 0.05
POWER = 0.8
FLIPS = 9999
MOST_SEEDS = 1000

Differences = Float[np.ndarray, "seed image"]


@dataclass(frozen=True)
class Spread:
    """Where the variance of a difference comes from: a seed's, an image's, and that of a seed with an image."""

    seed: float
    image: float
    rest: float
    images: int

    def error(self, seeds: int) -> tuple[float, float]:
        """Standard error of the mean over so many seeds, and its degrees of freedom."""
        m = self.images
        by_seed = m * self.seed + self.rest
        by_image = seeds * self.image + self.rest
        return _error(by_seed, by_image, self.rest, seeds, m)


@dataclass(frozen=True)
class Comparison:
    """First minus second, in points of the metric."""

    difference: float
    low: float
    """Of the 95 % interval over seeds and images."""
    high: float
    p: float
    """Over seeds and images together; with one seed over images alone."""
    p_seeds: float | None
    """Paired t-test over seeds, on these very images."""
    p_images: float
    """Signs of whole images flipped at random, with these very weights."""
    seeds: int
    images: int
    spread: Spread | None
    """None with one seed: then nothing is known of the luck of training."""

    def detectable(self, level: float = LEVEL) -> float | None:
        """The smallest difference that as many seeds would find, four times of five."""
        return None if self.spread is None else detectable(self.spread, self.seeds, level)

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """How many seeds would find a difference of this size, four times of five; None where no number would."""
        return None if self.spread is None else seeds_needed(self.spread, self.difference, level)


def compare_runs(first: Differences, second: Differences) -> Comparison:
    """What each image contributed, a row a seed: the same seeds and the same images in both."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"expected the same seeds and images, got {first.shape} and {second.shape}")
    seeds, images = first.shape
    if not seeds or images < 2:
        raise ValueError(f"{seeds} seeds and {images} images say nothing about luck")
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    mean = float(d.mean())
    p_images = flip_test(d.mean(axis=0))
    if seeds == 1:
        error, df = float(d[0].std(ddof=1) / np.sqrt(images)), images - 1.0
        half = float(stats.t.ppf(1 - LEVEL / 2, df)) * error
        return Comparison(mean, mean - half, mean + half, p_images, None, p_images, 1, images, None)
    by_seed, by_image, rest = _mean_squares(d)
    error, df = _error(by_seed, by_image, rest, seeds, images)
    half = float(stats.t.ppf(1 - LEVEL / 2, df)) * error
    spread = Spread(max(0.0, by_seed - rest) / images, max(0.0, by_image - rest) / seeds, rest, images)
    p_seeds = _two_sided(mean, float(d.mean(axis=1).std(ddof=1)) / float(np.sqrt(seeds)), seeds - 1.0)
    return Comparison(
        mean, mean - half, mean + half, _two_sided(mean, error, df), p_seeds, p_images, seeds, images, spread
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for many comparisons: at most 5 % of families hold a false find (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.maximum.accumulate([(len(order) - place) * p_values[which] for place, which in enumerate(order)])
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(raised, 1.0)
    return [round(float(p), 15) for p in corrected]


def flip_test(d: Float[np.ndarray, " image"]) -> float:
    """Paired permutation test: under no difference each image's sign is a coin. The same coins on every call."""
    observed = abs(d.sum())
    if not observed:
        return 1.0
    reached = np.abs(_coins(len(d)) @ d.astype(np.float32)) >= observed * (1 - 1e-6)
    return float((1 + reached.sum()) / (FLIPS + 1))


def power(spread: Spread, seeds: int, difference: float, level: float = LEVEL) -> float:
    """How often so many seeds would find a difference of this size."""
    error, df = spread.error(seeds)
    if not error:
        return 1.0 if difference else level
    edge, centre = stats.t.ppf(1 - level / 2, df), abs(difference) / error
    found = float(stats.nct.sf(edge, df, centre) + stats.nct.cdf(-edge, df, centre))
    # Far from the edge the noncentral t loses its digits; there the normal one is as good.
    return found if np.isfinite(found) else float(stats.norm.sf(edge - centre))


def detectable(spread: Spread, seeds: int, level: float = LEVEL) -> float:
    error, df = spread.error(seeds)
    if not error:
        return 0.0
    most = error * (float(stats.t.ppf(1 - level / 2, df)) + 2) * 4
    return float(brentq(lambda size: power(spread, seeds, size, level) - POWER, 0.0, most, xtol=1e-6 * most))


def seeds_needed(spread: Spread, difference: float, level: float = LEVEL) -> int | None:
    if power(spread, MOST_SEEDS, difference, level) < POWER:
        return None
    low, high = 1, 2  # one seed never suffices
    while power(spread, high, difference, level) < POWER:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(spread, middle, difference, level) >= POWER else (middle, high)
    return high


def _mean_squares(d: Differences) -> tuple[float, float, float]:
    """Of seeds, of images, and of what neither explains."""
    seeds, images = d.shape
    mean, of_seed, of_image = d.mean(), d.mean(axis=1), d.mean(axis=0)
    rest = d - of_seed[:, None] - of_image[None] + mean
    return (
        float(images * ((of_seed - mean) ** 2).sum() / (seeds - 1)),
        float(seeds * ((of_image - mean) ** 2).sum() / (images - 1)),
        float((rest**2).sum() / ((seeds - 1) * (images - 1))),
    )


def _error(by_seed: float, by_image: float, rest: float, seeds: int, images: int) -> tuple[float, float]:
    """Never below what seeds alone, or images alone, would say."""
    both = by_seed + by_image - rest
    if both <= max(by_seed, by_image):  # one kind of luck cannot be seen: the other one is all there is
        square, df = (by_seed, seeds - 1.0) if by_seed >= by_image else (by_image, images - 1.0)
    else:
        square = both
        parts = by_seed**2 / (seeds - 1) + by_image**2 / (images - 1) + rest**2 / ((seeds - 1) * (images - 1))
        df = both**2 / parts
    return float(np.sqrt(square / (seeds * images))), max(1.0, float(df))


def _two_sided(mean: float, error: float, df: float) -> float:
    if not error:
        return 0.0 if mean else 1.0
    return float(2 * stats.t.sf(abs(mean) / error, df))


@lru_cache(maxsize=2)
def _coins(images: int) -> Float[np.ndarray, "flip image"]:
    return (np.random.default_rng(0).integers(0, 2, (FLIPS, images), dtype=np.int8) * 2 - 1).astype(np.float32)
