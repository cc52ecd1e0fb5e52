"""Offline members as embeddings: two mined images and two mined captions of every positive pair."""

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.objectives.masks import positives_from_ids
from tercet.objectives.pairs import Pairs, positive_pairs
from tercet.objectives.tiles import TiledSimilarity


class Embedded:
    """A batch as embeddings, S = scale * images @ captions.T + bias."""

    def __init__(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        ids: tuple[Int[Tensor, " image"], Int[Tensor, " caption"]],
        scale: float | Float[Tensor, ""] | None,
        bias: float | Float[Tensor, ""] | None,
    ) -> None:
        self.images, self.captions, self.ids, self.scale, self.bias = images, captions, ids, scale, bias

    @cached_property
    def pairs(self) -> Pairs:
        return positive_pairs(*self.ids)

    def positives(self) -> PairMask:
        return positives_from_ids(*self.ids)

    def similarity(self) -> Similarity:
        return self._scaled(self.images @ self.captions.T)

    def similarity_of(self, images: Float[Tensor, "pair dim"], captions: Float[Tensor, "pair dim"]) -> Tensor:
        """Of image k with caption k."""
        return self._scaled(torch.linalg.vecdot(images, captions))

    def tiles(self) -> TiledSimilarity:
        """Without a graph."""
        scale, bias = (each.detach() if isinstance(each, Tensor) else each for each in (self.scale, self.bias))
        return TiledSimilarity(self.images.detach(), self.captions.detach(), *self.ids, scale=scale, bias=bias)

    def _scaled(self, product: Tensor) -> Tensor:
        product = product if self.scale is None else self.scale * product
        return product if self.bias is None else product + self.bias


class Members(NamedTuple):
    """Member 0 of pair k is (i-, t-), member 1 (i-', t-'); rows in the order of `positives.nonzero()`.

    In several processes each brings the rows of the pairs of its own images, with captions of all processes.
    """

    images: Float[Tensor, "pair 2 dim"]
    captions: Float[Tensor, "pair 2 dim"]

    def similarity(self, embedded: Embedded) -> Float[Tensor, "pair 4"]:
        """`mined`, as objectives take it."""
        image, caption = embedded.pairs
        self._check(len(image), embedded.images.shape[1])
        own_images = embedded.images.index_select(0, image)  # its backward adds row by row, that of [image] is slow
        own_captions = embedded.captions.index_select(0, caption)
        # unbind, for its backward is one stack: that of each slice would be a whole of zeros.
        (i, i_other), (t, t_other) = self.images.unbind(dim=1), self.captions.unbind(dim=1)
        sides = (own_images, t), (i, own_captions), (i, t), (i_other, t_other)
        return torch.stack([embedded.similarity_of(*each) for each in sides], dim=1)

    def _check(self, pairs: int, dim: int) -> None:
        for name, given in (("images", self.images), ("captions", self.captions)):
            if tuple(given.shape) != (pairs, 2, dim):
                raise ValueError(
                    f"mined {name} {tuple(given.shape)} must be pair x 2 x dim, {(pairs, 2, dim)}: two members of "
                    f"each of the {pairs} positive pairs, in the order of positives.nonzero()"
                )
