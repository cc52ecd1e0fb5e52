"""The table of metrics. Their values are compared with plain Python in test_evaluator.py, ties included."""

import torch

import tercet
from tercet.evaluation.metrics import METRICS, metric_names


def test_all_metrics_of_a_perfect_model_are_at_their_best():
    found = tercet.evaluate(torch.eye(12), torch.eye(12, dtype=torch.bool))
    assert all(found[f"t2i_{name}"] == metric.scale for name, metric in METRICS.items())


def test_names_that_can_select_weights():
    names = metric_names(larger_is_better=True)
    assert {"rsum", "i2t_ar", "t2i_mrr", "i2t_map", "t2i_fr5"} <= set(names)
    assert not any("rank" in name or name.endswith(("meanr", "medr", "queries")) for name in names)
