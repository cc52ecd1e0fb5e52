"""Cross attention -> S, after SCAN (Lee et al., ECCV 2018) and BFAN (Liu et al., ACM MM 2019).

Every part of one side (a query) looks at the parts of the other (its context) and is compared with the mix of them
that it attends to. That mix is never formed: its product with the query is the mix of the raw products, and its
length comes from the context's own products with itself (its Gram matrix).
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.similarity.parts import Parts

Norm = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"]
Pooling = Literal["LogSumExp", "Mean", "Max", "Sum"]
Focus = Literal["all", "equal", "prob"]
Products = Float[Tensor, "item context other query"]

LEAK = 0.1
EPSILON = 1e-8
TINY = 1e-30  # below it a squared length is taken as 0


@dataclass(frozen=True)
class CrossAttention:
    """One direction: what the queries of one side find in the contexts of the other."""

    sharpness: float = 9.0
    """Inverse temperature of the attention."""
    norm: Norm = "clipped_l2norm"
    """How raw products are brought to one scale, along the queries."""
    focus: Focus = "all"
    """Which parts of a context are kept: all, those above the mean (equal) or above a weighted mean (prob)."""
    pooling: Pooling = "Mean"
    """How the queries' cosines become one number."""
    pooling_sharpness: float = 6.0
    """Of LogSumExp."""

    def __call__(self, contexts: Parts, queries: Parts) -> Float[Tensor, "item other"]:
        return self.pooled(self.cosines(contexts, queries), queries.real)

    def cosines(self, contexts: Parts, queries: Parts) -> Float[Tensor, "item other query"]:
        """Of each query with what it attends to in each context."""
        items, longest = contexts.real.shape
        others, most = queries.real.shape
        products = contexts.vectors.flatten(0, 1) @ queries.vectors.flatten(0, 1).T
        weights = self.attention(products.view(items, longest, others, most), contexts.real, queries.real)
        weights, products = weights.flatten(2), products.view(items, longest, others * most)
        found = (weights * products).sum(dim=1)
        gram = contexts.vectors @ contexts.vectors.mT
        squares = (weights * (gram @ weights)).sum(dim=1)
        lengths = squares.clamp(min=TINY).sqrt() * queries.vectors.norm(dim=2).flatten()
        return (found / lengths.clamp(min=EPSILON)).view(items, others, most)

    def attention(
        self, products: Products, contexts: Bool[Tensor, "item context"], queries: Bool[Tensor, "other query"]
    ) -> Products:
        """Of each query over its context: adds up to 1, and is 0 where padded."""
        scaled = _scaled(products, queries, self.norm, self.sharpness)
        if not contexts.all():
            # Finite: an empty context gets even weights on its zeros, not NaN.
            scaled = scaled.masked_fill(~contexts[:, :, None, None], torch.finfo(scaled.dtype).min)
        weights = torch.softmax(scaled, dim=1)
        if self.focus == "all":
            return weights
        kept = torch.where(_gate(weights.detach(), contexts, self.focus), weights, 0)
        return kept / kept.sum(dim=1, keepdim=True)

    def pooled(
        self, cosines: Float[Tensor, "item other query"], queries: Bool[Tensor, "other query"]
    ) -> Float[Tensor, "item other"]:
        """Over the real queries of each set; an empty one gives 0."""
        queries = queries | ~queries.any(dim=1, keepdim=True)  # its cosines are 0
        if self.pooling == "LogSumExp":
            sharp = (self.pooling_sharpness * cosines).masked_fill(~queries, float("-inf"))
            return sharp.logsumexp(dim=2) / self.pooling_sharpness
        if self.pooling == "Max":
            return cosines.masked_fill(~queries, float("-inf")).amax(dim=2)
        total = cosines.masked_fill(~queries, 0).sum(dim=2)
        return total / queries.sum(dim=1) if self.pooling == "Mean" else total


def _scaled(products: Products, queries: Bool[Tensor, "other query"], norm: Norm, sharpness: float) -> Products:
    """Sharpened, after each part of a context has been brought to one scale along the queries."""
    if norm == "softmax":
        return sharpness * torch.softmax(products.masked_fill(~queries, torch.finfo(products.dtype).min), dim=3)
    clipped = F.leaky_relu(products, LEAK) if norm.startswith("clipped") else products
    if norm in ("clipped", "no_norm"):
        return sharpness * clipped
    lengths = torch.linalg.vector_norm(clipped, 2 if norm.endswith("l2norm") else 1, dim=3, keepdim=True)
    return clipped * (sharpness / (lengths + EPSILON))


def _gate(
    weights: Products, contexts: Bool[Tensor, "item context"], focus: Focus
) -> Bool[Tensor, "item context other query"]:
    """Which parts are kept; where all are alike and none is above the mean, all are: published, that is 0/0."""
    if focus == "equal":
        kept = weights * contexts.sum(dim=1)[:, None, None, None] > weights.sum(dim=1, keepdim=True)
    else:
        roots = weights.sqrt()
        kept = weights * roots.sum(dim=1, keepdim=True) > (weights * roots).sum(dim=1, keepdim=True)
    return kept | ~kept.any(dim=1, keepdim=True)
