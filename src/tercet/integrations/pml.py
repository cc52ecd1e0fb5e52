"""pytorch-metric-learning: S has rows `embeddings`, columns `ref_emb`; pairs that a miner does not name are ignored."""

from typing import Any

import torch
from torch import Tensor

from tercet.integrations import host, made_on_first_use, without_state
from tercet.objectives import ObjectiveLike


def _Loss() -> type:  # noqa: N802
    class Loss(host("pytorch_metric_learning.losses").BaseMetricLossFunction):  # type: ignore[misc]
        """An embedding is not its own positive where `ref_emb is embeddings`; the host asks `ref_labels is labels`."""

        def __init__(self, which: ObjectiveLike, **settings: Any) -> None:
            super().__init__()
            self.objective = without_state(which, **settings)

        def compute_loss(
            self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Any
        ) -> dict[str, Any]:
            if labels is None and indices_tuple is None:
                raise ValueError("give labels, equal for positives, or indices_tuple")
            similarity = self.distance(embeddings, ref_emb) * (1 if self.distance.is_inverted else -1)
            positives, ignored = _masks(similarity, labels, indices_tuple, ref_labels)
            if ref_emb is embeddings:
                ignored.fill_diagonal_(True)
            scalar = self.objective.on_similarity(similarity, positives, ignored)
            return {"loss": {"losses": scalar, "indices": None, "reduction_type": "already_reduced"}}

        def get_default_distance(self) -> Any:
            return host("pytorch_metric_learning.distances").CosineSimilarity()

    return Loss


def _masks(similarity: Tensor, labels: Any, indices_tuple: Any, ref_labels: Any) -> tuple[Tensor, Tensor]:
    """(positives, ignored), by label or as named by a miner in triplets or in pairs."""
    named = torch.zeros_like(similarity, dtype=torch.bool)
    if indices_tuple is None:
        return labels[:, None] == ref_labels.to(labels.device), named
    named[indices_tuple[0], indices_tuple[1]] = True
    positives = named.clone()
    named[indices_tuple[-2] if len(indices_tuple) == 4 else indices_tuple[0], indices_tuple[-1]] = True
    return positives, ~named


def _CrossBatchMemory() -> type:  # noqa: N802
    class CrossBatchMemory(host("pytorch_metric_learning.losses").CrossBatchMemory):  # type: ignore[misc]
        """The host's memory of earlier embeddings, for any loss."""

        @classmethod
        def check_loss_support(cls, loss_name: str) -> None:
            pass

    return CrossBatchMemory


__getattr__ = made_on_first_use(_Loss, _CrossBatchMemory)
