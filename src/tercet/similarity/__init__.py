"""Similarity functions: embeddings -> S, larger is closer. Stateless, without learned parameters."""

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

__all__ = [
    "CrossAttention",
    "PaddedSets",
    "RaggedSets",
    "SplitScorer",
    "as_pair_scorer",
    "blockwise_similarity",
    "concat_padded",
    "dot_product_scorer",
    "normalized_mean",
    "order",
    "order_of_pairs",
    "split_scorer",
    "zero_pad",
]
