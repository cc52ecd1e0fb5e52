"""The two directions of a streamed batch, so that an objective is written once for both."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.reduction import Reduction, query_weights
from tercet.objectives.tiles import Tile, TiledSimilarity


class Side(NamedTuple):
    """One direction: the anchor of every positive pair, how many pairs each anchor has, and what each weighs."""

    is_image: bool
    pair_anchor: Int[Tensor, " pair"]
    pair_count: Int[Tensor, " anchor"]
    weights: Float[Tensor, " anchor"]

    def view(self, tile: Tile) -> tuple[Float[Tensor, "anchor candidate"], slice, int]:
        """(the tile with this direction's anchors as rows, which anchors, the first candidate)."""
        if self.is_image:
            return tile.similarity, tile.images, tile.captions.start
        return tile.similarity.T, tile.captions, tile.images.start


def both_sides(tiles: TiledSimilarity, reduction: Reduction) -> tuple[Side, Side]:
    """Image queries, caption queries."""
    dtype = tiles.pair_similarity.dtype

    def side(is_image: bool, pair_anchor: Tensor, anchors: int) -> Side:
        count = pair_anchor.bincount(minlength=anchors)
        return Side(is_image, pair_anchor, count, query_weights(count > 0, reduction, dtype))

    return side(True, tiles.pair_image, len(tiles.images)), side(False, tiles.pair_caption, len(tiles.captions))
