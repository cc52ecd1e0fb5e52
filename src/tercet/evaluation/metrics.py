"""Ranks -> a flat dict of numbers. Recalls in percent ("any positive in the top k"), all else as its docstring says."""

from collections.abc import Mapping

import numpy as np

from tercet.evaluation.expected import Blocks, expected_hits
from tercet.evaluation.ranks import DirectionRanks, Ranks

CUTOFFS = (1, 5, 10)
# Shares of pairs by cross-retrieval rank, as AOQ's histogram: name -> first and last rank.
CROSS_SHARES = {
    "cross_1": (0, 1),
    "cross_2_10": (1, 10),
    "cross_11_50": (10, 50),
    "cross_51_200": (50, 200),
    "cross_over_200": (200, np.inf),
}


def metrics_of(ranks: Ranks) -> dict[str, float]:
    """Every metric of both directions; cross-retrieval ranks where both have the same positives."""
    sides = {"i2t": direction_metrics(ranks.i2t), "t2i": direction_metrics(ranks.t2i)}
    metrics = {f"{side}_{name}": number for side, numbers in sides.items() for name, number in numbers.items()}
    metrics["rsum"] = sum(metrics[f"{side}_r{k}"] for side in sides for k in CUTOFFS)
    return metrics | (cross_metrics(ranks) if ranks.symmetric else {})


def direction_metrics(ranks: DirectionRanks) -> dict[str, float]:
    """One direction, averaged over its queries; a query without a positive counts nowhere.

    `medr` is the floor of the median best rank, `map5` averages precision at hits within 5 over min(5, positives),
    `map5_published` over the hits found, `rprecision` and `map_r` look as deep as a query has positives, `ndcg` is
    binary and looks at everything.
    """
    if not len(ranks.anchor):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    order = np.lexsort((ranks.rank, ranks.anchor))
    _, first, query, positives = np.unique(
        ranks.anchor[order], return_index=True, return_inverse=True, return_counts=True
    )
    best = ranks.rank[order][first]
    if ranks.tied.any():
        blocks = Blocks.of(query, ranks.ahead[order], ranks.tied[order], positives)
        recalls = {f"r{k}": 100 * blocks.recall(k).mean() for k in CUTOFFS}
        deep = expected_hits(blocks, ranks.candidates)
    else:
        recalls = {f"r{k}": 100 * (best <= k).mean() for k in CUTOFFS}
        place = np.arange(len(order)) - first[query] + 1
        deep = _hits(ranks.rank[order], place, query, positives)
    metrics = {
        **recalls,
        "ar": sum(recalls.values()) / len(CUTOFFS),
        "medr": np.floor(np.median(best)),
        "meanr": best.mean(),
        **{name: values.mean() for name, values in deep.items()},
        "queries": len(first),
    }
    return {name: float(number) for name, number in metrics.items()}


def cross_metrics(ranks: Ranks) -> dict[str, float]:
    """Cross-retrieval rank of a pair: max(1 + k (r_i - 1), r_t), ranks against negatives only.

    k = negative captions of the image / negative images of the caption puts both ranks on one scale.
    """
    crossed = cross_ranks(ranks)
    metrics = {"cross_medr": np.floor(np.median(crossed)), "cross_meanr": crossed.mean()}
    for name, (above, last) in CROSS_SHARES.items():
        metrics[name] = 100 * ((crossed > above) & (crossed <= last)).mean()
    return {name: float(number) for name, number in metrics.items()}


def cross_ranks(ranks: Ranks) -> np.ndarray:
    """One cross-retrieval rank a pair, in the order of the pairs."""
    return cross_ranks_of(ranks.arrays(), images=ranks.t2i.candidates, captions=ranks.i2t.candidates)


def cross_ranks_of(arrays: Mapping[str, np.ndarray], *, images: int, captions: int) -> np.ndarray:
    """From what a run keeps of its ranks, among so many images and captions."""
    image, caption = arrays["image"], arrays["caption"]
    negative_captions = captions - np.bincount(image)[image]
    negative_images = images - np.bincount(caption)[caption]
    scale = negative_captions / np.maximum(negative_images, 1)  # without a negative image its rank is 1 anyway
    return np.maximum(1 + scale * (arrays["t2i_rank_negatives"] - 1), arrays["i2t_rank_negatives"])


def _hits(rank: np.ndarray, place: np.ndarray, query: np.ndarray, positives: np.ndarray) -> dict[str, np.ndarray]:
    """Of each query, from the whole ranks of its positives in ascending order; the n-th of them has place n."""
    precision = place / rank
    within_5, within_r = rank <= 5, rank <= positives[query]
    gained = np.bincount(query, precision * within_5)
    return {
        "map5": gained / np.minimum(positives, 5),
        "map5_published": gained / np.maximum(np.bincount(query, within_5), 1),
        "rprecision": np.bincount(query, within_r) / positives,
        "map_r": np.bincount(query, precision * within_r) / positives,
        "ndcg": np.bincount(query, 1 / np.log2(1 + rank)) / ideal_gain(positives),
    }


def ideal_gain(positives: np.ndarray) -> np.ndarray:
    """Discounted gain of a query whose positives all come first."""
    return np.cumsum(1 / np.log2(np.arange(2, positives.max() + 2)))[positives - 1]
