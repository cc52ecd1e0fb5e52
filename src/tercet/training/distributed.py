"""More devices: each process takes its share of every batch, negatives come from all of them.

`torchrun --nproc-per-node 2 -m tercet.cli train ...`. The objective gathers embeddings with an exact gradient; here
gradients of weights are averaged, so that every process makes the step that one process would make on the whole batch.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor, nn

from tercet.contracts import Batch, MinedItems, PairMask
from tercet.objectives.distributed import rows_of_all


def world() -> tuple[int, int]:
    """(rank, number of processes)."""
    return (dist.get_rank(), dist.get_world_size()) if _together() else (0, 1)


def leads() -> bool:
    """Whether this process writes and speaks."""
    return world()[0] == 0


@contextmanager
def together(device: str) -> Iterator[None]:
    """Joins the processes that torchrun started; alone, does nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or _together():
        yield
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def share_of(batch: Batch, rank: int, count: int) -> Batch:
    """This process's images, and the captions of the same rows, or of these images where there are several each.

    Made from the whole batch, so that what is random about it does not depend on the number of processes.
    """
    rows = len(batch.image_ids)
    start, end = rows * rank // count, rows * (rank + 1) // count
    images = slice(start, end)
    if rows == len(batch.caption_ids):
        captions: slice | Tensor = images
    else:
        # With the first of their images; mined ones, whose images are elsewhere, are shared out.
        is_own = batch.caption_ids[:, None] == batch.image_ids[None, :]
        place = torch.where(
            is_own.any(dim=1), is_own.int().argmax(dim=1), torch.arange(len(is_own)) * rows // len(is_own)
        )
        captions = (place >= start) & (place < end)
    return replace(
        batch,
        images=batch.images[images],
        captions=batch.captions[captions],
        image_ids=batch.image_ids[images],
        caption_ids=batch.caption_ids[captions],
        image_lengths=None if batch.image_lengths is None else batch.image_lengths[images],
        caption_lengths=None if batch.caption_lengths is None else batch.caption_lengths[captions],
        mined=None if batch.mined is None else _members_of(batch.mined, batch.positives(), images),
    )


def _members_of(mined: MinedItems, positives: PairMask, images: slice) -> MinedItems:
    """Of the pairs of these images, with captions of all processes."""
    image = positives.nonzero()[:, 0]
    pairs = (image >= images.start) & (image < images.stop)
    image_items, image_places = mined.image_places[pairs].unique(return_inverse=True)
    caption_items, caption_places = mined.caption_places[pairs].unique(return_inverse=True)
    return MinedItems(
        mined.images[image_items],
        mined.captions[caption_items],
        image_places,
        caption_places,
        None if mined.image_lengths is None else mined.image_lengths[image_items],
        None if mined.caption_lengths is None else mined.caption_lengths[caption_items],
    )


def average_gradients(model: nn.Module) -> None:
    if not _together():
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def everyones(local: Shaped[Tensor, "item *rest"]) -> Shaped[Tensor, "everyones_item *longest"]:
    """Rows of all processes, with an exact gradient; sets of parts are padded to the longest of all."""
    if local.ndim == 3:
        longest = torch.tensor(local.shape[1], device=local.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        local = F.pad(local, (0, 0, 0, int(longest) - local.shape[1]))
    return rows_of_all(local)


def wait_for_all() -> None:
    if _together():
        dist.barrier()


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()
