"""sentence-transformers: columns anchor, positive, hard negatives; `label`: rows with equal ids are positives."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.integrations import host, made_on_first_use, without_state
from tercet.objectives import ObjectiveLike
from tercet.objectives.inputs import is_distributed


class Loss(nn.Module):
    """The objective on the batch of all processes. `freeze_unused` freezes the scale of a CLIP model."""

    def __init__(self, model: nn.Module, which: ObjectiveLike, *, freeze_unused: bool = False, **settings: Any) -> None:
        super().__init__()
        self.model, self.objective = model, without_state(which, **settings)
        unused = {name: p for name, p in model.named_parameters() if name.endswith(("logit_scale", "logit_bias"))}
        if freeze_unused and nn.ParameterList(unused.values()).requires_grad_(False):
            warnings.warn(f"frozen, since the loss does not use it: {', '.join(unused)}", stacklevel=2)

    def forward(self, features: list[Any], labels: Tensor | None = None) -> Tensor:
        return self.compute_loss_from_embeddings([self.model(f)["sentence_embedding"] for f in features], labels)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        anchors, *candidates = [F.normalize(column, dim=1) for column in embeddings]
        first = torch.distributed.get_rank() << 32 if is_distributed() else 0  # ids that no other process has
        labels = torch.arange(len(anchors), device=anchors.device) + first if labels is None else labels
        negatives = labels.new_full((sum(map(len, candidates[1:])),), torch.iinfo(torch.int64).min)
        return self.objective(
            anchors, torch.cat(candidates), image_ids=labels, caption_ids=torch.cat([labels, negatives])
        )

    def get_config_dict(self) -> dict[str, Any]:
        return {"objective": self.objective.name, **self.objective.settings}


def _CachedLoss() -> type:  # noqa: N802
    mixin = host("sentence_transformers.base.losses").CachedLossMixin

    class CachedLoss(mixin, Loss):  # type: ignore[misc,valid-type]
        forward = mixin.forward_cached

        def __init__(self, model: nn.Module, which: ObjectiveLike, mini_batch_size: int = 32, **rest: Any) -> None:
            super().__init__(model, which, **rest)
            self.mini_batch_size = mini_batch_size

        def calculate_loss(self, reps: Any, labels: Any = None, *, with_backward: bool = False) -> Tensor:
            loss = self.compute_loss_from_embeddings([torch.cat(parts) for parts in reps], labels)
            if with_backward:
                loss.backward()
            return loss.detach() if with_backward else loss

    return CachedLoss


__getattr__ = made_on_first_use(_CachedLoss)
