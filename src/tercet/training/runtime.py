"""Runtime of a run: choosing a device, moving a batch to it, seeding a step, and Ctrl-C between two steps."""

import signal
import threading
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tercet.training import process_group
from tercet.types import Batch, MinedItems

Items = TypeVar("Items", Batch, MinedItems)


def to_device(batch: Batch, device: torch.device, precision: str) -> Batch:
    """Return this process's shard of the batch, on its device and in the run's precision."""
    if dist.is_available() and dist.is_initialized():
        batch = process_group.shard_batch(batch, *process_group.world())
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


class Interrupt:
    """Turns Ctrl-C into the flag `requested`, so that the current step is finished; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous_handler: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def select_device(name: str | None) -> torch.device:
    """Return the named device; without a name, cuda if available, else cpu."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"--device: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is available")
    return device
