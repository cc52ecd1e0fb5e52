"""Collating: batch indices -> `Batch`, with optional augmentation, ignored pairs and mined negatives, ahead of use.

The augmentation is VSE-infinity's: it drops regions, and masks, replaces or drops words.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data.dataset import PairedData
from tercet.data.grades import Grades
from tercet.data.hard_negatives import HardNegativeSampler, SampledNegatives
from tercet.data.samplers import BatchIndices
from tercet.data.text.tokenized import TokenizedCaptions
from tercet.data.transforms import Crop, Pixels
from tercet.types import Batch, MinedItems

Item = TypeVar("Item")
Result = TypeVar("Result")

# Cumulative shares of the altered words: masked below the first, replaced below the second, deleted above it.
MASKED, REPLACED = 0.5, 0.6


@dataclass(frozen=True)
class SizeAugmentation:
    """Drop rates; 0 turns one off. `grid` selects the variant for the cells of a CNN feature map."""

    regions: float = 0.2
    words: float = 0.2
    grid: bool = False

    def __post_init__(self) -> None:
        for name in ("regions", "words"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")


def drop_regions(
    images: Float[Tensor, "image region dim"],
    lengths: Int[Tensor, " image"] | None,
    augmentation: SizeAugmentation,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "image kept dim"], Int[Tensor, " image"]]:
    """Drop each region with probability p. On a grid, draw u per image: the drop rate is p * u, or 0 if u <= p.

    At least one region of each image is kept; the published code can drop all of them.
    """
    count, regions = images.shape[:2]
    valid = torch.arange(regions) < (torch.full((count,), regions) if lengths is None else lengths.cpu())[:, None]
    drop_rate = torch.full((count, 1), augmentation.regions)
    if augmentation.grid:
        u = torch.rand(count, 1, generator=generator)
        drop_rate = torch.where(u > augmentation.regions, augmentation.regions * u, torch.zeros(()))
    draw = torch.rand(count, regions, generator=generator)
    keep = (draw >= drop_rate) & valid
    highest_draw = draw.masked_fill(~valid, -1.0).argmax(dim=1)
    keep[torch.arange(count), highest_draw] |= ~keep.any(dim=1)
    return _compact(images, keep.to(images.device), 0)


def drop_words(
    tokens: TokenizedCaptions, items: Int[Tensor, " caption"], rate: float, generator: torch.Generator
) -> tuple[Int[Tensor, "caption kept"], Int[Tensor, " caption"]]:
    """Alter each word with probability `rate`: 50 % are masked, 10 % replaced by random tokens, 40 % deleted.

    All tokens of a word are treated alike. Special tokens are kept, and so is the first token of a caption that would
    lose all of its tokens.
    """
    token_ids, lengths, words = tokens.padded(items)
    count, max_length = token_ids.shape
    max_words = int(words.max()) + 1 if words.numel() else 0
    altered = torch.rand(count, max_words + 1, generator=generator) < rate
    altered[:, max_words] = False  # the column of special tokens and padding (word -1)
    draw = torch.rand(count, max_words + 1, generator=generator)
    column = torch.where(words >= 0, words, max_words)
    altered, draw = altered.gather(1, column), draw.gather(1, column)
    random_ids = torch.randint(tokens.vocab_size, (count, max_length), generator=generator)
    substitutes = torch.where(draw < MASKED, tokens.mask, random_ids)
    token_ids = torch.where(altered & (draw < REPLACED), substitutes, token_ids)
    keep = (torch.arange(max_length) < lengths[:, None]) & ~(altered & (draw >= REPLACED))
    keep[:, 0] |= ~keep.any(dim=1)
    return _compact(token_ids, keep, tokens.pad)


def _compact(values: Tensor, keep: Bool[Tensor, "item position"], pad: int) -> tuple[Tensor, Int[Tensor, " item"]]:
    """Move the kept values to the front, in order, and pad to the longest item. Returns values and lengths."""
    lengths = keep.sum(dim=1)
    order = (~keep).byte().argsort(dim=1, stable=True)[:, : int(lengths.max())]
    index = order.reshape(*order.shape, *[1] * (values.ndim - 2)).expand(*order.shape, *values.shape[2:])
    moved = values.gather(1, index)
    padding = torch.arange(order.shape[1], device=values.device) >= lengths[:, None]
    return moved.masked_fill(padding.reshape(*padding.shape, *[1] * (values.ndim - 2)), pad), lengths


@dataclass(frozen=True)
class Collator:
    """Makes the batches of a split, in any order: a batch depends on its indices and seed alone."""

    data: PairedData
    augmentation: SizeAugmentation | None = None
    ignore_equal_text: bool = False
    """Ignore pairs of an image and a foreign caption whose exact text is also a caption of the image."""
    truth: Literal["unused", "positive", "ignored"] = "unused"
    """How to treat foreign captions that are known to be true of an image."""

    crop: Crop = "none"
    """Random crops, if the images are pixels."""
    diagonal: bool = False
    """Only the sampled pairs are positive, even if an image occurs twice in the batch."""
    negative_sampler: HardNegativeSampler | None = None
    """Samples mined negatives for every positive pair."""
    grades: Grades | None = None
    """Weights of pairs."""
    mined_as_candidates: bool = False
    """Add i- and t- to the batch as further images and captions, instead of as mined negatives of pairs."""

    def __post_init__(self) -> None:
        if self.crop != "none" and not isinstance(self.data.images, Pixels):
            raise ValueError(f"random crops need image files; {self.data.name} has precomputed features")
        if self.truth != "unused" and self.data.truth is None:
            raise ValueError(f"{self.data.name} does not say which captions are true of other images")

    def make(self, indices: BatchIndices) -> Batch:
        if self.negative_sampler is None:
            return self._collate(indices)
        if self.mined_as_candidates:
            return self._collate(self._with_candidates(indices, self.negative_sampler))
        batch = self._collate(indices)
        image, caption = batch.positives().nonzero(as_tuple=True)
        generator = torch.Generator().manual_seed(indices.seed ^ 2)
        negatives = self.negative_sampler.draw(indices.images[image], indices.captions[caption], generator)
        return replace(batch, mined=self._mined(negatives, indices.seed ^ 3))

    def run(self, index_batches: Sequence[BatchIndices], *, workers: int = 0) -> Iterator[Batch]:
        """Yield the batches in order. With workers, that many threads prefetch; the batches are the same."""
        if workers == 0:
            yield from map(self.make, index_batches)
        else:
            yield from prefetch(self.make, index_batches, workers)

    def equal_text(self, indices: BatchIndices) -> Bool[Tensor, "image caption"]:
        """Mask of the pairs in which the caption's exact text is also a caption of the image."""
        equal = torch.zeros(len(indices.images), len(indices.captions), dtype=torch.bool)
        for column, caption in enumerate(indices.captions.tolist()):
            if caption in self._images_by_caption:
                equal[:, column] = torch.isin(indices.images, self._images_by_caption[caption])
        return equal

    def _collate(self, indices: BatchIndices) -> Batch:
        images, image_lengths, captions, caption_lengths = self._items(indices)
        caption_ids = self.data.owners[indices.captions]
        also_positive, ignored = self._special_pairs(indices, caption_ids)
        ids = indices.images, caption_ids
        if self.diagonal:
            ids = torch.arange(len(indices.images)), torch.arange(len(indices.captions))
        grades = None
        if self.grades is not None:
            own = indices.images[:, None] == caption_ids[None, :]
            own = own if also_positive is None else own | also_positive
            grades = self.grades.of(indices.images, indices.captions, own)
            ignored = None if ignored is None else ignored & (grades == 0)
        return Batch(images, captions, *ids, image_lengths, caption_lengths, also_positive, ignored, grades)

    def _mined(self, negatives: SampledNegatives, seed: int) -> MinedItems:
        """Each distinct item once, however many pairs it was sampled for."""
        images, image_positions = negatives.images.unique(return_inverse=True)
        captions, caption_positions = negatives.captions.unique(return_inverse=True)
        items, image_lengths, words, caption_lengths = self._items(BatchIndices(images, captions, seed))
        return MinedItems(items, words, image_positions, caption_positions, image_lengths, caption_lengths)

    def _with_candidates(self, indices: BatchIndices, sampler: HardNegativeSampler) -> BatchIndices:
        """Add every i- and t- that is not in the batch yet; ids still decide which pairs are positive."""
        image, caption = self.data.positives(indices.images, indices.captions).nonzero(as_tuple=True)
        generator = torch.Generator().manual_seed(indices.seed ^ 2)
        negatives = sampler.draw(indices.images[image], indices.captions[caption], generator)
        images, captions = negatives.images[:, 0].unique(), negatives.captions[:, 0].unique()
        images = images[~torch.isin(images, indices.images)]
        captions = captions[~torch.isin(captions, indices.captions)]
        return BatchIndices(torch.cat([indices.images, images]), torch.cat([indices.captions, captions]), indices.seed)

    def _items(self, indices: BatchIndices) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Images and their lengths, captions and their lengths."""
        images, image_lengths = self._images(indices)
        if self.augmentation is not None and self.augmentation.regions > 0 and images.ndim == 3:
            generator = torch.Generator().manual_seed(indices.seed)
            images, image_lengths = drop_regions(images, image_lengths, self.augmentation, generator)
        return images, image_lengths, *self._captions(indices)

    def _images(self, indices: BatchIndices) -> tuple[Tensor, Int[Tensor, " image"] | None]:
        words = 0.0 if self.augmentation is None else self.augmentation.words
        if words > 0 and isinstance(self.data.images, TokenizedCaptions):
            generator = torch.Generator().manual_seed(indices.seed ^ 4)
            return drop_words(self.data.images, indices.images, words, generator)
        if self.crop != "none" and isinstance(self.data.images, Pixels):
            return self.data.images.cropped(indices.images, self.crop, indices.seed), None
        return self.data.images.take(indices.images)

    def _captions(self, indices: BatchIndices) -> tuple[Tensor, Int[Tensor, " caption"] | None]:
        source = self.data.captions
        if self.augmentation is not None and self.augmentation.words > 0 and isinstance(source, TokenizedCaptions):
            generator = torch.Generator().manual_seed(indices.seed ^ 1)
            return drop_words(source, indices.captions, self.augmentation.words, generator)
        return source.take(indices.captions)

    def _special_pairs(
        self, indices: BatchIndices, caption_ids: Int[Tensor, " caption"]
    ) -> tuple[Bool[Tensor, "image caption"] | None, Bool[Tensor, "image caption"] | None]:
        """Masks of the additional positives and of the ignored pairs; None where there are none."""
        also_positive, ignored = None, None
        more = self.data.more_pairs is not None and not self.diagonal
        if self.truth == "unused" and not self.ignore_equal_text and not more:
            return None, None
        own = self.data.positives(indices.images, indices.captions)
        if more:
            other_ids = own & (indices.images[:, None] != caption_ids[None, :])
            also_positive = other_ids if other_ids.any() else None
        if self.truth != "unused":
            assert self.data.truth is not None
            known = self.data.truth(indices.images, indices.captions) & ~own
            if self.truth == "positive":
                also_positive = known if also_positive is None else known | also_positive
            else:
                ignored = known
        if self.ignore_equal_text:
            equal = self.equal_text(indices) & ~own
            if also_positive is not None:
                equal &= ~also_positive
            ignored = equal if ignored is None else ignored | equal
        return also_positive, ignored

    @cached_property
    def _images_by_caption(self) -> dict[int, Int[Tensor, " image"]]:
        """Caption -> all images that have its text, for captions whose text belongs to more than one image."""
        shared = {text: torch.tensor(images) for text, images in self.data.shared_texts.items()}
        return {caption: shared[text] for caption, text in enumerate(self.data.texts) if text in shared}


def prefetch(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`map(function, items)` with worker threads. Threads suffice: reading rows and decoding images release the GIL."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also when the consumer closes the iterator early
        pool.shutdown(wait=True, cancel_futures=True)
