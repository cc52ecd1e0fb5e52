"""Families of variants under the model that the tests assume, and how often they are told apart.

Standard deviations are those measured on Flickr8k with heads, in points of rsum: image 30.7, rest 48.9, seed 1.51.
"""

from dataclasses import dataclass

import numpy as np

from tercet.evaluation.significance import PairTests, pair_tests

VARIANTS, IMAGES = 8, 1000
IMAGE_STD, REST_STD, SEED_STD = 30.7, 48.9, 1.51
FIRST, SECOND = np.triu_indices(VARIANTS, 1)  # the order of itertools.combinations
CHUNK = 50  # families drawn at a time

ALIKE = np.zeros(VARIANTS)
STEPS = 10.0 * np.arange(VARIANTS)


@dataclass(frozen=True)
class World:
    """How the seeds of the variants scatter."""

    name: str
    wild: float | None = None
    """Standard deviation of the first variant."""
    prior_df: int | None = None
    """Variances differ: inverse chi-square with these degrees of freedom."""

    def seed_stds(self, random: np.random.Generator, families: int) -> np.ndarray:
        stds = np.full((families, VARIANTS), SEED_STD)
        if self.wild is not None:
            stds[:, 0] = self.wild
        if self.prior_df is not None:
            stds *= np.sqrt(self.prior_df / random.chisquare(self.prior_df, (families, VARIANTS)))
        return stds

    @property
    def tame_neighbors(self) -> np.ndarray:
        """Pairs of neighbors without the wild one."""
        return (SECOND - FIRST == 1) & ((FIRST > 0) | (self.wild is None))


WORLDS = {
    world.name: world
    for world in (
        World("all alike"),
        World("one wild, 10", wild=10.0),
        World("one wild, 30", wild=30.0),
        World("variances differ", prior_df=2),
    )
}


def draw(random: np.random.Generator, world: World, seeds: int, means: np.ndarray, families: int) -> np.ndarray:
    """Values (family, variant, seed, image)."""
    shape = (families, VARIANTS, seeds, IMAGES)
    values = REST_STD * random.standard_normal(shape, dtype=np.float32).astype(np.float64)
    values += IMAGE_STD * random.standard_normal((families, VARIANTS, 1, IMAGES))
    values += world.seed_stds(random, families)[..., None, None] * random.standard_normal((*shape[:3], 1))
    return values + means[:, None, None]


def rejected_by_holm(p: np.ndarray, level: float = 0.05) -> np.ndarray:
    """Which pairs of each family Holm's procedure rejects."""
    tests = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    passes = np.take_along_axis(p, order, axis=-1) < level / (tests - np.arange(tests))
    rejected = np.empty_like(passes)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passes, axis=-1), axis=-1)
    return rejected


def unmoderated(tests: PairTests, values: np.ndarray) -> PairTests:
    """The same tests with the variance of each pair alone, as before the moderated test."""
    means = values.mean(axis=-1)
    own = (means[..., FIRST, :] - means[..., SECOND, :]).var(axis=-1, ddof=1)
    variance = np.maximum(own, tests.rest / tests.images) / tests.seeds
    return tests._replace(seed_variance=variance, pooled=np.full_like(tests.pooled, 2))


def simulate(world: World, seeds: int, means: np.ndarray, families: int, *, moderated: bool = True) -> np.ndarray:
    """Which pairs are rejected, (family, pair)."""
    random = np.random.default_rng(1)
    found = []
    for start in range(0, families, CHUNK):
        values = draw(random, world, seeds, means, min(CHUNK, families - start))
        tests = pair_tests(values)
        found.append(rejected_by_holm((tests if moderated else unmoderated(tests, values)).p))
    return np.concatenate(found)


def family_error(rejected: np.ndarray, means: np.ndarray) -> float:
    """Share of the families in which two variants with equal means are told apart."""
    equal = means[FIRST] == means[SECOND]
    return float(rejected[:, equal].any(axis=1).mean())
