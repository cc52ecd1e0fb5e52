"""What a run executes on: the device, its random generators, and the process group of several processes.

`torchrun --nproc-per-node 2 -m tercet train ...` trains in several processes: each takes its shard of every batch, and
negatives come from all shards. The objective all-gathers embeddings with an exact gradient; here gradients of weights
are averaged, so that every process makes the step that one process would make on the whole batch.
"""

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from tercet.interfaces import TorchModule
from tercet.objectives.distributed import all_gather_rows
from tercet.types import Batch, MinedItems, PairMask

Items = TypeVar("Items", Batch, MinedItems)
SECONDS_BETWEEN_LOOKS = 1.0  # at the launcher


def to_device(batch: Batch, device: torch.device, precision: str) -> Batch:
    """Return this process's shard of the batch, on its device and in the run's precision."""
    if dist.is_available() and dist.is_initialized():
        batch = shard_batch(batch, *world())
    if device.type == "cpu" and precision != "float64":
        return batch
    dtype = torch.float64 if precision == "float64" else torch.float32
    mined = None if batch.mined is None else _moved(batch.mined, device, dtype)
    return replace(_moved(batch, device, dtype), mined=mined)


def _moved(items: Items, device: torch.device, dtype: torch.dtype) -> Items:
    moved: dict[str, Any] = {
        name: value.to(device, dtype if value.is_floating_point() else value.dtype)
        for name, value in vars(items).items()
        if isinstance(value, Tensor)
    }
    return replace(items, **moved)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the random generators of the CPU and of the device in use.

    `torch.manual_seed` also records a stack trace for every missing device type, which takes a millisecond per call
    and is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def select_device(name: str | None) -> torch.device:
    """Return the named device; without a name, cuda if available, else cpu."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"--device must be cpu, cuda or cuda:N for the GPU N, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is available here; leave the setting out to train on the CPU")
    return device


def world() -> tuple[int, int]:
    """Return (rank, world size); (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if _initialised() else (0, 1)


def is_main_process() -> bool:
    """Whether this process is rank 0, the one that writes files and logs."""
    return world()[0] == 0


@contextmanager
def distributed_run(device: str) -> Iterator[None]:
    """Initialize the process group under torchrun; do nothing in a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or _initialised():
        yield
        return
    _check_launcher()
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with _stopped_without_launcher():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        try:
            yield
        except RuntimeError as error:
            if re.search(r"connection (closed|reset) by peer", str(error), re.IGNORECASE) is None:
                raise
            raise ValueError(
                f"rank {dist.get_rank()} stopped because another process of the run has ended; its own message, if it "
                "was not killed, says why. Run the command again to resume"
            ) from error
        finally:
            dist.destroy_process_group()


def _check_launcher() -> None:
    """Raise `ValueError` if torchrun, through which the processes find each other, was killed meanwhile.

    torch would try to reach it for half an hour.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection(address, timeout=60).close()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"torchrun is gone: no answer from {address[0]}, port {address[1]}: {reason}") from error


@contextmanager
def _stopped_without_launcher() -> Iterator[None]:
    """Under torchrun, stop as on SIGTERM if it is killed: the run would continue on its own, in a locked folder."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, ended = os.getppid(), threading.Event()

    def watch() -> None:
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def shard_batch(batch: Batch, rank: int, count: int) -> Batch:
    """Return the images of this rank with the captions of the same rows or, if counts differ, the captions of them.

    Every rank makes the whole batch first, so that its randomness does not depend on the number of processes.
    """
    rows = len(batch.image_ids)
    start, end = rows * rank // count, rows * (rank + 1) // count
    images = slice(start, end)
    if rows == len(batch.caption_ids):
        captions: slice | Tensor = images
    else:
        # A caption goes with the first of its images; mined captions, whose images are not here, are spread evenly.
        is_own = batch.caption_ids[:, None] == batch.image_ids[None, :]
        row = torch.where(
            is_own.any(dim=1), is_own.int().argmax(dim=1), torch.arange(len(is_own)) * rows // len(is_own)
        )
        captions = (row >= start) & (row < end)
    return replace(
        batch,
        images=batch.images[images],
        captions=batch.captions[captions],
        image_ids=batch.image_ids[images],
        caption_ids=batch.caption_ids[captions],
        image_lengths=None if batch.image_lengths is None else batch.image_lengths[images],
        caption_lengths=None if batch.caption_lengths is None else batch.caption_lengths[captions],
        mined=None if batch.mined is None else _mined_shard(batch.mined, batch.positives(), images),
    )


def _mined_shard(mined: MinedItems, positives: PairMask, images: slice) -> MinedItems:
    """Return the mined items of the positive pairs of these images, with captions of all ranks."""
    image = positives.nonzero()[:, 0]
    pairs = (image >= images.start) & (image < images.stop)
    image_items, image_indices = mined.image_indices[pairs].unique(return_inverse=True)
    caption_items, caption_indices = mined.caption_indices[pairs].unique(return_inverse=True)
    return MinedItems(
        mined.images[image_items],
        mined.captions[caption_items],
        image_indices,
        caption_indices,
        None if mined.image_lengths is None else mined.image_lengths[image_items],
        None if mined.caption_lengths is None else mined.caption_lengths[caption_items],
    )


def average_gradients(model: TorchModule, stop: bool = False) -> bool:
    """Average the gradients over all processes in one all-reduce; return whether `stop` is true in any of them."""
    if not _initialised():
        return stop
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return any_process(stop)
    # A parameter may have a gradient on some ranks only, for example where a rank has no rows: it counts as 0 there.
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flags = gradients[0].new_tensor([*(p.grad is not None for p in parameters), stop])
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), flags])
    dist.all_reduce(flat)
    *averages, flags = (flat / dist.get_world_size()).split([*(p.numel() for p in parameters), len(flags)])
    *has_gradient, any_stop = flags.tolist()
    for parameter, average, has_any in zip(parameters, averages, has_gradient, strict=True):
        if has_any:
            parameter.grad = average.view_as(parameter)
    return bool(any_stop)


def all_gather_items(local: Shaped[Tensor, "item *rest"]) -> Shaped[Tensor, "global_item *padded"]:
    """All-gather rows with an exact gradient; sets of regions or words are padded to the longest of all ranks."""
    if local.ndim == 3:
        longest = torch.tensor(local.shape[1], device=local.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        local = F.pad(local, (0, 0, 0, int(longest) - local.shape[1]))
    return all_gather_rows(local)


def from_main(value: int) -> int:
    """Return the value of rank 0 on every rank."""
    values = [value]
    if _initialised():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def any_process(flag: bool) -> bool:
    """Whether the flag is true in any process; a barrier as well."""
    if not _initialised():
        return flag
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)


def barrier() -> None:
    if _initialised():
        dist.barrier()


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()
