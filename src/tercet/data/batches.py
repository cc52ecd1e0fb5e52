"""Meetings -> batches: what meets is read, altered if asked for, and handed to the step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.contracts import Batch, MinedItems
from tercet.data.ahead import ahead
from tercet.data.dropout import SizeAugmentation, drop_regions, drop_words
from tercet.data.meetings import Meeting
from tercet.data.members import Drawn, MemberDraws
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
    diagonal: bool = False
    """Only the captions that images are met with are theirs, though one may be met twice."""
    members: MemberDraws | None = None
    """Mined negatives of every positive pair."""
    as_candidates: bool = False
    """i- and t- are further images and captions of the batch, and no members."""

    def __post_init__(self) -> None:
        if self.crop != "none" and not isinstance(self.data.images, Pixels):
            raise ValueError(f"only pictures can be cropped; {self.data.name} comes as features")
        if self.truth != "unused" and self.data.truth is None:
            raise ValueError(f"it is not known which captions of {self.data.name} are true of other images")

    def make(self, meeting: Meeting) -> Batch:
        if self.members is None:
            return self._made(meeting)
        if self.as_candidates:
            return self._made(self._with_candidates(meeting, self.members))
        batch = self._made(meeting)
        image, caption = batch.positives().nonzero(as_tuple=True)
        generator = torch.Generator().manual_seed(meeting.seed ^ 2)
        drawn = self.members.draw(meeting.images[image], meeting.captions[caption], generator)
        return replace(batch, mined=self._mined(drawn, meeting.seed ^ 3))

    def _made(self, meeting: Meeting) -> Batch:
        images, image_lengths, captions, caption_lengths = self._sides(meeting)
        caption_ids = self.data.owners[meeting.captions]
        also_positive, ignored = self._special_pairs(meeting, caption_ids)
        ids = meeting.images, caption_ids
        if self.diagonal:
            ids = torch.arange(len(meeting.images)), torch.arange(len(meeting.captions))
        return Batch(images, captions, *ids, image_lengths, caption_lengths, also_positive, ignored)

    def _mined(self, drawn: Drawn, seed: int) -> MinedItems:
        """Each item once, however many pairs it was drawn for."""
        images, image_places = drawn.images.unique(return_inverse=True)
        captions, caption_places = drawn.captions.unique(return_inverse=True)
        items, image_lengths, words, caption_lengths = self._sides(Meeting(images, captions, seed))
        return MinedItems(items, words, image_places, caption_places, image_lengths, caption_lengths)

    def _with_candidates(self, meeting: Meeting, members: MemberDraws) -> Meeting:
        """Every i- and t- that is not there already; ids say whose they are."""
        image, caption = (meeting.images[:, None] == self.data.owners[meeting.captions]).nonzero(as_tuple=True)
        generator = torch.Generator().manual_seed(meeting.seed ^ 2)
        drawn = members.draw(meeting.images[image], meeting.captions[caption], generator)
        images, captions = drawn.images[:, 0].unique(), drawn.captions[:, 0].unique()
        images = images[~torch.isin(images, meeting.images)]
        captions = captions[~torch.isin(captions, meeting.captions)]
        return Meeting(torch.cat([meeting.images, images]), torch.cat([meeting.captions, captions]), meeting.seed)

    def run(self, meetings: Sequence[Meeting], *, workers: int = 0) -> Iterator[Batch]:
        """The batches in order; with workers, made ahead by so many threads. The same either way."""
        if workers == 0:
            yield from map(self.make, meetings)
        else:
            yield from ahead(self.make, meetings, workers)

    def _sides(self, meeting: Meeting) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Images, how many of their regions are real, captions, how many of their words are."""
        images, image_lengths = self._images(meeting)
        if self.augmentation is not None and self.augmentation.regions > 0 and images.ndim == 3:
            generator = torch.Generator().manual_seed(meeting.seed)
            images, image_lengths = drop_regions(images, image_lengths, self.augmentation, generator)
        return images, image_lengths, *self._captions(meeting)

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
