"""Held-out images that are in the training images too: all are compared with all, by what a model reads."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.analysis.geometry import directions, nearest_cosine
from tercet.data.meetings import seeded
from tercet.data.pairs import Source

NEARLY_EQUAL = 0.995  # cosine of two images' centred inputs from which on they count as one
AT_ONCE = 256
HELD_OUT_AT_ONCE = 8192  # held-out images in memory; training images are read once for so many
FOR_THE_MEAN = 2000  # training images whose mean is taken off
THUMBNAIL = 32  # cells of a side, where images are pixels; with 8, drawings on one ground look equal


class Leak(NamedTuple):
    """A held-out image and the training image that it equals; rows of their splits."""

    held_out: int
    train: int


def leaks_between(held_out: Source, train: Source) -> list[Leak]:
    """By their inputs, not by what a model makes of them: a collapsed one would find them all equal."""
    some = torch.randperm(len(train), generator=seeded(0, 0))[:FOR_THE_MEAN].sort().values
    mean = torch.cat(list(_vectors(train, some))).mean(dim=0)
    leaks: list[Leak] = []
    for rows in torch.arange(len(held_out)).split(HELD_OUT_AT_ONCE):
        looked_for = directions(torch.cat(list(_vectors(held_out, rows))), mean)
        blocks = (directions(block, mean) for block in _vectors(train, torch.arange(len(train))))
        cosine, nearest = nearest_cosine(looked_for, blocks)
        equal = (cosine >= NEARLY_EQUAL).nonzero().flatten()
        leaks += map(Leak, rows[equal].tolist(), nearest[equal].tolist())
    return leaks


def mean_of_parts(
    parts: Float[Tensor, "item part dim"], lengths: Int[Tensor, " item"] | None
) -> Float[Tensor, "item dim"]:
    if lengths is None:
        return parts.mean(dim=1)
    real = torch.arange(parts.shape[1]) < lengths[:, None]
    return (parts * real[..., None]).sum(dim=1) / lengths[:, None].clamp(min=1)


def _vectors(source: Source, rows: Int[Tensor, " image"]) -> Iterator[Float[Tensor, "_ dim"]]:
    """In blocks, one vector an image: features, the mean of its regions, or a thumbnail of its pixels."""
    for part in rows.split(AT_ONCE):
        items, lengths = source.take(part)
        if items.ndim == 4:
            items = torch.nn.functional.adaptive_avg_pool2d(items, THUMBNAIL).flatten(1)
        elif items.ndim == 3:
            items = mean_of_parts(items, lengths)
        yield items.to(torch.float32, copy=True)  # a source may lend the same memory again
