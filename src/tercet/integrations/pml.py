"""pytorch-metric-learning: `Loss("cir/sig-ms")(embeddings, labels, indices_tuple, ref_emb, ref_labels)`.

S is the host's distance, rows `embeddings` and columns `ref_emb`; both directions count. With `ref_emb` as captions and
the same labels this is image-text retrieval. Use it in `DistributedLossWrapper`, in miners' loops and in the
`CrossBatchMemory` of this file (the host's own takes only the losses that it knows by name).
"""

from typing import Any

import torch
from torch import Tensor

from tercet.integrations import host, made_on_first_use
from tercet.objectives import ObjectiveLike, objective


def _Loss() -> type:  # noqa: N802
    class Loss(host("pytorch_metric_learning.losses").BaseMetricLossFunction):  # type: ignore[misc]
        """An objective as a loss of this library. Pairs that a miner does not name are ignored.

        An embedding is not its own positive, which is decided by `ref_emb is embeddings`. The host's own losses decide
        it by `ref_labels is labels`, and leave out every positive pair of image-text data with one tensor of labels.
        """

        def __init__(self, which: ObjectiveLike, *, settings: dict[str, Any] | None = None, **host_options: Any) -> None:
            super().__init__(**host_options)
            self.objective = objective(which, **(settings or {}))

        def compute_loss(
            self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Any
        ) -> dict[str, Any]:
            if labels is None and indices_tuple is None:
                raise ValueError("give labels, equal for positives, or indices_tuple")
            distance = self.distance(embeddings, ref_emb)
            similarity = distance if self.distance.is_inverted else -distance
            positives, ignored = _masks(similarity, labels, indices_tuple, ref_labels)
            if ref_emb is embeddings:
                ignored = ignored | torch.eye(len(similarity), dtype=torch.bool, device=ignored.device)
            scalar = self.objective.on_similarity(similarity, positives, ignored)
            return {"loss": {"losses": scalar, "indices": None, "reduction_type": "already_reduced"}}

        def get_default_distance(self) -> Any:
            return host("pytorch_metric_learning.distances").CosineSimilarity()

    return Loss


def _masks(similarity: Tensor, labels: Any, indices_tuple: Any, ref_labels: Any) -> tuple[Tensor, Tensor]:
    """(positives, ignored), by label or as named by a miner in triplets or in pairs."""
    named = torch.zeros_like(similarity, dtype=torch.bool)
    if indices_tuple is None:
        return labels[:, None] == ref_labels[None, :].to(labels.device), named
    anchors, positive, *others = indices_tuple
    named[anchors, positive] = True
    positives = named.clone()
    named[(anchors, *others) if len(others) == 1 else tuple(others)] = True
    return positives, ~named


def _CrossBatchMemory() -> type:  # noqa: N802
    class CrossBatchMemory(host("pytorch_metric_learning.losses").CrossBatchMemory):  # type: ignore[misc]
        """The host's memory of earlier embeddings, for any loss."""

        @classmethod
        def check_loss_support(cls, loss_name: str) -> None:
            pass

    return CrossBatchMemory


__getattr__ = made_on_first_use(_Loss, _CrossBatchMemory)
