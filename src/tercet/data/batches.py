"""Batches for training: which captions meet in a step, from seed and epoch alone."""

from collections.abc import Iterator

import torch

from tercet.contracts import Batch
from tercet.data.features import FeatureSet


def paired_batches(data: FeatureSet, batch_size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    """Every caption once an epoch, each with its image; ids tell when one comes twice. A short rest is left out."""
    order = torch.randperm(len(data.owners), generator=torch.Generator().manual_seed(seed * 100_003 + epoch))
    for captions in order[: len(order) // batch_size * batch_size].split(batch_size):
        owners = data.owners[captions]
        yield Batch(data.images[owners], data.captions[captions], image_ids=owners, caption_ids=owners)


def batches_per_epoch(data: FeatureSet, batch_size: int) -> int:
    return len(data.owners) // batch_size
