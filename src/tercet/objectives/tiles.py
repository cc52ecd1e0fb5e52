"""S = scale * images @ captions.T + bias, tile by tile: never more of it at a time than one tile."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.masks import Rows, positives_from_ids
from tercet.objectives.pairs import positive_pairs

SIDE = 1024  # 4 MB of float32: large enough for a matrix product at full speed, small enough for a cache


class Tile(NamedTuple):
    """Some images x some captions; positives are hidden as -inf, so that what is left is negatives."""

    images: slice
    captions: slice
    similarity: Float[Tensor, "image caption"]


class TiledSimilarity:
    """The similarity of embeddings with its positive pairs. `walk` fills `pair_similarity` as it passes them."""

    def __init__(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        image_ids: Int[Tensor, " image"],
        caption_ids: Int[Tensor, " caption"],
        scale: float | Tensor | None,
        bias: float | Tensor | None,
    ) -> None:
        self.images, self.captions, self.scale, self.bias = images, captions, scale, bias
        self.image_ids, self.caption_ids = image_ids, caption_ids
        self.side = SIDE
        pairs = positive_pairs(image_ids, caption_ids)
        columns = -(-len(captions) // self.side)
        tile_of_pair = pairs.image // self.side * columns + pairs.caption // self.side
        order = tile_of_pair.argsort(stable=True)
        self.pair_image, self.pair_caption = pairs.image[order], pairs.caption[order]
        tiles = torch.arange(columns * -(-len(images) // self.side) + 1, device=order.device)
        self._first_pair = torch.searchsorted(tile_of_pair[order], tiles).tolist()
        wide = torch.float32 if images.dtype in (torch.float16, torch.bfloat16) else images.dtype
        self.pair_similarity = torch.empty(len(order), dtype=wide, device=images.device)

    def walk(self) -> Iterator[Tile]:
        """Row of tiles by row of tiles. A tile is overwritten by the next: use it, or change it, at once."""
        buffer = torch.empty(self.side**2, dtype=self.pair_similarity.dtype, device=self.images.device)
        number = 0
        for top in range(0, len(self.images), self.side):
            rows = slice(top, min(top + self.side, len(self.images)))
            for left in range(0, len(self.captions), self.side):
                columns = slice(left, min(left + self.side, len(self.captions)))
                similarity = self._product(rows, columns, buffer)
                pairs = slice(*self._first_pair[number : number + 2])
                place = self.pair_image[pairs] - top, self.pair_caption[pairs] - left
                self.pair_similarity[pairs] = similarity[place]
                similarity[place] = -torch.inf
                yield Tile(rows, columns, similarity)
                number += 1

    def complete_rows(self, images: slice) -> Rows:
        """Some images against all captions, with images as anchors."""
        buffer = self.pair_similarity.new_empty((images.stop - images.start) * len(self.captions))
        positives = positives_from_ids(self.image_ids[images], self.caption_ids)
        return Rows(self._product(images, slice(0, len(self.captions)), buffer), positives, ~positives)

    def transposed(self) -> "TiledSimilarity":
        return TiledSimilarity(
            self.captions, self.images, self.caption_ids, self.image_ids, scale=self.scale, bias=self.bias
        )

    def lowest_positive(self) -> Float[Tensor, ""]:
        """The smallest similarity of any positive pair, known before the first tile; 0 where there is none."""
        lowest = self.pair_similarity.new_full((), torch.inf if len(self.pair_image) else 0.0)
        for image, caption in zip(self.pair_image.split(self.side), self.pair_caption.split(self.side), strict=True):
            if not len(image):
                break  # an empty list splits into one empty part
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
        """In place."""
        if self.scale is not None:
            product *= self.scale
        if self.bias is not None:
            product += self.bias
        return product
