"""All-gather of embeddings and ids over ranks, with an exact gradient.

Every rank computes the scalar of the global batch. In backward each rank sums the gradients that all ranks computed for
its own rows (reduce-scatter), which is world size x the gradient of its rows. Averaging over ranks, as DDP does, then
gives the gradient of one process on the global batch.

Ranks tell each other the shapes first: collectives on unequal ones abort the process, or wait for ever.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

# torch 2.13 renamed both and warns about the old names; torch 2.6 has only the old names.
_all_gather: Callable[[Tensor, Tensor], Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[[Tensor, Tensor], Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool)
MESSAGE_LENGTH = 16
"""Numbers that a rank tells the others before it sends rows."""
REFUSED = -1


def gather_batch(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    image_ids: Int[Tensor, " image"],
    caption_ids: Int[Tensor, " caption"],
    given: Mapping[str, bool],
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(images, captions, (image_ids, caption_ids)) of all ranks in rank order; local sizes may differ.

    `given`: which optional arguments the caller gave; without image_ids= the ids are local row indices, which get an
    offset per rank to be globally unique. `ValueError` on every rank if ranks differ in what must be equal.
    """
    of_images, of_captions = _exchange({"images": images, "captions": captions}, given)
    if not given["image_ids="]:
        offset = sum(of_images.counts[: dist.get_rank()])
        image_ids, caption_ids = image_ids + offset, caption_ids + offset
    ids = _all_gather_padded(image_ids, of_images.counts), _all_gather_padded(caption_ids, of_captions.counts)
    return _differentiable_all_gather(images, of_images), _differentiable_all_gather(captions, of_captions), ids


def all_gather_rows(local: Tensor) -> Tensor:
    """The rows of all ranks in rank order; differentiable for floating-point tensors."""
    (sizes,) = _exchange({"rows": local}, {})
    return _differentiable_all_gather(local, sizes)


@contextmanager
def refused_on_every_rank(local: object) -> Iterator[None]:
    """Around checks of this rank's own input: if they fail, the others raise too instead of waiting for its rows."""
    try:
        yield
    except ValueError:
        device = local.device if isinstance(local, Tensor) else torch.device("cpu")
        _all_gather_message([REFUSED], device)
        raise


class _Sizes(NamedTuple):
    """Of one tensor on all ranks."""

    counts: list[int]
    """Rows on each rank."""
    requires_grad: bool
    """On any rank. Then every rank takes part in the reduce-scatter of backward."""


def _exchange(tensors: Mapping[str, Tensor], given: Mapping[str, bool]) -> list[_Sizes]:
    """Tell the other ranks the sizes; `ValueError` on every rank if dtypes, shapes of a row or `given` differ."""
    labels: list[tuple[str, Callable[[int], str]]] = [("gradients", lambda on: "enabled" if on else "disabled")]
    values = [int(torch.is_grad_enabled())]
    for name, is_given in given.items():
        labels.append((name, lambda on: "given" if on else "not given"))
        values.append(int(is_given))
    for name, tensor in tensors.items():
        labels += [(f"dtype of {name}", _dtype_name), (f"number of axes of {name}", str)]
        labels += [(f"size of axis {axis} of {name}", str) for axis in range(1, tensor.ndim)]
        values += [_dtype_code(tensor.dtype), tensor.ndim, *tensor.shape[1:]]
    own = [number for tensor in tensors.values() for number in (len(tensor), int(tensor.requires_grad))]
    ranks = _all_gather_message([*own, *values], next(iter(tensors.values())).device)
    for rank, message in enumerate(ranks):
        if message[0] == REFUSED:
            raise ValueError(f"the batch of rank {rank} was refused there, for the reason that it gives")
    for position, (name, shown) in enumerate(labels, start=len(own)):
        of_ranks = [message[position] for message in ranks]
        for rank, value in enumerate(of_ranks):
            if value != of_ranks[0]:
                raise ValueError(
                    f"{name}: {shown(of_ranks[0])} on rank 0 and {shown(value)} on rank {rank}; it must be the same "
                    "on every rank"
                )
    return [
        _Sizes([message[n] for message in ranks], any(message[n + 1] for message in ranks))
        for n in range(0, len(own), 2)
    ]


def _dtype_code(dtype: torch.dtype) -> int:
    return DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES)


def _dtype_name(code: int) -> str:
    return str(DTYPES[code]).removeprefix("torch.") if code < len(DTYPES) else "another"


def _all_gather_message(numbers: list[int], device: torch.device) -> list[list[int]]:
    local = torch.tensor(numbers + [0] * (MESSAGE_LENGTH - len(numbers)), device=device)
    gathered = local.new_empty(dist.get_world_size() * MESSAGE_LENGTH)
    _all_gather(gathered, local)
    messages: list[list[int]] = gathered.view(-1, MESSAGE_LENGTH).tolist()
    return messages


def _all_gather_padded(local: Tensor, counts: list[int]) -> Tensor:
    """All-gather. Collectives need equal shapes: rows are padded to the largest count and cut again."""
    padded = _padded(local, max(counts))
    gathered = padded.new_empty(len(counts) * len(padded), *padded.shape[1:])
    _all_gather(gathered, padded)
    by_rank = gathered.split(len(padded))
    return torch.cat([rows[:count] for rows, count in zip(by_rank, counts, strict=True)])


def _padded(local: Tensor, length: int) -> Tensor:
    return torch.cat([local, local.new_zeros(length - len(local), *local.shape[1:])]).contiguous()


def _differentiable_all_gather(local: Tensor, sizes: _Sizes) -> Tensor:
    if sizes.requires_grad and torch.is_grad_enabled() and not local.requires_grad:
        local = local.detach().requires_grad_()  # without it this rank's backward would leave the others waiting
    gathered: Tensor = _Gather.apply(local, sizes.counts)  # type: ignore[no-untyped-call]
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
