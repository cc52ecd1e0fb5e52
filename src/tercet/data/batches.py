"""Meetings -> batches: what meets is read, altered if asked for, and handed to the step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.contracts import Batch
from tercet.data.ahead import ahead
from tercet.data.dropout import SizeAugmentation, drop_regions, drop_words
from tercet.data.meetings import Meeting
from tercet.data.pairs import PairedData
from tercet.data.pixels import Crop, Pixels
from tercet.data.text.tokens import Tokens


@dataclass(frozen=True)
class Batches:
    """Makes any batch of a split, in any order: `make` depends on the meeting and on nothing before it."""

    data: PairedData
    augmentation: SizeAugmentation | None = None
    ignore_equal_text: bool = False
    """A caption that also stands, word for word, under another image of the batch is no negative of it."""
    truth: Literal["unused", "positive", "ignored"] = "unused"
    """What becomes of captions known to be true of images that are not their own."""

    crop: Crop = "none"
    """Random parts of pictures, where images are pixels."""

    def __post_init__(self) -> None:
        if self.crop != "none" and not isinstance(self.data.images, Pixels):
            raise ValueError(f"only pictures can be cropped; {self.data.name} comes as features")
        if self.truth != "unused" and self.data.truth is None:
            raise ValueError(f"it is not known which captions of {self.data.name} are true of other images")

    def make(self, meeting: Meeting) -> Batch:
        images, image_lengths = self._images(meeting)
        captions, caption_lengths = self._captions(meeting)
        if self.augmentation is not None and self.augmentation.regions > 0 and images.ndim == 3:
            generator = torch.Generator().manual_seed(meeting.seed)
            images, image_lengths = drop_regions(images, image_lengths, self.augmentation, generator)
        caption_ids = self.data.owners[meeting.captions]
        also_positive, ignored = self._special_pairs(meeting, caption_ids)
        return Batch(
            images, captions, meeting.images, caption_ids, image_lengths, caption_lengths, also_positive, ignored
        )

    def run(self, meetings: Sequence[Meeting], *, workers: int = 0) -> Iterator[Batch]:
        """The batches in order; with workers, made ahead by so many threads. The same either way."""
        if workers == 0:
            yield from map(self.make, meetings)
        else:
            yield from ahead(self.make, meetings, workers)

    def _images(self, meeting: Meeting) -> tuple[Tensor, Int[Tensor, " image"] | None]:
        if self.crop != "none" and isinstance(self.data.images, Pixels):
            return self.data.images.cropped(meeting.images, self.crop, meeting.seed), None
        return self.data.images.take(meeting.images)

    def _captions(self, meeting: Meeting) -> tuple[Tensor, Int[Tensor, " caption"] | None]:
        source = self.data.captions
        if self.augmentation is not None and self.augmentation.words > 0 and isinstance(source, Tokens):
            generator = torch.Generator().manual_seed(meeting.seed ^ 1)
            return drop_words(source, meeting.captions, self.augmentation.words, generator)
        return source.take(meeting.captions)

    def _special_pairs(
        self, meeting: Meeting, caption_ids: Int[Tensor, " caption"]
    ) -> tuple[Bool[Tensor, "image caption"] | None, Bool[Tensor, "image caption"] | None]:
        also_positive, ignored = None, None
        if self.truth == "unused" and not self.ignore_equal_text:
            return None, None
        own = meeting.images[:, None] == caption_ids[None, :]
        if self.truth != "unused":
            assert self.data.truth is not None
            known = self.data.truth(meeting.images, meeting.captions) & ~own
            also_positive, ignored = (known, None) if self.truth == "positive" else (None, known)
        if self.ignore_equal_text:
            equal = self.equal_text(meeting) & ~own
            if also_positive is not None:
                equal &= ~also_positive
            ignored = equal if ignored is None else ignored | equal
        return also_positive, ignored

    @cached_property
    def _images_of_shared_texts(self) -> dict[int, Int[Tensor, " image"]]:
        """Caption -> all images that have its very words among theirs, for captions of more than one image."""
        images: dict[str, set[int]] = {}
        for text, owner in zip(self.data.texts, self.data.owners.tolist(), strict=True):
            images.setdefault(text, set()).add(owner)
        shared = {text: torch.tensor(sorted(found)) for text, found in images.items() if len(found) > 1}
        return {caption: shared[text] for caption, text in enumerate(self.data.texts) if text in shared}

    def equal_text(self, meeting: Meeting) -> Bool[Tensor, "image caption"]:
        """Pairs of an image and a caption that stands, word for word, among the image's own."""
        equal = torch.zeros(len(meeting.images), len(meeting.captions), dtype=torch.bool)
        for column, caption in enumerate(meeting.captions.tolist()):
            if caption in self._images_of_shared_texts:
                equal[:, column] = torch.isin(meeting.images, self._images_of_shared_texts[caption])
        return equal
