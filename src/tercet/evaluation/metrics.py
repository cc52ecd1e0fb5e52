"""Ranks -> metrics: recalls, ranks, mAP, nDCG and cross-retrieval ranks, and what each image contributes to a metric.

`METRICS` holds a value per query for each; R@k is `100 * (best <= k)` of the best rank ("any positive in the top k").
With ties "expected", metrics are exact means over all orders of tied candidates (`TieBlocks`), without sampling.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tercet.evaluation.ranks import DirectionRanks, Ranks, RankTable
from tercet.plugins import all_of

CUTOFFS = (1, 5, 10)
RECALLS = tuple(f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in CUTOFFS)
# Shares of pairs by cross-retrieval rank, as in AOQ's histogram: name -> (exclusive lower, inclusive upper) rank.
CROSS_SHARES = {
    "cross_1": (0, 1),
    "cross_2_10": (1, 10),
    "cross_11_50": (10, 50),
    "cross_51_200": (50, 200),
    "cross_over_200": (200, np.inf),
}
PUBLISHED_DEPTH = 5
ENTRY_POINTS = "tercet.metrics"

PerBlock = Int[np.ndarray, " block"]
PerQuery = Float[np.ndarray, " query"]


@dataclass(frozen=True)
class QueryRanks:
    """The ranks of one direction, of all positives of all queries: by query (from 0), best rank first."""

    query: Int[np.ndarray, " positive"]
    rank: Float[np.ndarray, " positive"]
    """1-based, among all candidates."""
    nth: Int[np.ndarray, " positive"]
    """1 for the best positive of its query, 2 for the next, and so on."""
    positives: Int[np.ndarray, " query"]
    """Number of positives of each query."""

    @staticmethod
    def of(anchor: np.ndarray, rank: np.ndarray) -> tuple["QueryRanks", np.ndarray]:
        """From pairs in any order; also returns that order."""
        order = np.lexsort((rank, anchor))
        _, first, query, positives = np.unique(
            anchor[order], return_index=True, return_inverse=True, return_counts=True
        )
        return QueryRanks(
            query, rank[order].astype(np.float64), np.arange(len(order)) - first[query] + 1, positives
        ), order

    @property
    def best(self) -> PerQuery:
        """The rank of each query's best positive."""
        return self.rank[self.nth == 1]

    def sum(self, values: np.ndarray) -> PerQuery:
        """The sum over the positives of each query."""
        return np.bincount(self.query, values, minlength=len(self.positives))


class Metric(NamedTuple):
    """A metric: its value for each query; the metric of a direction is their mean.

    `expected` is the exact mean over all orders of tied candidates. Without it the metric is left out if ties are
    "expected" and there are some.
    """

    per_query: Callable[[QueryRanks], np.ndarray]
    expected: Callable[["TieBlocks"], np.ndarray] | None = None
    larger_is_better: bool = True
    scale: float = 1.0
    """Factor on the mean, for example 100 for percent."""
    description: str = ""


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

    Those of `all_metrics`; `ar` is the mean of the three recalls, `medr` the floor of the median best rank.
    """
    if not len(ranks.anchor):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    of_queries, order = QueryRanks.of(ranks.anchor, ranks.rank)
    blocks = None
    if ranks.tied.any():
        tied = ranks.ahead[order], ranks.tied[order]
        blocks = TieBlocks.of(of_queries.query, *tied, of_queries.positives, ranks.candidates)
    values = {}
    for name, metric in all_metrics().items():
        if blocks is None:
            values[name] = metric.scale * metric.per_query(of_queries).mean()
        elif metric.expected is not None:
            values[name] = metric.scale * metric.expected(blocks).mean()
    best = of_queries.best
    values |= {
        "ar": sum(values[f"r{k}"] for k in CUTOFFS) / len(CUTOFFS),
        "medr": np.floor(np.median(best)),
        "meanr": best.mean(),
        "queries": len(best),
    }
    return {name: float(value) for name, value in values.items()}


def all_metrics() -> dict[str, Metric]:
    """Name -> metric: Tercet's own and those of installed packages."""
    return all_of(METRICS, ENTRY_POINTS, Metric)


def metric_names(*, larger_is_better: bool = False) -> list[str]:
    """Names of the metrics of an evaluation that have a value per query, and their sums."""
    names = [name for name, metric in all_metrics().items() if metric.larger_is_better or not larger_is_better]
    return ["rsum", *(f"{direction}_{name}" for direction in ("i2t", "t2i") for name in [*names, "ar"])]


def largest_value(metric: str) -> float:
    """The largest value that a metric can have; infinity if it is not known."""
    if metric == "rsum":
        return sum(map(largest_value, RECALLS))
    name = metric.partition("_")[2]
    return float(METRICS[name].scale) if name in METRICS else 100.0 if name == "ar" else np.inf


def _precision_within(ranks: QueryRanks, depth: np.ndarray) -> PerQuery:
    """The sum of precision at hits within a depth per query."""
    return ranks.sum(ranks.nth / ranks.rank * (ranks.rank <= depth[ranks.query]))


def _hits_within(ranks: QueryRanks, depth: np.ndarray) -> PerQuery:
    return ranks.sum(ranks.rank <= depth[ranks.query])


def _five(ranks: "QueryRanks | TieBlocks") -> np.ndarray:
    return np.full(len(ranks.positives if isinstance(ranks, QueryRanks) else ranks.query_positives), 5)


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
    return cross_ranks_of(ranks.table(), images=ranks.t2i.candidates, captions=ranks.i2t.candidates)


def cross_ranks_of(ranks: RankTable, *, images: int, captions: int) -> np.ndarray:
    """Return the same from the ranks that a run stored and the numbers of images and captions."""
    image, caption = ranks.image("i2t"), ranks.caption("t2i")
    negative_captions = captions - np.bincount(image)[image]
    negative_images = images - np.bincount(caption)[caption]
    scale = negative_captions / np.maximum(negative_images, 1)  # without a negative image its rank is 1 anyway
    return np.maximum(1 + scale * (ranks.rank_negatives("t2i") - 1), ranks.rank_negatives("i2t"))


def contributions(ranks: RankTable, metric: str = "rsum") -> Float[np.ndarray, " image"]:
    """Return the contribution of each image to a metric, from the ranks that a run stored; their mean is the metric.

    Captions of one image are not independent, images are: an image contributes for itself and its captions, so that
    two models can be compared image by image. Where captions have several images, all that positives connect is one
    observation, in place of an image; images without a positive are none.

    >>> ranks = {"image": [0, 0, 1], "caption": [0, 1, 2], "i2t_rank": [1, 2, 9], "t2i_rank": [1, 2, 7]}
    >>> contributions(RankTable({name: np.array(array) for name, array in ranks.items()}), "i2t_r1")
    array([100.,   0.])
    """
    if metric == "rsum":
        return np.sum([contributions(ranks, name) for name in RECALLS], axis=0)
    direction, _, name = metric.partition("_")
    if name == "ar" and direction in ("i2t", "t2i"):
        return np.mean([contributions(ranks, f"{direction}_r{k}") for k in CUTOFFS], axis=0)
    if direction not in ("i2t", "t2i") or name not in all_metrics():
        raise ValueError(f"{metric!r} cannot be split by image; allowed: {', '.join(metric_names())}")
    observation = _observations(ranks, direction)
    count = int(observation.max()) + 1
    if name in RECALL_CUTOFFS:
        return 100 * _hits(ranks, direction, RECALL_CUTOFFS[name], observation, count)
    of_queries, order = QueryRanks.of(ranks.anchor(direction), ranks.rank(direction))
    metric_of = all_metrics()[name]
    values = metric_of.scale * metric_of.per_query(of_queries)
    of_query = observation[order][of_queries.nth == 1]
    return np.bincount(of_query, values, minlength=count) * (count / len(values))


def _observations(ranks: RankTable, direction: str) -> Int[np.ndarray, " pair"]:
    """Return the observation of each pair: its image, or what is connected to it if captions have several images."""
    image, caption = ranks.image(direction), ranks.caption(direction)
    if not ranks.symmetric:
        return image
    if len(np.unique(caption)) == len(caption):
        return np.asarray(np.unique(image, return_inverse=True)[1])
    images, nodes = int(image.max()) + 1, int(image.max()) + int(caption.max()) + 2
    edges = coo_array((np.ones(len(image)), (image, images + caption)), shape=(nodes, nodes))
    labels = connected_components(edges, directed=False)[1]  # ascending by the first image
    return np.asarray(np.unique(labels[image], return_inverse=True)[1])


def _hits(
    ranks: RankTable, direction: str, cutoff: int, observation: Int[np.ndarray, " pair"], count: int
) -> Float[np.ndarray, " observation"]:
    """Return, per observation, its queries with a positive within the cutoff, divided by the mean number of queries."""
    _, first, query = np.unique(ranks.anchor(direction), return_index=True, return_inverse=True)
    hit = np.bincount(query, ranks.rank(direction) <= cutoff) > 0
    return np.bincount(observation[first], hit, minlength=count) * (count / len(first))


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
    candidates: int

    @staticmethod
    def of(
        query: np.ndarray, ahead: np.ndarray, tied: np.ndarray, query_positives: np.ndarray, candidates: int
    ) -> "TieBlocks":
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
            candidates,
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


def _expected_ndcg(blocks: TieBlocks) -> PerQuery:
    discount = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, blocks.candidates + 2))))
    gain = blocks.positives / blocks.size * (discount[blocks.skipped + blocks.size] - discount[blocks.skipped])
    return np.bincount(blocks.query, gain) / discount[blocks.query_positives]


def _expected_best(blocks: TieBlocks, value: Callable[[np.ndarray], np.ndarray]) -> PerQuery:
    """The mean of a function of the best rank: that of the first positive in the first block of each query."""
    first = np.flatnonzero(blocks.before == 0)
    p, g, ahead = blocks.positives[first], blocks.negatives[first], blocks.ahead[first]
    total, none_yet = np.zeros(len(first)), np.ones(len(first))
    for t in range(int(g.max()) + 1):  # t negatives of the block come before its first positive
        remaining = np.maximum(p + g - t, 1)
        total += np.where(t <= g, none_yet * p / remaining * value(ahead + t + 1), 0.0)
        none_yet = none_yet * np.maximum(g - t, 0) / remaining
    return total


def _expected_map(blocks: TieBlocks) -> PerQuery:
    """Mean precision at all positives: a sum over the ranks of every block, in closed form by harmonic numbers."""
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, blocks.candidates + 1)))
    # At the n-th rank of its block a hit has precision (before + 1 + (n - 1) others) / (skipped + n).
    others = (blocks.positives - 1) / np.maximum(blocks.size - 1, 1)
    ranks = harmonic[blocks.skipped + blocks.size] - harmonic[blocks.skipped]
    precision = others * blocks.size + (blocks.before + 1 - others * (blocks.skipped + 1)) * ranks
    return np.bincount(blocks.query, blocks.positives / blocks.size * precision) / blocks.query_positives


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


def _recall(k: int) -> Metric:
    return Metric(
        lambda ranks: ranks.best <= k,
        lambda blocks: blocks.recall(k),
        scale=100,
        description=f"R@{k}, percent of queries with any positive in the top {k}",
    )


def _fraction_recall(k: int) -> Metric:
    def depth(queries: int) -> np.ndarray:
        return np.full(queries, k)

    return Metric(
        lambda ranks: _hits_within(ranks, depth(len(ranks.positives))) / ranks.positives,
        lambda blocks: _expected_within(blocks, depth(len(blocks.query_positives)))[1] / blocks.query_positives,
        scale=100,
        description=f"percent of a query's positives in the top {k}",
    )


# One entry per metric. A metric from outside is an entry point of the group `tercet.metrics`.
METRICS: dict[str, Metric] = {
    **{f"r{k}": _recall(k) for k in CUTOFFS},
    "map5": Metric(
        lambda ranks: _precision_within(ranks, _five(ranks)) / np.minimum(ranks.positives, 5),
        lambda blocks: _expected_within(blocks, _five(blocks))[0] / np.minimum(blocks.query_positives, 5),
        description="precision at hits within 5, over min(5, positives)",
    ),
    "map5_published": Metric(
        lambda ranks: _precision_within(ranks, _five(ranks)) / np.maximum(_hits_within(ranks, _five(ranks)), 1),
        _expected_map5_published,
        description="precision at hits within 5, over the hits found",
    ),
    "rprecision": Metric(
        lambda ranks: _hits_within(ranks, ranks.positives) / ranks.positives,
        lambda blocks: _expected_within(blocks, blocks.query_positives)[1] / blocks.query_positives,
        description="share of positives among the first ranks, as many as there are positives",
    ),
    "map_r": Metric(
        lambda ranks: _precision_within(ranks, ranks.positives) / ranks.positives,
        lambda blocks: _expected_within(blocks, blocks.query_positives)[0] / blocks.query_positives,
        description="precision at hits within as many ranks as there are positives",
    ),
    "ndcg": Metric(
        lambda ranks: ranks.sum(1 / np.log2(1 + ranks.rank)) / ideal_gain(ranks.positives),
        _expected_ndcg,
        description="normalized discounted cumulative gain, binary, over all ranks",
    ),
    "mrr": Metric(
        lambda ranks: 1 / ranks.best,
        lambda blocks: _expected_best(blocks, lambda rank: 1 / rank),
        description="reciprocal of the best positive's rank",
    ),
    "map": Metric(
        lambda ranks: ranks.sum(ranks.nth / ranks.rank) / ranks.positives,
        _expected_map,
        description="average precision over all positives",
    ),
    **{f"fr{k}": _fraction_recall(k) for k in CUTOFFS},
}
RECALL_CUTOFFS = {f"r{k}": k for k in CUTOFFS}
