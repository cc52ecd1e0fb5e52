"""Similarity functions: embeddings -> S, larger is closer. Stateless, without learned parameters."""

from jaxtyping import Float
from torch import Tensor

from tercet.similarity.blockwise import (
    SplitScorer,
    as_pair_scorer,
    blockwise_similarity,
    dot_product_scorer,
    split_scorer,
)
from tercet.similarity.cross_attention import CrossAttention
from tercet.similarity.order_embedding import order, order_of_pairs
from tercet.similarity.padded_sets import PaddedSets, RaggedSets, concat_padded, normalized_mean, zero_pad
from tercet.types import Similarity

__all__ = [
    "CrossAttention",
    "PaddedSets",
    "RaggedSets",
    "SplitScorer",
    "as_pair_scorer",
    "blockwise_similarity",
    "concat_padded",
    "dot_product_scorer",
    "dot_products",
    "normalized_mean",
    "order",
    "order_of_pairs",
    "split_scorer",
    "zero_pad",
]


def dot_products(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Similarity:
    """Dot products of all images with all captions; cosines if both are L2-normalized."""
    return images @ captions.T
