"""Embeddings as input of AOQ objectives: a batch, and two mined images and captions per positive pair."""

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.inputs import positives_from_ids
from tercet.objectives.streaming.tiles import PairIndices, TiledSimilarity, positive_pairs
from tercet.types import PairMask, Similarity


class EmbeddedBatch:
    """A batch of embeddings with its ids; S = scale * images @ captions.T + bias."""

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
    def pairs(self) -> PairIndices:
        """Row indices of the positive pairs."""
        return positive_pairs(*self.ids)

    def positives(self) -> PairMask:
        return positives_from_ids(*self.ids)

    def similarity(self) -> Similarity:
        return self._scaled(self.images @ self.captions.T)

    def similarity_of(self, images: Float[Tensor, "pair dim"], captions: Float[Tensor, "pair dim"]) -> Tensor:
        """Similarity of image k with caption k."""
        return self._scaled(torch.linalg.vecdot(images, captions))

    def tiles(self) -> TiledSimilarity:
        """S in tiles, detached from the autograd graph."""
        scale, bias = (factor.detach() if isinstance(factor, Tensor) else factor for factor in (self.scale, self.bias))
        return TiledSimilarity(self.images.detach(), self.captions.detach(), *self.ids, scale=scale, bias=bias)

    def _scaled(self, product: Tensor) -> Tensor:
        product = product if self.scale is None else self.scale * product
        return product if self.bias is None else product + self.bias


class MinedEmbeddings(NamedTuple):
    """Mined images and captions of every positive pair, in the order of `positives.nonzero()`.

    Along the axis of size 2, index 0 is (i-, t-) and index 1 is (i-', t-'). Under torch.distributed each rank gives the
    rows of the pairs of its own images with the captions of all ranks.
    """

    images: Float[Tensor, "pair 2 dim"]
    captions: Float[Tensor, "pair 2 dim"]

    def similarity(self, embedded: EmbeddedBatch) -> Float[Tensor, "pair 4"]:
        """The pair x 4 similarities that objectives take as `mined=` (columns: see aoq.py)."""
        image, caption = embedded.pairs
        self._check(len(image), embedded.images.shape[1])
        own_images = embedded.images.index_select(0, image)  # its backward is index_add; that of [image] is slow
        own_captions = embedded.captions.index_select(0, caption)
        # unbind: its backward is one stack, whereas that of every slice fills a tensor with zeros.
        (i, i_other), (t, t_other) = self.images.unbind(dim=1), self.captions.unbind(dim=1)
        columns = (own_images, t), (i, own_captions), (i, t), (i_other, t_other)
        return torch.stack([embedded.similarity_of(images, captions) for images, captions in columns], dim=1)

    def _check(self, pairs: int, dim: int) -> None:
        for name, mined in (("images", self.images), ("captions", self.captions)):
            if tuple(mined.shape) != (pairs, 2, dim):
                raise ValueError(
                    f"mined {name} {tuple(mined.shape)} must be pair x 2 x dim, {(pairs, 2, dim)}: two for "
                    f"each of the {pairs} positive pairs, in the order of positives.nonzero()"
                )
