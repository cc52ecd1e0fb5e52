"""A batch where it is worked on: this process's share, on its device, in the run's precision."""

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tercet.contracts import Batch, MinedItems
from tercet.training import distributed
from tercet.training.settings import TrainSettings

Items = TypeVar("Items", Batch, MinedItems)


def placed(batch: Batch, device: torch.device, settings: TrainSettings) -> Batch:
    rank, count = distributed.world()
    if count > 1:
        batch = distributed.share_of(batch, rank, count)
    if device.type == "cpu" and settings.precision != "float64":
        return batch
    dtype = torch.float64 if settings.precision == "float64" else torch.float32
    mined = None if batch.mined is None else _moved(batch.mined, device, dtype)
    return replace(_moved(batch, device, dtype), mined=mined)


def _moved(items: Items, device: torch.device, dtype: torch.dtype) -> Items:
    moved: dict[str, Any] = {
        name: value.to(device, dtype if value.is_floating_point() else value.dtype)
        for name, value in vars(items).items()
        if isinstance(value, Tensor)
    }
    return replace(items, **moved)
