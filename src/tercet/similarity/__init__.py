"""Embeddings -> S, larger is closer. Pure."""

from tercet.similarity.blocks import by_blocks
from tercet.similarity.cross_attention import CrossAttention
from tercet.similarity.ordering import order, order_of_pairs
from tercet.similarity.parts import Parts, joined, padded_with_zeros
from tercet.similarity.products import dot_products
from tercet.similarity.ragged import Ragged

__all__ = [
    "CrossAttention",
    "Parts",
    "Ragged",
    "by_blocks",
    "dot_products",
    "joined",
    "order",
    "order_of_pairs",
    "padded_with_zeros",
]
