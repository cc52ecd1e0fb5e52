"""Reference metrics: sort lists in plain Python, one query at a time."""

from itertools import groupby, permutations, product
from math import log2
from statistics import mean, median

AVERAGED = (
    "r1",
    "r5",
    "r10",
    "map5",
    "map5_published",
    "rprecision",
    "map_r",
    "ndcg",
    "mrr",
    "map",
    "fr1",
    "fr5",
    "fr10",
)


def orders(row, mask, ties):
    """All orders of the candidates under this setting of ties, best first; True is a positive."""
    ranked = sorted(range(len(row)), key=lambda j: -row[j])
    groups = [[mask[j] for j in group] for _, group in groupby(ranked, key=lambda j: row[j])]
    if ties == "expected":
        return [[hit for group in order for hit in group] for order in product(*(permutations(g) for g in groups))]
    return [[hit for group in groups for hit in sorted(group, reverse=ties == "optimistic")]]


def query_metrics(hits):
    ranks = [rank for rank, hit in enumerate(hits, start=1) if hit]
    precision = {rank: sum(hits[:rank]) / rank for rank in ranks}
    positives = len(ranks)
    within_5 = [precision[rank] for rank in ranks if rank <= 5]
    within_r = [precision[rank] for rank in ranks if rank <= positives]
    return {
        **{f"r{k}": 100 * any(hits[:k]) for k in (1, 5, 10)},
        "rank": ranks[0],
        "map5": sum(within_5) / min(5, positives),
        "map5_published": sum(within_5) / max(1, len(within_5)),
        "rprecision": sum(hits[:positives]) / positives,
        "map_r": sum(within_r) / positives,
        "mrr": 1 / ranks[0],
        "map": sum(precision.values()) / positives,
        **{f"fr{k}": 100 * sum(hits[:k]) / positives for k in (1, 5, 10)},
        "ndcg": sum(1 / log2(1 + rank) for rank in ranks) / sum(1 / log2(1 + n) for n in range(1, positives + 1)),
    }


def direction(similarity, positives, ties):
    queries = []
    for row, mask in zip(similarity.tolist(), positives.tolist(), strict=True):
        if any(mask):
            metrics = [query_metrics(order) for order in orders(row, mask, ties)]
            queries.append({name: mean(each[name] for each in metrics) for name in metrics[0]})
    metrics = {name: mean(query[name] for query in queries) for name in AVERAGED}
    metrics["ar"] = (metrics["r1"] + metrics["r5"] + metrics["r10"]) / 3
    metrics["medr"] = median(query["rank"] for query in queries) // 1
    metrics["meanr"] = mean(query["rank"] for query in queries)
    return metrics | {"queries": len(queries)}


def negatives_rank(row, mask, candidate, ties):
    ahead = sum(s > row[candidate] for s, positive in zip(row, mask, strict=True) if not positive)
    tied = sum(s == row[candidate] for s, positive in zip(row, mask, strict=True) if not positive)
    return 1 + ahead + (tied if ties == "against" else 0)


def cross(similarity, positives, ties):
    """Cross-retrieval rank of every pair, with ties against or for the positive."""
    rows, columns = similarity.tolist(), similarity.T.tolist()
    masks, column_masks = positives.tolist(), positives.T.tolist()
    ranks = []
    for i, j in positives.nonzero().tolist():
        r_t = negatives_rank(rows[i], masks[i], j, ties)
        r_i = negatives_rank(columns[j], column_masks[j], i, ties)
        negatives = masks[i].count(False), column_masks[j].count(False)
        ranks.append(max(1 + negatives[0] / negatives[1] * (r_i - 1) if r_i > 1 else 1, r_t))
    bounds = {"1": (0, 1), "2_10": (1, 10), "11_50": (10, 50), "51_200": (50, 200), "over_200": (200, 1e9)}
    shares = {f"cross_{name}": 100 * mean(low < r <= high for r in ranks) for name, (low, high) in bounds.items()}
    return {"cross_medr": median(ranks) // 1, "cross_meanr": mean(ranks), **shares}


def slow_metrics(similarity, positives, ties="against"):
    """All keys; cross-retrieval only where ties are not expected."""
    metrics = {f"i2t_{k}": v for k, v in direction(similarity, positives, ties).items()}
    metrics |= {f"t2i_{k}": v for k, v in direction(similarity.T, positives.T, ties).items()}
    metrics["rsum"] = sum(metrics[f"{direction_name}_r{k}"] for direction_name in ("i2t", "t2i") for k in (1, 5, 10))
    return metrics if ties == "expected" else metrics | cross(similarity, positives, ties)
