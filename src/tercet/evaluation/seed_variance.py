"""Variance between seeds of the differences of several variants, each estimate moderated by those of the others.

With 3 seeds a pair of variants estimates its own variance with 2 degrees of freedom, and corrected for many pairs the
quantile of t is then several times as large as with a few more. Runs of one comparison scatter alike, so each
estimate is combined with the variance of the other variants. A variant that scatters clearly more than the others is
neither pooled nor moderated.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

MAX_ADDED_DF = 4  # more would rely too much on variants that may scatter differently
WILD_QUANTILE = 0.99
WILD_LOOKS = 2  # one variant that scatters can hide another

SeedMeans = Float[np.ndarray, "*family variant seed"]


class SeedVariances(NamedTuple):
    """Of every pair of variants, in the order of `itertools.combinations`."""

    variance: Float[np.ndarray, "*family pair"]
    """Of the difference at one seed, moderated."""
    pooled: Int[np.ndarray, "*family pair"]
    """Number of variants whose variance it is; 2: the pair alone."""


def moderated_variances(means: SeedMeans) -> SeedVariances:
    """Combine the variance of each pair with that of the other variants. `means`: metric of each variant and seed.

    The pair has S-1 degrees of freedom of its own, the K-2 other variants (K-2)(S-1), of which at most 4 are used.
    """
    seeds = means.shape[-1]
    wild = wild_variants(means)
    pool = ~wild
    count = pool.sum(axis=-1)
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


def wild_variants(means: SeedMeans) -> Bool[np.ndarray, "*family variant"]:
    """Variants whose seeds scatter more than the 0.99 quantile of F allows, against the others'."""
    seeds, variants = means.shape[-1], means.shape[-2]
    centred = means - means.mean(axis=-1, keepdims=True)
    wild = np.zeros(means.shape[:-1], dtype=bool)
    for _ in range(WILD_LOOKS):
        pool = ~wild
        count = pool.sum(axis=-1)
        total = _interaction(centred, pool)
        others_df = np.maximum(count - 2, 1) * (seeds - 1)
        limit = special.fdtri(seeds - 1, others_df, WILD_QUANTILE)
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


def _interaction(
    centred: SeedMeans, pool: Bool[np.ndarray, "*family variant"]
) -> Float[np.ndarray, "*family"]:
    """Sum of squares of variant x seed within the pool: what all variants share at a seed does not count."""
    weights = pool[..., None]
    shared = (centred * weights).sum(axis=-2, keepdims=True) / np.maximum(pool.sum(axis=-1), 1)[..., None, None]
    return (((centred - shared) * weights) ** 2).sum(axis=(-1, -2))
