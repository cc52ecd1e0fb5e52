"""Negatives from every process: embeddings and ids of all ranks, gathered with an exact gradient.

Every rank computes the scalar of the whole batch. In backward each rank sums what all ranks send for its own rows,
which is world size x the gradient of its rows; averaging over ranks, as DDP does, then gives the gradient that one
process would have found on the whole batch.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

# torch 2.13 renamed both and warns about the old names; torch 2.6 has only those.
_all_gather: Callable[[Tensor, Tensor], Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[[Tensor, Tensor], Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


def in_use() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def everyones(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    image_ids: Int[Tensor, " image"],
    caption_ids: Int[Tensor, " caption"],
    *,
    ids_are_rows: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(images, captions, (image_ids, caption_ids)) of all ranks in rank order; local sizes may differ.

    Ids that are row numbers of this rank are first told apart from those of other ranks.
    """
    image_counts, caption_counts = _counts(images), _counts(captions)
    if ids_are_rows:
        before = sum(image_counts[: dist.get_rank()])
        image_ids, caption_ids = image_ids + before, caption_ids + before
    ids = _concatenated(image_ids, image_counts), _concatenated(caption_ids, caption_counts)
    return _gathered(images, image_counts), _gathered(captions, caption_counts), ids


def rows_of_all(local: Tensor) -> Tensor:
    """Of all ranks in rank order, with their gradient; numbers that are not learned come without one."""
    counts = _counts(local)
    return _gathered(local, counts) if local.is_floating_point() else _concatenated(local, counts)


def _counts(local: Tensor) -> list[int]:
    mine = torch.tensor([len(local)], device=local.device)
    counts = mine.new_empty(dist.get_world_size())
    _all_gather(counts, mine)
    return [int(count) for count in counts]


def _concatenated(local: Tensor, counts: list[int]) -> Tensor:
    """Collectives move equal shapes: rows are padded to the largest count and cut again."""
    padded = _padded(local, max(counts))
    everything = padded.new_empty(len(counts) * len(padded), *padded.shape[1:])
    _all_gather(everything, padded)
    parts = everything.split(len(padded))
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _padded(local: Tensor, length: int) -> Tensor:
    return torch.cat([local, local.new_zeros(length - len(local), *local.shape[1:])]).contiguous()


def _gathered(local: Tensor, counts: list[int]) -> Tensor:
    gathered: Tensor = _Gather.apply(local, counts)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All rows forward; backward, the sum over ranks of the gradients of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        return _concatenated(local, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        longest = max(ctx.counts)
        padded = torch.cat([_padded(part, longest) for part in gradient.split(ctx.counts)])
        mine = padded.new_empty(longest, *padded.shape[1:])
        _reduce_scatter(mine, padded)
        return mine[: ctx.counts[dist.get_rank()]], None
