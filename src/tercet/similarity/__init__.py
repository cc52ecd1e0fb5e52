"""Embeddings -> S, larger is closer. Pure."""

from tercet.similarity.blocks import by_blocks
from tercet.similarity.compared import Compared, compared, compared_by_products
from tercet.similarity.cross_attention import CrossAttention
from tercet.similarity.ordering import order, order_of_pairs
from tercet.similarity.parts import Parts, joined, padded_with_zeros
from tercet.similarity.products import dot_products
from tercet.similarity.ragged import Ragged

__all__ = [
    "Compared",
    "CrossAttention",
    "Parts",
    "Ragged",
    "by_blocks",
    "compared",
    "compared_by_products",
    "dot_products",
    "joined",
    "order",
    "order_of_pairs",
    "padded_with_zeros",
]
