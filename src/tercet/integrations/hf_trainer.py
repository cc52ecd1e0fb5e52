"""Hugging Face Trainer: `Trainer(model, args, compute_loss_func=compute_loss_func("cir/sig-ms"), ...)`.

The arguments are `remove_unused_columns=False, label_names=["labels"]`: `labels` holds the id of each row's image.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tercet.integrations import host, made_on_first_use, without_state
from tercet.objectives import ObjectiveLike
from tercet.training.learned_scale import scalar_with_scale
from tercet.training.watch import Watcher


def compute_loss_func(
    which: ObjectiveLike, *, model: nn.Module | None = None, watcher: Watcher | None = None, **settings: Any
) -> Callable[..., Tensor]:
    """The loss of a CLIP-like model; `model` if its learned scale is the temperature.

    The Trainer multiplies a loss by the number of processes and never divides it by that of accumulated batches; it
    counts the labels of all of them, so that the share of this batch cancels both.
    """
    built = without_state(which, **settings)

    def loss(outputs: Any, labels: Tensor | None = None, num_items_in_batch: Any = None) -> Tensor:
        if labels is None:
            raise ValueError("the batch has no labels: add a column `labels` with the id of each row's image")
        scale, bias = (getattr(model, name, None) for name in ("logit_scale", "logit_bias"))
        embeddings, ids = (outputs.image_embeds, outputs.text_embeds), {"image_ids": labels, "caption_ids": labels}
        factors = None if scale is None else scale.exp(), bias
        if watcher is not None and outputs.image_embeds.requires_grad:  # not at an evaluation
            watcher(*embeddings, scale=factors[0], bias=bias, **ids)
        value = scalar_with_scale(built, *embeddings, *factors, **ids)
        share = 1.0 if num_items_in_batch is None else labels.numel() / num_items_in_batch
        return share * value + 0.0 * outputs.logits_per_image[0, 0]  # the scale has a gradient on every process

    return loss


def _WatchCallback() -> type:  # noqa: N802
    class WatchCallback(host("transformers").TrainerCallback):  # type: ignore[misc]
        """Appends what the watcher logs to `log_history`; `attach` if the loss is not one that calls the watcher."""

        def __init__(self, watcher: Watcher, attach: bool = True) -> None:
            self.watcher, self.attach = watcher, attach

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if self.attach:
                self.watcher.attach(rest["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if counts := self.watcher.take():
                state.log_history.append({"step": state.global_step, **counts})

    return WatchCallback


__getattr__ = made_on_first_use(_WatchCallback)
