"""Is a difference real? Two contestants on the same images, each trained with the same seeds.

Two kinds of luck are in a difference d[seed image]: that of training, and that of which images are in the test set.
Both are drawn anew when somebody repeats the work, so both belong into the error of the mean (a crossed design, as when
subjects read items): d = difference + seed + image + rest. The mean squares of seeds and images estimate their parts of
the variance of the mean, the one on few degrees of freedom, the other on many; Howe's interval (1974) takes each part
with its own quantile of t. Pooling them by Satterthwaite instead finds, with 3 seeds, up to ten times too many at the
small levels that many comparisons ask for. Tests over seeds alone, or over images alone, answer narrower questions and
are told beside it.
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
FLIPS = 9999
MOST_SEEDS = 1000
PLACES = 400  # quantiles that stand for a distribution
LEAST = -30.0  # p-values below 10 to this are not told apart

Differences = Float[np.ndarray, "seed image"]


@dataclass(frozen=True)
class Spread:
    """Where the variance of a difference comes from: a seed's, an image's, and that of a seed with an image."""

    seed: float
    image: float
    rest: float
    images: int

    def parts(self, seeds: int) -> tuple[float, float]:
        """Of the variance of the mean over so many seeds: that of seeds (and the rest), and that of images."""
        return self.seed / seeds + self.rest / (seeds * self.images), self.image / self.images


@dataclass(frozen=True)
class Compared:
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
        """How many seeds would find a difference of this size, four times of five; None where no number would.

        More than `MOST_SEEDS` are not counted.
        """
        return None if self.spread is None else seeds_needed(self.spread, self.difference, level)


def compare_runs(first: Differences, second: Differences) -> Compared:
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
        half = float(np.sqrt(_square_t(LEVEL, images - 1) * d[0].var(ddof=1) / images))
        return Compared(mean, mean - half, mean + half, p_images, None, p_images, 1, images, None)
    by_seed, by_image, rest = _mean_squares(d)
    # Seeds whose means lie closer than the rest alone would scatter them were lucky: few seeds often are.
    parts = max(by_seed, rest) / (seeds * images), max(0.0, by_image - rest) / (seeds * images)
    half = _margin(parts, seeds, images, LEVEL)
    spread = Spread(max(0.0, by_seed - rest) / images, max(0.0, by_image - rest) / seeds, rest, images)
    p_seeds = _p_value(mean, (by_seed / (seeds * images), 0.0), seeds, images)
    # Without any variance only the number of images speaks.
    p = _p_value(mean, parts, seeds, images) if sum(parts) else p_images
    return Compared(mean, mean - half, mean + half, p, p_seeds, p_images, seeds, images, spread)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for many comparisons: at most 5 % of families hold a false find (Holm, 1979).

    >>> holm([0.25, 0.03125, 0.5])
    [0.5, 0.09375, 0.5]
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.maximum.accumulate([(len(order) - place) * p_values[which] for place, which in enumerate(order)])
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(raised, 1.0)
    return [float(p) for p in corrected]


def flip_test(d: Float[np.ndarray, " image"]) -> float:
    """Paired permutation test: under no difference each image's sign is a coin. The same coins on every call."""
    observed = abs(d.sum())
    if not observed:
        return 1.0
    reached = np.abs(_coins(len(d)) @ d.astype(np.float32)) >= observed * (1 - 1e-6)
    return float((1 + reached.sum()) / (FLIPS + 1))


def power(spread: Spread, seeds: int, difference: float, level: float = LEVEL) -> float:
    """How often so many seeds would find a difference of this size.

    Over what the few seeds may show of their own variance: its quantiles, each as likely as the next.
    """
    of_seeds, of_images = spread.parts(seeds)
    error = float(np.sqrt(of_seeds + of_images))
    if not error:
        return 1.0 if difference else level
    least = spread.rest / (seeds * spread.images)
    shown = np.maximum(of_seeds * _chi_places(seeds) / (seeds - 1), least)
    margin = np.sqrt(_square_t(level, seeds - 1) * shown + _square_t(level, spread.images - 1) * of_images)
    size = abs(difference)
    return float(np.mean(special.ndtr((size - margin) / error) + special.ndtr(-(margin + size) / error)))


def detectable(spread: Spread, seeds: int, level: float = LEVEL) -> float:
    most = 10 * _margin(spread.parts(seeds), seeds, spread.images, level)
    if not most:
        return 0.0
    return float(brentq(lambda size: power(spread, seeds, size, level) - POWER, 0.0, most, xtol=1e-6 * most))


def seeds_needed(spread: Spread, difference: float, level: float = LEVEL) -> int | None:
    if power(spread, MOST_SEEDS, difference, level) < POWER:
        # With all seeds there are, only images bring luck.
        ever = (
            power(Spread(0.0, spread.image, 0.0, spread.images), MOST_SEEDS, difference, level) if difference else 0.0
        )
        return MOST_SEEDS + 1 if ever >= POWER else None
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


def _margin(parts: tuple[float, float], seeds: int, images: int, level: float) -> float:
    """Half the interval."""
    return float(np.sqrt(_square_t(level, seeds - 1) * parts[0] + _square_t(level, images - 1) * parts[1]))


def _p_value(mean: float, parts: tuple[float, float], seeds: int, images: int) -> float:
    """The level at which the interval would just reach 0."""
    if not mean or not sum(parts):
        return 0.0 if mean else 1.0

    def reaches(exponent: float) -> float:
        return _margin(parts, seeds, images, 10**exponent) - abs(mean)

    return float(10 ** brentq(reaches, LEAST, 0.0, xtol=1e-12)) if reaches(LEAST) > 0 else float(10**LEAST)


def _square_t(level: float, df: int) -> float:
    return float(special.stdtrit(df, level / 2)) ** 2


@lru_cache(maxsize=1024)
def _chi_places(seeds: int) -> Float[np.ndarray, " place"]:
    places = (np.arange(PLACES) + 0.5) / PLACES
    return np.asarray(2 * special.gammaincinv((seeds - 1) / 2, places))


@lru_cache(maxsize=2)
def _coins(images: int) -> Float[np.ndarray, "flip image"]:
    return (np.random.default_rng(0).integers(0, 2, (FLIPS, images), dtype=np.int8) * 2 - 1).astype(np.float32)
