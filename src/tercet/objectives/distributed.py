"""All-gather of embeddings and ids over ranks, with an exact gradient.

Every rank computes the scalar of the global batch. In backward each rank sums the gradients that all ranks computed for
its own rows (reduce-scatter), which is world size x the gradient of its rows. Averaging over ranks, as DDP does, then
gives the gradient of one process on the global batch.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

# torch 2.13 renamed both and warns about the old names; torch 2.6 has only the old names.
_all_gather: Callable[[Tensor, Tensor], Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[[Tensor, Tensor], Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


def gather_batch(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    image_ids: Int[Tensor, " image"],
    caption_ids: Int[Tensor, " caption"],
    *,
    ids_are_rows: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(images, captions, (image_ids, caption_ids)) of all ranks in rank order; local sizes may differ.

    `ids_are_rows`: the ids are local row indices, which get an offset per rank to be globally unique.
    """
    image_counts, caption_counts = _counts(images), _counts(captions)
    if ids_are_rows:
        offset = sum(image_counts[: dist.get_rank()])
        image_ids, caption_ids = image_ids + offset, caption_ids + offset
    ids = _all_gather_padded(image_ids, image_counts), _all_gather_padded(caption_ids, caption_counts)
    return _differentiable_all_gather(images, image_counts), _differentiable_all_gather(captions, caption_counts), ids


def all_gather_rows(local: Tensor) -> Tensor:
    """The rows of all ranks in rank order; differentiable for floating-point tensors."""
    counts = _counts(local)
    return _differentiable_all_gather(local, counts) if local.is_floating_point() else _all_gather_padded(local, counts)


def _counts(local: Tensor) -> list[int]:
    local_count = torch.tensor([len(local)], device=local.device)
    counts = local_count.new_empty(dist.get_world_size())
    _all_gather(counts, local_count)
    return [int(count) for count in counts]


def _all_gather_padded(local: Tensor, counts: list[int]) -> Tensor:
    """All-gather. Collectives need equal shapes: rows are padded to the largest count and cut again."""
    padded = _padded(local, max(counts))
    gathered = padded.new_empty(len(counts) * len(padded), *padded.shape[1:])
    _all_gather(gathered, padded)
    by_rank = gathered.split(len(padded))
    return torch.cat([rows[:count] for rows, count in zip(by_rank, counts, strict=True)])


def _padded(local: Tensor, length: int) -> Tensor:
    return torch.cat([local, local.new_zeros(length - len(local), *local.shape[1:])]).contiguous()


def _differentiable_all_gather(local: Tensor, counts: list[int]) -> Tensor:
    gathered: Tensor = _Gather.apply(local, counts)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """Forward: all-gather. Backward: reduce-scatter, the sum over ranks of the gradients of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        return _all_gather_padded(local, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        length = max(ctx.counts)
        padded = torch.cat([_padded(rows, length) for rows in gradient.split(ctx.counts)])
        local = padded.new_empty(length, *padded.shape[1:])
        _reduce_scatter(local, padded)
        return local[: ctx.counts[dist.get_rank()]], None
