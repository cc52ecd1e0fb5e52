"""S = scale * images @ captions.T + bias of a batch of embeddings, dense or in tiles, and the list of positive pairs.

Of the tiles at most one is in memory at a time. Positive pairs are found from ids without the image x caption mask.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives import distributed
from tercet.objectives.inputs import (
    BatchFacts,
    Rows,
    check_embeddings,
    ids_of_pairs,
    is_distributed,
    positives_from_ids,
)
from tercet.types import PairMask, Similarity

TILE_SIZE = 1024  # 4 MB of float32: large enough for a fast matrix product, small enough for the CPU cache


class PairIndices(NamedTuple):
    """Pair k is (image[k], caption[k]), in the order of `positives.nonzero()`."""

    image: Int[Tensor, " pair"]
    caption: Int[Tensor, " pair"]


def positive_pairs(image_ids: Int[Tensor, " image"], caption_ids: Int[Tensor, " caption"]) -> PairIndices:
    """All pairs with equal ids, by sorting the caption ids."""
    order = caption_ids.argsort(stable=True)
    ordered = caption_ids[order]
    first = torch.searchsorted(ordered, image_ids)
    count = torch.searchsorted(ordered, image_ids, right=True) - first
    image = torch.arange(len(image_ids), device=image_ids.device).repeat_interleave(count)
    before = count.cumsum(dim=0) - count
    nth = torch.arange(len(image), device=image.device) - before[image]
    return PairIndices(image, order[first[image] + nth])


@dataclass(frozen=True)
class EmbeddedBatch:
    """A batch of embeddings with its ids, of all processes; S = scale * images @ captions.T + bias."""

    images: Float[Tensor, "image dim"]
    captions: Float[Tensor, "caption dim"]
    ids: tuple[Int[Tensor, " image"], Int[Tensor, " caption"]]
    scale: float | Float[Tensor, ""] | None = None
    bias: float | Float[Tensor, ""] | None = None
    paired_by_rows: bool = False
    """Row i of images and captions is a pair, and there are no other positives: ids are row numbers."""

    @classmethod
    def of(
        cls,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        owners: Int[Tensor, " caption"] | None,
        image_ids: Int[Tensor, " image"] | None,
        caption_ids: Int[Tensor, " caption"] | None,
        scale: float | Float[Tensor, ""] | None,
        bias: float | Float[Tensor, ""] | None,
    ) -> "EmbeddedBatch":
        """Check the caller's input; under torch.distributed, gather the batches of all ranks."""
        paired_by_rows = owners is None and image_ids is None
        with distributed.refused_on_every_rank(images) if is_distributed() else nullcontext():
            check_embeddings(images, captions, scale, bias)
            ids = ids_of_pairs(images, captions, owners, image_ids, caption_ids)
        if is_distributed():
            given = {"image_ids=": image_ids is not None, "scale=": scale is not None, "bias=": bias is not None}
            images, captions, ids = distributed.gather_batch(images, captions, *ids, given)
            paired_by_rows = False
        return cls(images, captions, ids, scale, bias, paired_by_rows)

    @property
    def entries(self) -> int:
        """Number of entries of S."""
        return len(self.images) * len(self.captions)

    @cached_property
    def pairs(self) -> PairIndices:
        """Row indices of the positive pairs."""
        return positive_pairs(*self.ids)

    def positives(self) -> PairMask:
        return positives_from_ids(*self.ids)

    def similarity(self) -> Similarity:
        return self.scaled(self.images @ self.captions.T)

    def similarity_of(self, images: Float[Tensor, "pair dim"], captions: Float[Tensor, "pair dim"]) -> Tensor:
        """Similarity of image k with caption k."""
        return self.scaled(torch.linalg.vecdot(images, captions))

    def tiles(self) -> "TiledSimilarity":
        """S in tiles, detached from the autograd graph."""
        scale, bias = (factor.detach() if isinstance(factor, Tensor) else factor for factor in (self.scale, self.bias))
        return TiledSimilarity(self.images.detach(), self.captions.detach(), *self.ids, scale=scale, bias=bias)

    def facts(self, step: int | None) -> BatchFacts:
        """What a user's function may ask for."""
        return BatchFacts(*self.ids, self.images.detach(), self.captions.detach(), step)

    def scaled(self, product: Tensor) -> Tensor:
        """scale * product + bias."""
        product = product if self.scale is None else self.scale * product
        return product if self.bias is None else product + self.bias


class Tile(NamedTuple):
    """A tile of S, a slice of images x a slice of captions. Positives are masked as -inf: the rest are negatives.

    `pairs` are its positive pairs (a slice of the list), `pair_positions` their rows and columns in the tile.
    """

    images: slice
    captions: slice
    similarity: Float[Tensor, "image caption"]
    pairs: slice
    pair_positions: tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]
    is_whole: bool
    """Whether it is the whole of S."""


class TiledSimilarity:
    """The similarity of embeddings in tiles, with its positive pairs. `walk` fills `pair_similarity`."""

    def __init__(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        image_ids: Int[Tensor, " image"],
        caption_ids: Int[Tensor, " caption"],
        *,
        scale: float | Tensor | None,
        bias: float | Tensor | None,
        paired_by_rows: bool = False,
        tile_size: int | None = None,
    ) -> None:
        self.images, self.captions, self.scale, self.bias = images, captions, scale, bias
        self.image_ids, self.caption_ids = image_ids, caption_ids
        self.tile_size = tile_size or TILE_SIZE
        self.paired_by_rows = paired_by_rows
        of_ids = PairIndices if paired_by_rows else positive_pairs  # ids of paired rows are row numbers
        pairs = of_ids(image_ids, caption_ids)
        rows, columns = -(-len(images) // self.tile_size), -(-len(captions) // self.tile_size)
        self._first_pair = [0, len(pairs.image)]
        if rows * columns > 1:
            tile_of_pair = pairs.image // self.tile_size * columns + pairs.caption // self.tile_size
            order = tile_of_pair.argsort(stable=True)
            pairs = PairIndices(pairs.image[order], pairs.caption[order])
            tiles = torch.arange(rows * columns + 1, device=order.device)
            self._first_pair = torch.searchsorted(tile_of_pair[order], tiles).tolist()
        self.pair_image, self.pair_caption = pairs
        dtype = torch.float32 if images.dtype in (torch.float16, torch.bfloat16) else images.dtype
        self.pair_similarity = torch.empty(len(pairs.image), dtype=dtype, device=images.device)
        self._only_tile: tuple[float, Tile] | None = None

    def walk(self, *, divided_by: float = 1.0) -> Iterator[Tile]:
        """Yield the tiles of S / divided_by in row-major order. A tile overwrites the buffer of the previous one.

        If there is only one tile, it is cached for the next walk: modify it in the last walk only.
        """
        if self._only_tile is not None and self._only_tile[0] == divided_by:
            yield self._only_tile[1]
            return
        buffer = self.pair_similarity.new_empty(min(self.tile_size**2, len(self.images) * len(self.captions)))
        index = 0
        for top in range(0, len(self.images), self.tile_size):
            rows = slice(top, min(top + self.tile_size, len(self.images)))
            for left in range(0, len(self.captions), self.tile_size):
                columns = slice(left, min(left + self.tile_size, len(self.captions)))
                similarity = self._product(rows, columns, buffer)
                if divided_by != 1.0:
                    similarity /= divided_by
                pairs = slice(*self._first_pair[index : index + 2])
                positions = self.pair_image[pairs], self.pair_caption[pairs]
                if top or left:
                    positions = positions[0] - top, positions[1] - left
                is_whole = len(self._first_pair) == 2
                if is_whole and self.paired_by_rows:
                    self.pair_similarity.copy_(similarity.diagonal())
                    similarity.fill_diagonal_(-torch.inf)
                else:
                    self.pair_similarity[pairs] = similarity[positions]
                    similarity[positions] = -torch.inf
                tile = Tile(rows, columns, similarity, pairs, positions, is_whole)
                if is_whole:
                    self._only_tile = divided_by, tile
                yield tile
                index += 1

    def complete_rows(self, images: slice) -> Rows:
        """A slice of images against all captions, with images as anchors."""
        buffer = self.pair_similarity.new_empty((images.stop - images.start) * len(self.captions))
        positives = positives_from_ids(self.image_ids[images], self.caption_ids)
        return Rows(self._product(images, slice(0, len(self.captions)), buffer), positives, ~positives)

    def restarted(self) -> "TiledSimilarity":
        """The same batch, for another objective: the tiles of the last walk were modified."""
        return TiledSimilarity(
            self.images,
            self.captions,
            self.image_ids,
            self.caption_ids,
            scale=self.scale,
            bias=self.bias,
            paired_by_rows=self.paired_by_rows,
            tile_size=self.tile_size,
        )

    def transposed(self) -> "TiledSimilarity":
        """The same batch with images and captions swapped."""
        return TiledSimilarity(
            self.captions,
            self.images,
            self.caption_ids,
            self.image_ids,
            scale=self.scale,
            bias=self.bias,
            paired_by_rows=self.paired_by_rows,
            tile_size=self.tile_size,
        )

    def lowest_positive(self) -> Float[Tensor, ""]:
        """The smallest similarity of all positive pairs, before the first walk; 0 if there is none."""
        if not len(self.pair_image):
            return self.pair_similarity.new_zeros(())
        if len(self._first_pair) == 2:  # the only tile is cached, so this is not extra work
            next(self.walk())
            return self.pair_similarity.min()
        lowest = self.pair_similarity.new_full((), torch.inf)
        blocks = zip(self.pair_image.split(self.tile_size), self.pair_caption.split(self.tile_size), strict=True)
        for image, caption in blocks:
            product = torch.linalg.vecdot(self.images[image], self.captions[caption])
            lowest = torch.minimum(lowest, self._scaled(product.to(lowest.dtype)).min())
        return lowest

    def _product(self, rows: slice, columns: slice, buffer: Tensor) -> Tensor:
        shape = rows.stop - rows.start, columns.stop - columns.start
        out = buffer[: shape[0] * shape[1]].view(shape)
        if self.images.dtype == out.dtype:
            torch.mm(self.images[rows], self.captions[columns].T, out=out)
        else:
            out.copy_(self.images[rows] @ self.captions[columns].T)
        return self._scaled(out)

    def _scaled(self, product: Tensor) -> Tensor:
        """Apply scale and bias in place."""
        if self.scale is not None:
            product *= self.scale
        if self.bias is not None:
            product += self.bias
        return product
