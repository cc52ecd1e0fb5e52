"""`tercet.watch`: what an objective does inside any training loop, measured every now and then.

watcher = tercet.watch("nt-xent")                       # the objective that the loop trains with
watcher(images, captions, image_ids=a, caption_ids=b)   # in the loop; or once: watcher.attach(loss_module)
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.analysis.cocos import cocos
from tercet.objectives import ObjectiveLike, RowObjective, objective
from tercet.objectives.inputs import (
    at_least_float32,
    check_embeddings,
    ids_of_pairs,
    is_distributed,
    positives_from_ids,
)
from tercet.training.learned_scale import with_learned_scale
from tercet.training.monitor import HealthMonitor
from tercet.types import PairMask

EVERY = 200
MAX_ENTRIES = 1 << 24  # of S, which is held as a whole
NAMES = (("image_embeds", "text_embeds"), ("image_features", "text_features"))  # of transformers, of open_clip
ADVICE = {
    "collapse": "Try all negatives first (triplet), a lower learning rate, a longer warm-up or, for a backbone, to "
    "train it only after the head",
    "silent": "Try a larger margin, a larger batch, or harder negatives",
}


def watch(
    which: ObjectiveLike, /, *, every: int = EVERY, log: Callable[[str], Any] = print, **settings: Any
) -> "Watcher":
    """Return a watcher of a training loop that uses this objective, or one with the same gradient.

    Every `every` calls, and at the first, it logs one line: the monitor, the effective number of negatives, queries
    without gradient, and the share of the push on pairs that are known to match. Collapse, zero gradients and NaN are
    logged as warnings, once each. Under torch.distributed the rows of rank 0 are measured.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a number of steps from 1, got {every!r}")
    return Watcher(objective(which, **settings), every, log)


class Watcher:
    """Counts of a training loop; `latest` are the newest, `cocos`'s with flat names, and the step."""

    def __init__(self, objective: RowObjective, every: int, log: Callable[[str], Any]) -> None:
        self.objective, self.every = objective, every
        self.step = 0
        self.latest: dict[str, float] = {}
        self._log = log if not is_distributed() or torch.distributed.get_rank() == 0 else lambda _: None
        self._health = HealthMonitor(lambda warning: self._log(f"watch: step {self.step}: {warning}"), ADVICE)
        self._taken, self._refused = 0, False

    def __call__(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        *,
        owners: Int[Tensor, " caption"] | None = None,
        image_ids: Int[Tensor, " image"] | None = None,
        caption_ids: Int[Tensor, " caption"] | None = None,
        scale: float | Tensor | None = None,
        bias: float | Tensor | None = None,
        matching: PairMask | None = None,
    ) -> dict[str, float] | None:
        """Count a step. Its counts if this step is measured, else None; the arguments are those of an objective.

        `matching` marks pairs that are known to match although the loop trains them as negatives.
        """
        self.step += 1
        if self.every > 1 and self.step % self.every != 1:
            return None
        with torch.no_grad():
            check_embeddings(images, captions, scale, bias)
            images, captions = images.detach(), captions.detach()
            ids = ids_of_pairs(images, captions, owners, image_ids, caption_ids)
            if len(images) * len(captions) > MAX_ENTRIES:
                self._refuse(len(images), len(captions))
                return None
            return self._measure(at_least_float32(images @ captions.T), positives_from_ids(*ids), scale, bias, matching)

    def attach(self, module: nn.Module) -> Any:
        """Call the watcher at every forward pass of a module with gradients; `.remove()` of what returns ends that.

        The module is a loss that is called with image and text embeddings, or a model of transformers or open_clip
        that returns them. Row i of both is a pair: a loop that knows ids calls the watcher itself.
        """
        return module.register_forward_hook(self._on_forward, with_kwargs=True)

    def take(self) -> dict[str, float]:
        """The newest counts if no call has taken them yet, else nothing: for the callbacks of trainers."""
        if self._taken == self.latest.get("watch/step", 0):
            return {}
        self._taken = int(self.latest["watch/step"])
        return self.latest

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        images, captions, scale, bias = _embeddings_of(module, args, kwargs, output)
        self(images, captions, scale=scale, bias=bias)

    def _measure(
        self, similarity: Tensor, positives: PairMask, scale: Any, bias: Any, matching: PairMask | None
    ) -> dict[str, float] | None:
        if not similarity.isfinite().all():
            self._log(f"watch: step {self.step}: NaN or infinity in the embeddings")
            return None
        monitor = self.objective.monitor(similarity, positives).item()
        fitted, scale, bias = with_learned_scale(self.objective, scale, bias)
        scaled = similarity if scale is None else scale * similarity
        counts = cocos(fitted, scaled if bias is None else scaled + bias, positives, matching=matching)
        self.latest = {"watch/step": float(self.step), "watch/monitor": monitor} | {
            f"watch/{direction}_{name}": count
            for direction in ("i2t", "t2i")
            for name, count in counts[direction].items()
        }
        self._log(_line(self.step, monitor, counts))
        self._health.check_step(similarity, monitor, sum(similarity.shape), self.objective.reduction, counts)
        return self.latest

    def _refuse(self, images: int, captions: int) -> None:
        if not self._refused:
            self._log(f"watch: {images} x {captions} pairs are not measured: S may have up to {MAX_ENTRIES} entries")
        self._refused = True


def _line(step: int, monitor: float, counts: Mapping[str, Mapping[str, float]]) -> str:
    i2t, t2i = counts["i2t"], counts["t2i"]

    def both(name: str, form: str = ".1f") -> str:
        return f"{i2t[name]:{form}} i2t {t2i[name]:{form}} t2i"

    line = f"watch: step {step}: monitor {monitor:.4g}, effective negatives {both('effective')}"
    if i2t["silent"] or t2i["silent"]:
        line += f", queries without gradient {both('silent', '.0f')}"
    if "matching_share" in i2t:
        line += f", push on known matches {both('matching_share', '.1%')} (if even {both('matching_even', '.1%')})"
    return line


def _embeddings_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[Any, ...]:
    """(images, captions, scale, bias) in what a model returned, else in what a loss was called with."""
    for image, text in NAMES:
        for found in (output, kwargs):
            values = found if isinstance(found, Mapping) else vars(found) if hasattr(found, "__dict__") else {}
            if isinstance(values.get(image), Tensor) and isinstance(values.get(text), Tensor):
                return values[image], values[text], *_factors(module, values)
    if len(args) >= 2 and all(isinstance(value, Tensor) and value.ndim == 2 for value in args[:2]):
        scale, bias = (*args[2:4], None, None)[:2]
        return args[0], args[1], kwargs.get("logit_scale", scale), kwargs.get("logit_bias", bias)
    names = " or ".join(f"{image} and {text}" for image, text in NAMES)
    raise ValueError(
        f"{type(module).__name__} neither returns {names} nor is called with two embeddings: call the watcher in the "
        "loop, watcher(images, captions)"
    )


def _factors(module: nn.Module, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """Scale and bias: as handed on by open_clip, where the scale is its exponential; else the model's parameters."""
    if "logit_scale" in values:
        return values["logit_scale"], values.get("logit_bias")
    scale = getattr(module, "logit_scale", None)
    return None if scale is None else scale.exp(), getattr(module, "logit_bias", None)
