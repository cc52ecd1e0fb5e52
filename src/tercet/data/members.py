"""Which mined negatives a pair gets: the four offline members of a quintuplet, after AOQ (Chen, Deng, Luo, 2020)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.data.mined import MinedTable

How = Literal["uniform", "normal", "similarity"]
SPREAD = 1 / 6  # of normal draws, as a share of the top list: three deviations reach its ends
TEMPERATURE = 0.1  # of draws by similarity

LOOSEN = ": its guards left nothing of that list; mine again with looser ones"


class Drawn(NamedTuple):
    """Of each pair (i, t): images i-, i-' and captions t-, t-', by their numbers."""

    images: Int[Tensor, "pair 2"]
    captions: Int[Tensor, "pair 2"]


@dataclass(frozen=True)
class MemberDraws:
    """One draw n drives both lists, as published: t- is the n-th caption of i, i- the (n / 5)-th image of t.

    (Where images have other than five captions on average, that many instead of 5.) t-' is any caption of i-, i-' the
    image of t-.
    """

    table: MinedTable
    owners: Int[Tensor, " caption"]
    top: int = 300
    """Captions of the list that are drawn from; of the images so many fewer as there are fewer of them."""
    how: How = "uniform"
    couples: int = 2
    """1 where nobody looks at (i-', t-'): then they are (i-, t-) once more, and cost nothing."""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"--mined-top must be at least 1, got {self.top}")
        if self.how == "similarity" and self.table.caption_similarity is None:
            raise ValueError(f"{self.table.place} has no similarities to draw by: draw uniformly, or mine it again")
        empty = np.flatnonzero(self.table.captions[:, 0] < 0)
        if len(empty):
            raise ValueError(f"{self.table.place}: image {empty[0]} has no mined caption{LOOSEN}")
        empty = np.flatnonzero(self.table.images[:, 0] < 0)
        if len(empty):
            raise ValueError(f"{self.table.place}: caption {empty[0]} has no mined image{LOOSEN}")

    def draw(self, images: Int[Tensor, " pair"], captions: Int[Tensor, " pair"], generator: torch.Generator) -> Drawn:
        place = self._places(images, self._captions_there[images], generator)
        return self.members(images, captions, place, torch.rand(len(images), generator=generator))

    def members(
        self,
        images: Int[Tensor, " pair"],
        captions: Int[Tensor, " pair"],
        place: Int[Tensor, " pair"],
        chance: Float[Tensor, " pair"],
    ) -> Drawn:
        """For these places in the lists; `chance`, from 0 to below 1, chooses among the captions of i-."""
        t = torch.from_numpy(self.table.captions[images.numpy(), place.numpy()]).long()
        # As far down the one list as down the other, however long they are.
        down = place * self._images_there[captions] // self._captions_there[images]
        i = torch.from_numpy(self.table.images[captions.numpy(), down.numpy()]).long()
        count = self._counts[i]
        other = self._by_owner[self._starts[i] + (chance * count).long().clamp(max=count - 1)]
        second = (i, t) if self.couples == 1 else (self.owners[t], other)
        return Drawn(torch.stack([i, second[0]], dim=1), torch.stack([t, second[1]], dim=1))

    @property
    def top_images(self) -> int:
        return max(1, round(self.top * len(self.table.captions) / len(self.owners)))

    def _places(
        self, images: Int[Tensor, " pair"], there: Int[Tensor, " pair"], generator: torch.Generator
    ) -> Int[Tensor, " pair"]:
        """In the list of captions, of which so many are there."""
        if self.how == "similarity":
            assert self.table.caption_similarity is not None
            similarity = torch.from_numpy(self.table.caption_similarity[images.numpy(), : self.top])
            return (similarity / TEMPERATURE).softmax(dim=1).multinomial(1, generator=generator)[:, 0]
        if self.how == "normal":
            centred = torch.randn(len(images), generator=generator) * SPREAD + 0.5
            return (centred * there).long().clamp(min=0).minimum(there - 1)
        return (torch.rand(len(images), generator=generator) * there).long().minimum(there - 1)

    @cached_property
    def _captions_there(self) -> Int[Tensor, " image"]:
        """Of each image's list, as far as it is drawn from."""
        return torch.from_numpy((self.table.captions[:, : self.top] >= 0).sum(axis=1))

    @cached_property
    def _images_there(self) -> Int[Tensor, " caption"]:
        return torch.from_numpy((self.table.images[:, : self.top_images] >= 0).sum(axis=1))

    @cached_property
    def _counts(self) -> Int[Tensor, " image"]:
        return torch.bincount(self.owners, minlength=len(self.table.captions))

    @cached_property
    def _by_owner(self) -> Int[Tensor, " caption"]:
        return self.owners.argsort(stable=True)

    @cached_property
    def _starts(self) -> Int[Tensor, " image"]:
        return self._counts.cumsum(0) - self._counts
