"""Batch samplers: the image and caption indices of every step, from the seed and the epoch alone.

A resumed run recomputes the list of an epoch and continues from its position in it.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


class BatchIndices(NamedTuple):
    """The items of one batch, and the seed of its random augmentation."""

    images: Int[Tensor, " image"]
    captions: Int[Tensor, " caption"]
    seed: int


def pair_batches(
    owners: Int[Tensor, " caption"],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    keep_short: bool = False,
    more_pairs: Int[Tensor, "pair 2"] | None = None,
) -> list[BatchIndices]:
    """Every caption once, paired with its image; then also each of `more_pairs`, (image, caption), once.

    An image, or a caption with several images, can occur twice in a batch; equal ids and masks then mark positives.
    The last batch is dropped if it is incomplete, unless `keep_short`.
    """
    pairs = _all_pairs(owners, more_pairs)
    order = torch.randperm(len(pairs), generator=seeded(seed, epoch))
    return [
        BatchIndices(pairs[chunk, 0], pairs[chunk, 1], step_seed(seed, epoch, position))
        for position, chunk in enumerate(_chunks(order, batch_size, keep_short))
    ]


def image_batches(
    owners: Int[Tensor, " caption"],
    batch_size: int,
    captions_per_image: int | None,
    *,
    seed: int,
    epoch: int,
    keep_short: bool = False,
    more_pairs: Int[Tensor, "pair 2"] | None = None,
) -> list[BatchIndices]:
    """Every image once, with `captions_per_image` random captions, drawn again each epoch; None takes all captions.

    An image with fewer captions contributes all of them, one without any is left out. `batch_size` counts images. A
    caption of several images, by `more_pairs`, may be drawn for each of them.
    """
    if captions_per_image is not None and captions_per_image < 1:
        raise ValueError(f"captions_per_image must be at least 1, got {captions_per_image}")
    generator = seeded(seed, epoch)
    pairs = _all_pairs(owners, more_pairs)
    counts = torch.bincount(pairs[:, 0])
    with_captions = counts.nonzero()[:, 0]
    order = with_captions[torch.randperm(len(with_captions), generator=generator)]
    # The captions of each image in random order: a stable sort by image keeps the order of the shuffle.
    shuffled = pairs[torch.randperm(len(pairs), generator=generator)]
    by_image = shuffled[shuffled[:, 0].argsort(stable=True), 1]
    starts = counts.cumsum(0) - counts
    taken = counts if captions_per_image is None else counts.clamp(max=captions_per_image)
    index_batches = []
    for position, images in enumerate(_chunks(order, batch_size, keep_short)):
        captions = torch.cat([by_image[starts[image] : starts[image] + taken[image]] for image in images.tolist()])
        index_batches.append(BatchIndices(images, captions, step_seed(seed, epoch, position)))
    return index_batches


class EpochSampler:
    """The batches of every epoch of a training run: passes over the captions, or over the images.

    With `captions_per_image` a pass is over the images. An epoch is one pass or, with `steps`, as many steps as given,
    through the end of a pass into the next. A step has `batches_per_step` batches (gradient accumulation).
    """

    def __init__(
        self,
        owners: Int[Tensor, " caption"],
        batch_size: int,
        captions_per_image: int | None = None,
        *,
        seed: int,
        steps: int | None = None,
        batches_per_step: int = 1,
        more_pairs: Int[Tensor, "pair 2"] | None = None,
    ) -> None:
        self.owners, self.batch_size, self.captions_per_image, self.seed = owners, batch_size, captions_per_image, seed
        self.more_pairs = more_pairs
        self._batches_per_pass = len(self.pass_over(0))
        self.steps_per_epoch = steps or self._batches_per_pass // batches_per_step
        self._batches_per_epoch = self.steps_per_epoch * batches_per_step
        self._continues = steps is not None

    def epoch(self, epoch: int) -> list[BatchIndices]:
        """The batches of an epoch."""
        count = self._batches_per_epoch
        if not self._continues:
            return self.pass_over(epoch)[:count]
        first = epoch * count // self._batches_per_pass
        start = epoch * count - first * self._batches_per_pass
        passes = range(first, first - (-(start + count) // self._batches_per_pass))
        return [indices for number in passes for indices in self.pass_over(number)][start : start + count]

    def pass_over(self, number: int) -> list[BatchIndices]:
        """The batches of one pass."""
        common: dict[str, Any] = {"seed": self.seed, "epoch": number, "more_pairs": self.more_pairs}
        if self.captions_per_image is None:
            return pair_batches(self.owners, self.batch_size, **common)
        return image_batches(self.owners, self.batch_size, self.captions_per_image, **common)


def by_length(lengths: Int[np.ndarray, " item"], batch_size: int) -> list[Int[Tensor, " _"]]:
    """Batches of items of similar length, to reduce padding. For encoding only.

    Not for training: the composition of a batch decides which captions are negatives of each other.
    """
    order = torch.from_numpy(np.argsort(lengths, kind="stable"))
    return list(order.split(batch_size))


def _all_pairs(owners: Int[Tensor, " caption"], more_pairs: Int[Tensor, "more 2"] | None) -> Int[Tensor, "pair 2"]:
    own = torch.stack([owners, torch.arange(len(owners))], dim=1)
    return own if more_pairs is None else torch.cat([own, more_pairs])


def _chunks(order: Int[Tensor, " item"], size: int, keep_short: bool) -> list[Int[Tensor, " _"]]:
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {size}")
    chunks = list(order.split(size))
    if len(order) < size and not keep_short:
        raise ValueError(f"{len(order)} items do not fill one batch of {size}: batch_size must be at most {len(order)}")
    return chunks if keep_short or not chunks or len(chunks[-1]) == size else chunks[:-1]


def step_seed(*numbers: int) -> int:
    """A seed derived by hashing, for example the seed, the epoch and the position in the epoch."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")


def seeded(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(step_seed(seed, epoch))
