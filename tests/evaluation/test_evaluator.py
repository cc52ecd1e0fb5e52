"""Metrics against slow sorting in plain Python, and the conventions of the design."""

import doctest

import pytest
import torch

import tercet
import tercet.evaluation.evaluator
from tests.objectives.batches import CASES


def slow_metrics(similarity, positives):
    """One direction, by sorting: on a tie the negative comes first."""
    best, average, published = [], [], []
    for row, mask in zip(similarity.tolist(), positives.tolist(), strict=True):
        if not any(mask):
            continue
        order = sorted(range(len(row)), key=lambda j: (-row[j], mask[j]))
        ranks = [position + 1 for position, j in enumerate(order) if mask[j]]
        best.append(ranks[0])
        hits = [rank for rank in ranks if rank <= 5]
        precision = sum((index + 1) / rank for index, rank in enumerate(hits))
        average.append(precision / min(5, len(ranks)))
        published.append(precision / len(hits) if hits else 0.0)
    ordered = sorted(best)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    recalls = {f"r{k}": 100 * sum(rank <= k for rank in best) / len(best) for k in (1, 5, 10)}
    return {
        **recalls,
        "ar": sum(recalls.values()) / 3,
        "medr": float(int(median)),
        "meanr": sum(best) / len(best),
        "map5": sum(average) / len(average),
        "map5_published": sum(published) / len(published),
        "queries": len(best),
    }


@pytest.mark.parametrize("decimals", [1, 6], ids=["many ties", "no ties"])
@pytest.mark.parametrize("case", CASES)
def test_metrics_equal_sorting_by_hand(case, decimals):
    similarity, positives, _ = CASES[case]
    similarity = similarity.round(decimals=decimals)
    metrics = tercet.evaluate(similarity, positives)
    expected = {f"i2t_{k}": v for k, v in slow_metrics(similarity, positives).items()}
    expected |= {f"t2i_{k}": v for k, v in slow_metrics(similarity.T, positives.T).items()}
    expected["rsum"] = sum(expected[f"{side}_r{k}"] for side in ("i2t", "t2i") for k in (1, 5, 10))
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, abs=1e-12)


def test_a_collapsed_model_scores_zero():
    positives = torch.arange(20)[:, None] == torch.arange(20).repeat_interleave(5)[None, :]
    metrics = tercet.evaluate(torch.zeros(20, 100), positives)
    assert metrics["rsum"] == 0


def test_nothing_to_rank_is_an_error(without_shape_checks):
    with pytest.raises(ValueError, match="nothing to evaluate"):
        tercet.evaluate(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="NaN"):
        tercet.evaluate(torch.full((2, 2), torch.nan), torch.eye(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3\)"):
        tercet.evaluate(torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.bool))


def test_docstring_examples_are_true():
    assert doctest.testmod(tercet.evaluation.evaluator).failed == 0
