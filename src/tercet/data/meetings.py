"""Which images and captions meet in which step: from seed and epoch alone, known before anything is read.

A run that resumes makes the same list again and goes on in the middle of it.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


class Meeting(NamedTuple):
    """The items of one step, and a seed for whatever is random about them."""

    images: Int[Tensor, " image"]
    captions: Int[Tensor, " caption"]
    seed: int


def paired_meetings(
    owners: Int[Tensor, " caption"], batch_size: int, *, seed: int, epoch: int, keep_short: bool = False
) -> list[Meeting]:
    """Every caption once, each with its image, which may come twice: then their ids say so.

    A last short batch is left out unless it is to be kept.
    """
    order = torch.randperm(len(owners), generator=seeded(seed, epoch))
    return [
        Meeting(owners[captions], captions, step_seed(seed, epoch, position))
        for position, captions in enumerate(_chunks(order, batch_size, keep_short))
    ]


def k_caption_meetings(
    owners: Int[Tensor, " caption"],
    batch_size: int,
    captions_each: int | None,
    *,
    seed: int,
    epoch: int,
    keep_short: bool = False,
) -> list[Meeting]:
    """Every image once, with k of its captions chosen anew each epoch, or with all of them (None).

    An image with fewer brings what it has. `batch_size` counts images.
    """
    if captions_each is not None and captions_each < 1:
        raise ValueError(f"captions_each must be at least 1, got {captions_each}")
    generator = seeded(seed, epoch)
    images = int(owners.max()) + 1 if len(owners) else 0
    order = torch.randperm(images, generator=generator)
    # Captions of an image in random order: sort by owner what was shuffled before; a stable sort keeps the shuffle.
    shuffled = torch.randperm(len(owners), generator=generator)
    by_owner = shuffled[owners[shuffled].argsort(stable=True)]
    counts = torch.bincount(owners, minlength=images)
    starts = counts.cumsum(0) - counts
    taken = counts if captions_each is None else counts.clamp(max=captions_each)
    meetings = []
    for position, chosen in enumerate(_chunks(order, batch_size, keep_short)):
        captions = torch.cat([by_owner[starts[image] : starts[image] + taken[image]] for image in chosen.tolist()])
        meetings.append(Meeting(chosen, captions, step_seed(seed, epoch, position)))
    return meetings


def batches_per_epoch(data_owners: Int[Tensor, " caption"], batch_size: int) -> int:
    """Of paired batches."""
    return len(data_owners) // batch_size


def by_length(lengths: Int[np.ndarray, " item"], batch_size: int) -> list[Int[Tensor, " _"]]:
    """For encoding: items of similar length together, so that little is padded.

    Not for training: which captions meet decides which are negatives of each other.
    """
    order = torch.from_numpy(np.argsort(lengths, kind="stable"))
    return list(order.split(batch_size))


def _chunks(order: Int[Tensor, " item"], size: int, keep_short: bool) -> list[Int[Tensor, " _"]]:
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {size}")
    chunks = list(order.split(size))
    if len(order) < size and not keep_short:
        raise ValueError(f"{len(order)} items do not fill one batch of {size}")
    return chunks if keep_short or not chunks or len(chunks[-1]) == size else chunks[:-1]


def step_seed(*numbers: int) -> int:
    """A seed for each seed, epoch and position, unlike that of any other."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")


def seeded(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(step_seed(seed, epoch))
