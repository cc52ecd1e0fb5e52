"""GradCache (Gao et al., 2021): the exact gradient of a batch whose activations do not fit into memory.

Everything is encoded in chunks without a graph; the objective sees the whole batch and gives the gradient with respect
to the embeddings; then each chunk is encoded again, with the same random state, and its rows of that gradient are
propagated to the weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tercet.data.samplers import step_seed
from tercet.interfaces import TorchModule
from tercet.similarity import concat_padded
from tercet.training.runtime import reseed

Encode = Callable[[Tensor, Tensor | None], Tensor]


class CachedEncoding:
    """Images or captions of a batch: `embeddings` without a graph, and the gradient of the weights by `backward`."""

    def __init__(self, encode: Encode, items: Tensor, lengths: Tensor | None, chunk_size: int, seed: int) -> None:
        self.encode, self.seed = encode, seed
        chunks = items.split(chunk_size)
        chunk_lengths = [None] * len(chunks) if lengths is None else lengths.split(chunk_size)
        self.chunks = list(zip(chunks, chunk_lengths, strict=True))
        with torch.no_grad():
            encoded = [self._encode_chunk(index) for index in range(len(self.chunks))]
        embeddings = concat_padded(encoded) if encoded[0].ndim == 3 else torch.cat(encoded)
        self.embeddings = embeddings.requires_grad_()

    def backward(self) -> None:
        """Propagate the gradient of the embeddings to the weights."""
        gradient = self.embeddings.grad
        if gradient is None:
            return
        start = 0
        for index, (items, _) in enumerate(self.chunks):
            encoded = self._encode_chunk(index)
            if encoded.requires_grad:  # False if this encoder is frozen
                rows = gradient[start : start + len(items)]
                encoded.backward(rows[:, : encoded.shape[1]])  # sets were padded to the longest of the batch
            start += len(items)

    def _encode_chunk(self, index: int) -> Tensor:
        items, lengths = self.chunks[index]
        reseed(step_seed(self.seed, index), items.device)
        return self.encode(items, lengths)


def refuse_batch_norm(model: TorchModule, reason: str) -> None:
    """Raise if the model has a BatchNorm in training mode: its statistics would not be those of the whole batch."""
    for name, module in model.named_modules():
        if _is_batch_norm(module):
            raise ValueError(f"{name} is a BatchNorm, whose statistics would not be of the whole batch: {reason}")


def has_batch_norm(model: TorchModule) -> bool:
    return any(map(_is_batch_norm, model.modules()))


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
