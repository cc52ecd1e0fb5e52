"""Metrics from their definition: a loop over every order of tied candidates, the slow and obvious way."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

import tercet
from tercet.evaluation.metrics import METRICS, metric_names


def by_definition(ordered: list[bool]) -> dict[str, float]:
    """The metrics of one query, from the relevance of its candidates in their order."""
    ranks = [rank for rank, relevant in enumerate(ordered, start=1) if relevant]
    precisions = [(nth + 1) / rank for nth, rank in enumerate(ranks)]
    return {
        "mrr": 1 / ranks[0],
        "map": sum(precisions) / len(ranks),
        **{f"r{k}": 100.0 * (ranks[0] <= k) for k in (1, 5, 10)},
        **{f"fr{k}": 100 * sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 5, 10)},
        "map5": sum(p for p, rank in zip(precisions, ranks, strict=True) if rank <= 5) / min(5, len(ranks)),
        "ndcg": sum(1 / np.log2(1 + rank) for rank in ranks)
        / sum(1 / np.log2(1 + rank) for rank in range(1, len(ranks) + 1)),
    }


def all_orders(similarity: np.ndarray, positives: np.ndarray) -> list[dict[str, float]]:
    """The metrics under every order of the candidates that agrees with the similarities."""
    return [
        by_definition([bool(positives[column]) for column in order])
        for order in permutations(range(len(similarity)))
        if all(similarity[a] >= similarity[b] for a, b in pairwise(order))
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("levels", [100, 3, 2, 1])
def test_every_metric_is_the_mean_over_all_orders_of_ties(seed, levels):
    random = np.random.default_rng(seed)
    similarity = random.integers(0, levels, (3, 7)) / levels if levels < 100 else random.permutation(21).reshape(3, 7)
    positives = random.random((3, 7)) < 0.4
    positives[:, random.integers(7)] = True
    found = tercet.evaluate(torch.tensor(similarity).double(), torch.tensor(positives), ties="expected")
    for name in by_definition([True]):
        queries = [
            np.mean([metrics[name] for metrics in all_orders(row, relevant)])
            for row, relevant in zip(similarity, positives, strict=True)
        ]
        assert found[f"i2t_{name}"] == pytest.approx(np.mean(queries), abs=1e-12), name


def test_all_metrics_of_a_perfect_model_are_at_their_best():
    found = tercet.evaluate(torch.eye(12), torch.eye(12, dtype=torch.bool))
    assert all(found[f"t2i_{name}"] == metric.scale for name, metric in METRICS.items())


def test_names_that_can_select_weights():
    names = metric_names(larger_is_better=True)
    assert {"rsum", "i2t_ar", "t2i_mrr", "i2t_map", "t2i_fr5"} <= set(names)
    assert not any("rank" in name or name.endswith(("meanr", "medr", "queries")) for name in names)
