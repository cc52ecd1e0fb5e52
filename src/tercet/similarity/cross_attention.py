"""Cross attention -> S, after SCAN (Lee et al., ECCV 2018) and BFAN (Liu et al., ACM MM 2019).

Every part of one side (a query) looks at the parts of the other (its context) and is compared with the mix of them
that it attends to. That mix is never formed: its product with the query is the mix of the raw products, and its
length comes from the context's own products with itself (its Gram matrix).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.similarity.parts import Parts

Norm = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"]
Pooling = Literal["LogSumExp", "Mean", "Max", "Sum"]
Focus = Literal["all", "equal", "prob"]
Products = Float[Tensor, "item context query other"]
"""Queries of one place beside each other: sums over a set of queries then run along whole vectors."""

LEAK = 0.1
EPSILON = 1e-8
TINY = 1e-38  # below it a squared length is taken as 0
SAFE = 20.0  # exp(+-SAFE), squared and multiplied by squared lengths, is a float32


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

    def __call__(
        self, contexts: Parts, queries: Parts, products: Products | None = None
    ) -> Float[Tensor, "item other"]:
        """`products`: of all parts with each other, where they are known already."""
        products = products_of(contexts, queries) if products is None else products
        return self.pooled(self._cosines(contexts, queries.lengths, queries.by_query, products), queries.by_query)

    def of_pairs(self, contexts: Parts, queries: Parts) -> Float[Tensor, " pair"]:
        """Of item k with other k alone: as many numbers as there are pairs, and no square of them."""
        products = (contexts.vectors @ queries.vectors.mT)[..., None]  # each context meets one other
        real = queries.real[:, :, None]
        cosines = self._cosines(contexts, queries.vectors.norm(dim=2), real, products)
        return self.pooled(cosines, real)[:, 0]

    def _cosines(
        self,
        contexts: Parts,
        lengths: Float[Tensor, "*item queries"],
        real: Bool[Tensor, "#item query other"],
        products: Products,
    ) -> Float[Tensor, "item query other"]:
        """Of each query with what it attends to in each context; 0, and without a gradient, where one has no length."""
        weights = self._weights(products, contexts.real, real)
        found, squares = _Mix.apply(weights.flatten(2), products.flatten(2), contexts.gram)  # type: ignore[no-untyped-call]
        there = (squares > TINY) & (lengths.square() > TINY)
        lengths = torch.where(there, squares, 1).sqrt() * lengths.clamp(min=EPSILON)
        return torch.where(there, found / lengths, 0).unflatten(1, products.shape[2:])

    def attention(self, contexts: Parts, queries: Parts) -> Float[Tensor, "item context other query"]:
        """Of each query over its context: adds up to 1, and is 0 where padded."""
        weights = self._weights(products_of(contexts, queries), contexts.real, queries.by_query)
        return (weights / weights.sum(dim=1, keepdim=True).clamp(min=TINY)).mT

    def _weights(
        self, products: Products, contexts: Bool[Tensor, "item context"], queries: Bool[Tensor, "#item query other"]
    ) -> Products:
        """The attention up to a factor of each query, on which no cosine depends."""
        scaled = _scaled(products, queries, self.norm, self.sharpness)
        if not (self.norm.endswith(("l1norm", "l2norm")) and self.sharpness <= SAFE):  # those are within +-sharpness
            scaled = scaled - _largest(scaled.detach(), contexts)
        weights = scaled.exp() if torch.is_grad_enabled() else scaled.exp_()
        if not contexts.all():
            weights = weights.masked_fill(~contexts[:, :, None, None], 0)
        if self.focus == "all":
            return weights
        return weights.masked_fill(weights.detach() <= _threshold(weights.detach(), contexts, self.focus), 0)

    def pooled(
        self, cosines: Float[Tensor, "item query other"], queries: Bool[Tensor, "#item query other"]
    ) -> Float[Tensor, "item other"]:
        """Over the real queries of each set; an empty one gives 0."""
        real = queries | ~queries.any(dim=1, keepdim=True)  # the cosines of an empty one are 0
        if self.pooling == "LogSumExp":
            sharp = (self.pooling_sharpness * cosines).masked_fill(~real, float("-inf"))
            return sharp.logsumexp(dim=1) / self.pooling_sharpness
        if self.pooling == "Max":
            return cosines.masked_fill(~real, float("-inf")).amax(dim=1)
        total = cosines.masked_fill(~real, 0).sum(dim=1)
        return total / real.sum(dim=1) if self.pooling == "Mean" else total


def products_of(contexts: Parts, queries: Parts) -> Products:
    """Of every part with every query."""
    return (contexts.vectors.flatten(0, 1) @ queries.by_place.T).view(*contexts.real.shape, *queries.real.T.shape)


def seen_from_the_other_side(products: Products) -> Float[Tensor, "other query context item"]:
    """The same products, queries and contexts in each other's place."""
    return products.permute(3, 2, 1, 0).contiguous()


def _scaled(products: Products, queries: Bool[Tensor, "#item query other"], norm: Norm, sharpness: float) -> Products:
    """Sharpened, after each part of a context has been brought to one scale along the queries. Always a new tensor."""
    if norm == "softmax":
        return sharpness * torch.softmax(
            products.masked_fill(~queries[:, None], torch.finfo(products.dtype).min), dim=2
        )
    clipped = F.leaky_relu(products, LEAK) if norm.startswith("clipped") else products
    if norm in ("clipped", "no_norm"):
        return sharpness * clipped
    if norm.endswith("l2norm"):
        # Far below EPSILON, but not 0, where the root has no slope. (torch's norm along this axis is slow.)
        lengths = (clipped * clipped).sum(dim=2, keepdim=True).clamp(min=EPSILON**3).sqrt()
    else:
        lengths = clipped.abs().sum(dim=2, keepdim=True)
    factors = sharpness / (lengths + EPSILON)
    return clipped * factors if torch.is_grad_enabled() or clipped is products else clipped.mul_(factors)


def _largest(scaled: Products, contexts: Bool[Tensor, "item context"]) -> Float[Tensor, "item 1 query other"]:
    """Of the real parts of each context; 0 where there are none."""
    real = contexts[:, :, None, None]
    largest = scaled.masked_fill(~real, torch.finfo(scaled.dtype).min).amax(dim=1, keepdim=True)
    return largest.masked_fill(~real.any(dim=1, keepdim=True), 0)


def _threshold(
    weights: Products, contexts: Bool[Tensor, "item context"], focus: Focus
) -> Float[Tensor, "item 1 query other"]:
    """What is above it is kept. Where nothing would be, since all are alike, all is: published, that is 0/0."""
    if focus == "equal":
        mean = weights.sum(dim=1, keepdim=True) / contexts.sum(dim=1)[:, None, None, None]
    else:
        roots = weights.sqrt()
        mean = (weights * roots).sum(dim=1, keepdim=True) / roots.sum(dim=1, keepdim=True)
    return torch.where(weights.amax(dim=1, keepdim=True) > mean, mean, -1)


class _Mix(torch.autograd.Function):
    """The product of each query with its mix, and that mix's squared length, from weights, products and the Gram
    matrix. Autograd would find the same gradient with a product more: it does not know that a Gram matrix is symmetric.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, products: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
        mixed = gram @ weights
        if not any(ctx.needs_input_grad):  # nobody needs them again: in place
            squares = mixed.mul_(weights).sum(dim=1)
            return weights.mul_(products).sum(dim=1), squares
        ctx.save_for_backward(weights, products, mixed)
        return (weights * products).sum(dim=1), (weights * mixed).sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_found: Tensor, for_squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, products, mixed = ctx.saved_tensors
        for_found, for_squares = for_found[:, None], for_squares[:, None]
        for_weights = (products * for_found).addcmul_(mixed, 2 * for_squares)
        return for_weights, weights * for_found, (weights * for_squares) @ weights.mT
