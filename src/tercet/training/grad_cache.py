"""The exact gradient of a batch that does not fit into memory: GradCache (Gao et al., 2021).

Everything is encoded once without a graph, a part at a time; the objective sees the whole batch and gives the gradient
on embeddings; then each part is encoded again, with the same random numbers, and handed its share of that gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tercet.data.meetings import step_seed
from tercet.similarity import joined
from tercet.training.randomness import reseed

Encode = Callable[[Tensor, Tensor | None], Tensor]


class Cached:
    """One side of a batch: embeddings now, the gradient of the weights later."""

    def __init__(self, encode: Encode, items: Tensor, lengths: Tensor | None, at_once: int, seed: int) -> None:
        self.encode, self.seed = encode, seed
        parts = items.split(at_once)
        self.parts = list(zip(parts, [None] * len(parts) if lengths is None else lengths.split(at_once), strict=True))
        with torch.no_grad():
            found = [self._encoded(number) for number in range(len(self.parts))]
        encoded = joined(found) if found[0].ndim == 3 else torch.cat(found)
        self.embedded = encoded.requires_grad_()

    def backward(self) -> None:
        """From the gradient that arrived on the embeddings."""
        gradient = self.embedded.grad
        if gradient is None:
            return
        start = 0
        for number, (items, _) in enumerate(self.parts):
            encoded = self._encoded(number)
            if encoded.requires_grad:  # not where this side is frozen
                share = gradient[start : start + len(items)]
                encoded.backward(share[:, : encoded.shape[1]])  # sets of parts were padded to the longest of the batch
            start += len(items)

    def _encoded(self, number: int) -> Tensor:
        items, lengths = self.parts[number]
        reseed(step_seed(self.seed, number), items.device)
        return self.encode(items, lengths)


def refuse_batch_norm(model: nn.Module, why: str) -> None:
    """Its statistics would be those of a part, not of the batch."""
    for name, part in model.named_modules():
        if _is_batch_norm(part):
            raise ValueError(f"{name} is a BatchNorm, whose statistics would be those of a part of the batch: {why}")


def has_batch_norm(model: nn.Module) -> bool:
    return any(map(_is_batch_norm, model.modules()))


def _is_batch_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training
