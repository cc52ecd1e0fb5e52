"""Ranks -> metrics: recalls, ranks, mAP, nDCG and cross-retrieval ranks, and what each image contributes to a recall.

`direction_metrics` counts R@k: `100 * (best <= k).mean()` of the best rank of each query ("any positive in the top k").
With ties "expected", metrics are exact means over all orders of tied candidates (`TieBlocks`), without sampling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from tercet.evaluation.ranks import DirectionRanks, Ranks

CUTOFFS = (1, 5, 10)
RECALLS = tuple(f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in CUTOFFS)
METRICS = (*RECALLS, "rsum", "i2t_ar", "t2i_ar")
"""Metrics that `contributions` can split by image."""
# Shares of pairs by cross-retrieval rank, as in AOQ's histogram: name -> (exclusive lower, inclusive upper) rank.
CROSS_SHARES = {
    "cross_1": (0, 1),
    "cross_2_10": (1, 10),
    "cross_11_50": (10, 50),
    "cross_51_200": (50, 200),
    "cross_over_200": (200, np.inf),
}
PUBLISHED_DEPTH = 5

PerBlock = Int[np.ndarray, " block"]


def metrics_of(ranks: Ranks) -> dict[str, float]:
    """Return every metric of both directions; cross-retrieval metrics if both directions have the same positives."""
    directions = {"i2t": direction_metrics(ranks.i2t), "t2i": direction_metrics(ranks.t2i)}
    metrics = {
        f"{direction}_{name}": value for direction, values in directions.items() for name, value in values.items()
    }
    metrics["rsum"] = sum(metrics[name] for name in RECALLS)
    return metrics | (cross_metrics(ranks) if ranks.symmetric else {})


def direction_metrics(ranks: DirectionRanks) -> dict[str, float]:
    """Return the metrics of one direction, averaged over queries that have a positive.

    `r1`, `r5`, `r10` are recalls in percent, `ar` is their mean, `medr` the floor of the median best rank, `meanr` the
    mean best rank. `map5` averages precision at hits within 5 over min(5, positives), `map5_published` over the hits
    found. `rprecision` and `map_r` have a depth of the query's number of positives. `ndcg` is binary, over all ranks.
    """
    if not len(ranks.anchor):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    order = np.lexsort((ranks.rank, ranks.anchor))
    _, first, query, positives = np.unique(
        ranks.anchor[order], return_index=True, return_inverse=True, return_counts=True
    )
    best = ranks.rank[order][first]
    if ranks.tied.any():
        blocks = TieBlocks.of(query, ranks.ahead[order], ranks.tied[order], positives)
        recalls = {f"r{k}": 100 * blocks.recall(k).mean() for k in CUTOFFS}
        deep = expected_deep_metrics(blocks, ranks.candidates)
    else:
        recalls = {f"r{k}": 100 * (best <= k).mean() for k in CUTOFFS}
        nth = np.arange(len(order)) - first[query] + 1
        deep = _deep_metrics(ranks.rank[order], nth, query, positives)
    metrics = {
        **recalls,
        "ar": sum(recalls.values()) / len(CUTOFFS),
        "medr": np.floor(np.median(best)),
        "meanr": best.mean(),
        **{name: values.mean() for name, values in deep.items()},
        "queries": len(first),
    }
    return {name: float(value) for name, value in metrics.items()}


def _deep_metrics(rank: np.ndarray, nth: np.ndarray, query: np.ndarray, positives: np.ndarray) -> dict[str, np.ndarray]:
    """Return, per query, the metrics beyond the best positive, from integer ranks in ascending order; `nth` from 1."""
    precision = nth / rank
    within_5, within_r = rank <= 5, rank <= positives[query]
    precision_5 = np.bincount(query, precision * within_5)
    return {
        "map5": precision_5 / np.minimum(positives, 5),
        "map5_published": precision_5 / np.maximum(np.bincount(query, within_5), 1),
        "rprecision": np.bincount(query, within_r) / positives,
        "map_r": np.bincount(query, precision * within_r) / positives,
        "ndcg": np.bincount(query, 1 / np.log2(1 + rank)) / ideal_gain(positives),
    }


def ideal_gain(positives: np.ndarray) -> np.ndarray:
    """Return the discounted gain of a query whose positives all rank first."""
    return np.cumsum(1 / np.log2(np.arange(2, positives.max() + 2)))[positives - 1]


def cross_metrics(ranks: Ranks) -> dict[str, float]:
    """Return median, mean and histogram of the cross-retrieval ranks max(1 + k (r_i - 1), r_t) of all pairs.

    Ranks are among negatives; k = negative captions of the image / negative images of the caption scales both alike.
    """
    crossed = cross_ranks(ranks)
    metrics = {"cross_medr": np.floor(np.median(crossed)), "cross_meanr": crossed.mean()}
    for name, (lower, upper) in CROSS_SHARES.items():
        metrics[name] = 100 * ((crossed > lower) & (crossed <= upper)).mean()
    return {name: float(value) for name, value in metrics.items()}


def cross_ranks(ranks: Ranks) -> np.ndarray:
    """Return the cross-retrieval rank of each pair, in the order of the pairs."""
    return cross_ranks_of(ranks.arrays(), images=ranks.t2i.candidates, captions=ranks.i2t.candidates)


def cross_ranks_of(arrays: Mapping[str, np.ndarray], *, images: int, captions: int) -> np.ndarray:
    """Return the same from the arrays of `ranks.npz` and the numbers of images and captions."""
    image, caption = arrays["image"], arrays["caption"]
    negative_captions = captions - np.bincount(image)[image]
    negative_images = images - np.bincount(caption)[caption]
    scale = negative_captions / np.maximum(negative_images, 1)  # without a negative image its rank is 1 anyway
    return np.maximum(1 + scale * (arrays["t2i_rank_negatives"] - 1), arrays["i2t_rank_negatives"])


def contributions(ranks: Mapping[str, np.ndarray], metric: str = "rsum") -> Float[np.ndarray, " image"]:
    """Return the contribution of each image to a metric, from the arrays of `ranks.npz`; their mean is the metric.

    Captions of one image are not independent, images are: an image contributes for itself and its captions, so that
    two models can be compared image by image.

    >>> ranks = {"image": [0, 0, 1], "caption": [0, 1, 2], "i2t_rank": [1, 2, 9], "t2i_rank": [1, 2, 7]}
    >>> contributions({name: np.array(array) for name, array in ranks.items()}, "i2t_r1")
    array([100.,   0.])
    """
    if metric not in METRICS:
        raise ValueError(f"{metric!r} cannot be split by image; allowed: {', '.join(METRICS)}")
    if metric == "rsum":
        return np.sum([contributions(ranks, name) for name in RECALLS], axis=0)
    direction, _, name = metric.partition("_")
    if name == "ar":
        return np.mean([contributions(ranks, f"{direction}_r{k}") for k in CUTOFFS], axis=0)
    cutoff = int(name[1:])
    images = int(_image_of_pairs(ranks, direction).max()) + 1
    hits = _i2t_hits(ranks, cutoff, images) if direction == "i2t" else _t2i_hits(ranks, cutoff, images)
    return 100 * hits


def _i2t_hits(ranks: Mapping[str, np.ndarray], cutoff: int, images: int) -> np.ndarray:
    """Return 1 for images whose best caption is within the cutoff, scaled so that the mean is the recall."""
    image = _image_of_pairs(ranks, "i2t")
    has_positive = np.bincount(image, minlength=images) > 0
    hit = np.bincount(image, ranks["i2t_rank"] <= cutoff, minlength=images) > 0
    return hit * (images / has_positive.sum())


def _t2i_hits(ranks: Mapping[str, np.ndarray], cutoff: int, images: int) -> np.ndarray:
    """Return, per image, its captions that rank it within the cutoff, divided by the mean captions per image."""
    image = _image_of_pairs(ranks, "t2i")
    return np.bincount(image, ranks["t2i_rank"] <= cutoff, minlength=images) * (images / len(image))


def _image_of_pairs(ranks: Mapping[str, np.ndarray], direction: str) -> np.ndarray:
    return ranks["image"] if "image" in ranks else ranks[f"{direction}_image"]


@dataclass(frozen=True)
class TieBlocks:
    """Blocks of tied candidates that contain a positive, ordered by query (from 0) and rank.

    A block is a run of equally similar candidates of one query: p positives and g negatives, after `ahead` negatives
    and `before` positives. In a random order each of its ranks is a positive with probability p / (p + g).
    """

    query: PerBlock
    ahead: PerBlock
    before: PerBlock
    negatives: PerBlock
    positives: PerBlock
    query_positives: Int[np.ndarray, " query"]
    """Total positives of each query."""

    @staticmethod
    def of(query: np.ndarray, ahead: np.ndarray, tied: np.ndarray, query_positives: np.ndarray) -> "TieBlocks":
        """Build from positives sorted by query and rank.

        Positives with equal `ahead` and `tied` are one block, or equivalent to one.
        """
        changes = np.ones(len(query), dtype=bool)
        changes[1:] = (np.diff(query) != 0) | (np.diff(ahead) != 0) | (np.diff(tied) != 0)
        start = np.flatnonzero(changes)
        first_of_query = np.cumsum(query_positives) - query_positives
        return TieBlocks(
            query[start],
            ahead[start],
            start - first_of_query[query[start]],
            tied[start],
            np.diff(np.append(start, len(query))),
            query_positives,
        )

    @property
    def skipped(self) -> PerBlock:
        """Number of candidates ranked before the block."""
        return self.ahead + self.before

    @property
    def size(self) -> PerBlock:
        return self.positives + self.negatives

    def recall(self, k: int) -> np.ndarray:
        """Return, per query, the probability that any positive is in the top k."""
        first = np.flatnonzero(self.before == 0)  # the first block of every query
        p, g, ahead = self.positives[first], self.negatives[first], self.ahead[first]
        missed = np.ones(len(first))
        for t in range(k):
            missed *= np.where(t < k - ahead, np.maximum(g - t, 0) / np.maximum(g + p - t, 1), 1.0)
        return 1 - missed


def expected_deep_metrics(blocks: TieBlocks, candidates: int) -> dict[str, np.ndarray]:
    """Return, per query, the expected values of the metrics of `_deep_metrics` over all orders of ties."""
    positives = blocks.query_positives
    discount = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, candidates + 2))))
    gain = blocks.positives / blocks.size * (discount[blocks.skipped + blocks.size] - discount[blocks.skipped])
    precision_5, _ = _expected_within(blocks, np.full(len(positives), 5))
    precision_r, hits_r = _expected_within(blocks, positives)
    return {
        "map5": precision_5 / np.minimum(positives, 5),
        "map5_published": _expected_map5_published(blocks),
        "rprecision": hits_r / positives,
        "map_r": precision_r / positives,
        "ndcg": np.bincount(blocks.query, gain) / discount[positives],
    }


def _expected_within(blocks: TieBlocks, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected sum of precision at hits and the expected hits, within each query's depth."""
    precision, hits = np.zeros(len(blocks.query)), np.zeros(len(blocks.query))
    for rank in range(1, int(depth.max()) + 1):
        nth = rank - blocks.skipped  # position within the block, from 1
        inside = (nth >= 1) & (nth <= blocks.size) & (rank <= depth[blocks.query])
        hit_probability = inside * blocks.positives / blocks.size
        # Given a hit here, each earlier position of the block is a hit with probability (p - 1) / (p + g - 1).
        earlier = (nth - 1) * (blocks.positives - 1) / np.maximum(blocks.size - 1, 1)
        precision += hit_probability * (blocks.before + 1 + earlier) / rank
        hits += hit_probability
    return np.bincount(blocks.query, precision), np.bincount(blocks.query, hits)


def _expected_map5_published(blocks: TieBlocks) -> np.ndarray:
    """Return the expected precision at hits within 5 over the hits found.

    The ratio is not a mean over positions, so all 32 outcomes of the first five ranks are weighted.
    """
    block_at = np.full((PUBLISHED_DEPTH, len(blocks.query_positives)), -1)  # block of each rank of each query
    for rank in range(1, PUBLISHED_DEPTH + 1):
        inside = np.flatnonzero((rank > blocks.skipped) & (rank <= blocks.skipped + blocks.size))
        block_at[rank - 1, blocks.query[inside]] = inside
    total = np.zeros(len(blocks.query_positives))
    for outcome in product((0, 1), repeat=PUBLISHED_DEPTH):
        if any(outcome):
            hits = np.cumsum(outcome)
            value = sum(hits[t] / (t + 1) for t in range(PUBLISHED_DEPTH) if outcome[t]) / hits[-1]
            total += value * _outcome_probability(blocks, block_at, outcome)
    return total


def _outcome_probability(blocks: TieBlocks, block_at: np.ndarray, outcome: tuple[int, ...]) -> np.ndarray:
    """Return, per query, the probability of exactly this pattern of hits at the first ranks."""
    probability = np.ones(block_at.shape[1])
    block_hits = np.zeros(block_at.shape[1])  # hits so far in the current block
    for t, hit in enumerate(outcome):
        inside = block_at[t] >= 0
        block = np.maximum(block_at[t], 0)
        block_hits = np.where(t == blocks.skipped[block], 0, block_hits)
        remaining = blocks.size[block] - (t - blocks.skipped[block])
        positive = np.where(inside, (blocks.positives[block] - block_hits) / np.maximum(remaining, 1), 0.0)
        probability *= positive if hit else 1 - positive
        block_hits = block_hits + hit
    return np.maximum(probability, 0.0)
