"""The moderated test of all pairs, from its definition: one contrast at a time, slow and obvious."""

from itertools import combinations
from math import sqrt

import numpy as np
from scipy import linalg, optimize, stats


def variance_of(means: np.ndarray, contrast: np.ndarray) -> float:
    """Variance over seeds of a contrast of length 1; `means` (variant, seed)."""
    return float(np.var(contrast @ means, ddof=1))


def orthogonal_to(*contrasts: np.ndarray) -> list[np.ndarray]:
    """Contrasts of length 1 that are orthogonal to these, to each other and to the mean."""
    return list(linalg.null_space(np.array([np.ones(len(contrasts[0])), *contrasts])).T)


def found_wild(means: np.ndarray, pool: list[int]) -> list[int]:
    """Members of the pool that scatter more than the others allow."""
    seeds, wild = means.shape[1], []
    for member in range(len(pool)):
        own = np.full(len(pool), -1.0 / (len(pool) - 1))
        own[member] = 1.0
        own /= np.linalg.norm(own)
        others = orthogonal_to(own)
        ratio = variance_of(means[pool], own) / np.mean([variance_of(means[pool], other) for other in others])
        if ratio > stats.f.ppf(0.99, seeds - 1, len(others) * (seeds - 1)):
            wild.append(pool[member])
    return wild


def moderated_pair(values: np.ndarray, a: int, b: int) -> tuple[float, float, float, int]:
    """Difference, variance of the mean by seeds and by images, degrees of freedom; `values` (variant, seed, image)."""
    variants, seeds, images = values.shape
    means = values.mean(axis=2)
    pool = list(range(variants))
    for _ in range(2):
        wild = found_wild(means, pool) if len(pool) > 2 else []
        pool = [variant for variant in pool if variant not in wild]
    variance, df = float(np.var(means[a] - means[b], ddof=1)), seeds - 1
    if a in pool and b in pool and len(pool) > 2:
        pair = np.zeros(len(pool))
        pair[pool.index(a)], pair[pool.index(b)] = 1 / sqrt(2), -1 / sqrt(2)
        others = 2 * np.mean([variance_of(means[pool], other) for other in orthogonal_to(pair)])
        k = min(4, (len(pool) - 2) * (seeds - 1))
        variance, df = (df * variance + k * others) / (df + k), df + k
    d = values[a] - values[b]
    rest = sum(
        (d[s, j] - d[s].mean() - d[:, j].mean() + d.mean()) ** 2 for s in range(seeds) for j in range(images)
    ) / ((seeds - 1) * (images - 1))
    by_image = seeds * np.var(d.mean(axis=0), ddof=1)
    by_seed = max(images * variance, rest) / (seeds * images)
    return float(d.mean()), by_seed, max(0.0, by_image - rest) / (seeds * images), df


def margin(by_seed: float, by_image: float, df: int, images: int, level: float) -> float:
    t_seed, t_image = stats.t.isf(level / 2, df), stats.t.isf(level / 2, images - 1)
    return sqrt(t_seed**2 * by_seed + t_image**2 * by_image)


def moderated_tests(values: np.ndarray, level: float = 0.05) -> list[dict[str, float]]:
    """Of every pair: difference, p, p corrected by Holm, and the interval, first minus second."""
    images = values.shape[2]
    tests = []
    for a, b in combinations(range(len(values)), 2):
        difference, by_seed, by_image, df = moderated_pair(values, a, b)
        variances = (by_seed, by_image, df, images)
        p = optimize.brentq(lambda level, v=variances, d=difference: margin(*v, level) - abs(d), 1e-15, 1.0, xtol=1e-18)
        tests.append({"difference": difference, "p": p, "variances": variances})
    order = sorted(range(len(tests)), key=lambda index: tests[index]["p"])
    largest, stopped = 0.0, False
    for position, index in enumerate(order):
        test = tests[index]
        own_level = level / (len(tests) - position)
        largest = max(largest, test["p"] * (len(tests) - position))
        stopped = stopped or test["p"] >= own_level
        test["corrected"] = min(1.0, largest)
        wide = margin(*test["variances"], level / len(tests))
        near = wide if stopped or wide < abs(test["difference"]) else margin(*test["variances"], own_level)
        sign = 1 if test["difference"] > 0 else -1
        ends = sorted((test["difference"] - sign * near, test["difference"] + sign * wide))
        test["low"], test["high"] = ends
    return tests
