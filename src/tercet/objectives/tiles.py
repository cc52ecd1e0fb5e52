"""S = scale * images @ captions.T + bias, tile by tile: never more of it at a time than one tile."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.masks import Rows, positives_from_ids
from tercet.objectives.pairs import Pairs, positive_pairs

SIDE = 1024  # 4 MB of float32: large enough for a matrix product at full speed, small enough for a cache


class Tile(NamedTuple):
    """Some images x some captions; positives are hidden as -inf, so that what is left is negatives."""

    images: slice
    captions: slice
    similarity: Float[Tensor, "image caption"]
    pairs: slice
    pair_places: tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]


class TiledSimilarity:
    """The similarity of embeddings with its positive pairs. `walk` fills `pair_similarity` as it passes them."""

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
        side: int | None = None,
    ) -> None:
        self.images, self.captions, self.scale, self.bias = images, captions, scale, bias
        self.image_ids, self.caption_ids = image_ids, caption_ids
        self.side = side or SIDE
        self.paired_by_rows = paired_by_rows
        if paired_by_rows:
            rows_of_both = torch.arange(len(images), device=images.device)
            pairs = Pairs(rows_of_both, rows_of_both)
        else:
            pairs = positive_pairs(image_ids, caption_ids)
        rows, columns = -(-len(images) // self.side), -(-len(captions) // self.side)
        self._first_pair = [0, len(pairs.image)]
        if rows * columns > 1:
            tile_of_pair = pairs.image // self.side * columns + pairs.caption // self.side
            order = tile_of_pair.argsort(stable=True)
            pairs = Pairs(pairs.image[order], pairs.caption[order])
            tiles = torch.arange(rows * columns + 1, device=order.device)
            self._first_pair = torch.searchsorted(tile_of_pair[order], tiles).tolist()
        self.pair_image, self.pair_caption = pairs
        wide = torch.float32 if images.dtype in (torch.float16, torch.bfloat16) else images.dtype
        self.pair_similarity = torch.empty(len(pairs.image), dtype=wide, device=images.device)
        self._only: tuple[float, Tile] | None = None

    def walk(self, *, divided_by: float = 1.0) -> Iterator[Tile]:
        """S / divided_by, row of tiles by row of tiles. A tile is overwritten by the next: use it at once.

        Where one tile is all there is, a second walk brings the same one again: change it only in the last.
        """
        if self._only is not None and self._only[0] == divided_by:
            yield self._only[1]
            return
        buffer = self.pair_similarity.new_empty(min(self.side**2, len(self.images) * len(self.captions)))
        number = 0
        for top in range(0, len(self.images), self.side):
            rows = slice(top, min(top + self.side, len(self.images)))
            for left in range(0, len(self.captions), self.side):
                columns = slice(left, min(left + self.side, len(self.captions)))
                similarity = self._product(rows, columns, buffer)
                if divided_by != 1.0:
                    similarity /= divided_by
                pairs = slice(*self._first_pair[number : number + 2])
                places = self.pair_image[pairs], self.pair_caption[pairs]
                if top or left:
                    places = places[0] - top, places[1] - left
                self.pair_similarity[pairs] = similarity[places]
                similarity[places] = -torch.inf
                tile = Tile(rows, columns, similarity, pairs, places)
                if len(self._first_pair) == 2:
                    self._only = divided_by, tile
                yield tile
                number += 1

    def complete_rows(self, images: slice) -> Rows:
        """Some images against all captions, with images as anchors."""
        buffer = self.pair_similarity.new_empty((images.stop - images.start) * len(self.captions))
        positives = positives_from_ids(self.image_ids[images], self.caption_ids)
        return Rows(self._product(images, slice(0, len(self.captions)), buffer), positives, ~positives)

    def transposed(self) -> "TiledSimilarity":
        return TiledSimilarity(
            self.captions,
            self.images,
            self.caption_ids,
            self.image_ids,
            scale=self.scale,
            bias=self.bias,
            paired_by_rows=self.paired_by_rows,
            side=self.side,
        )

    def lowest_positive(self) -> Float[Tensor, ""]:
        """The smallest similarity of any positive pair, known before the first tile; 0 where there is none."""
        if not len(self.pair_image):
            return self.pair_similarity.new_zeros(())
        if len(self._first_pair) == 2:  # an only tile is computed once in any case
            next(self.walk())
            return self.pair_similarity.min()
        lowest = self.pair_similarity.new_full((), torch.inf)
        for image, caption in zip(self.pair_image.split(self.side), self.pair_caption.split(self.side), strict=True):
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
