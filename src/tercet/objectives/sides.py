"""The two directions of a streamed batch, so that an objective is written once for both."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.reduction import Reduction, query_weights, weight_of_each
from tercet.objectives.tiles import Tile, TiledSimilarity


class Side(NamedTuple):
    """One direction: the anchor of every positive pair, how many pairs each anchor has, and what each weighs."""

    is_image: bool
    pair_anchor: Int[Tensor, " pair"]
    pair_count: Int[Tensor, " anchor"]
    weights: Float[Tensor, " anchor"]
    paired_by_rows: bool

    def view(self, tile: Tile) -> tuple[Float[Tensor, "anchor candidate"], slice, int]:
        """(the tile with this direction's anchors as rows, which anchors, the first candidate)."""
        if self.is_image:
            return tile.similarity, tile.images, tile.captions.start
        return tile.similarity.T, tile.captions, tile.images.start

    # Between anchors and pairs. Where row i of both is a pair they are the same, and nothing is to be done.

    def of_pairs(self, of_anchors: Float[Tensor, " anchor"]) -> Float[Tensor, " pair"]:
        return of_anchors if self.paired_by_rows else of_anchors[self.pair_anchor]

    def sum(self, terms: Float[Tensor, " pair"]) -> Float[Tensor, " anchor"]:
        if self.paired_by_rows:
            return terms
        return terms.new_zeros(len(self.weights)).index_add_(0, self.pair_anchor, terms)

    def logsumexp(self, terms: Float[Tensor, " pair"]) -> Float[Tensor, " anchor"]:
        """-inf where an anchor has no pair."""
        if self.paired_by_rows:
            return terms
        largest = terms.new_full((len(self.weights),), -torch.inf)
        largest = largest.scatter_reduce_(0, self.pair_anchor, terms, "amax")
        return largest + self.sum((terms - largest[self.pair_anchor]).exp()).log()


def both_sides(tiles: TiledSimilarity, reduction: Reduction) -> tuple[Side, Side]:
    """Image queries, caption queries."""
    like = tiles.pair_similarity

    def side(is_image: bool, pair_anchor: Tensor, anchors: int) -> Side:
        if tiles.paired_by_rows:
            weight = weight_of_each(anchors, reduction)
            return Side(is_image, pair_anchor, torch.ones_like(pair_anchor), torch.full_like(like, weight), True)
        count = pair_anchor.bincount(minlength=anchors)
        return Side(is_image, pair_anchor, count, query_weights(count > 0, reduction, like.dtype), False)

    return side(True, tiles.pair_image, len(tiles.images)), side(False, tiles.pair_caption, len(tiles.captions))
