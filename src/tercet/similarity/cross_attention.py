"""Cross-attention similarity of SCAN (Lee et al., ECCV 2018) and BFAN (Liu et al., ACM MM 2019).

Every query (a word or a region) attends to the elements of a context (the regions or words of the other modality) and
is compared with the attended vector, their weighted sum. That vector is never formed: its product with the query is the
weighted sum of the raw products, and its norm follows from the Gram matrix of the context.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.similarity.padded_sets import PaddedSets
from tercet.single_backward import single_backward

NO_SECOND = "cross attention has a backward pass of its own"

Norm = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"]
Pooling = Literal["LogSumExp", "Mean", "Max", "Sum"]
Focus = Literal["all", "equal", "prob"]
Products = Float[Tensor, "item context query other"]
"""Queries at the same position are contiguous, so that sums over a set of queries are vectorized."""

LEAK = 0.1
EPSILON = 1e-8
TINY = 1e-38  # squared norms below this count as 0
MAX_SAFE_EXPONENT = 20.0  # exp(+-20), squared and multiplied by squared norms, does not overflow float32


@dataclass(frozen=True)
class CrossAttention:
    """One attention direction: the queries of one modality attend to the contexts of the other."""

    inverse_temperature: float = 9.0
    """Inverse temperature of the attention."""
    norm: Norm = "clipped_l2norm"
    """Normalization of the raw products over the queries, before the softmax."""
    focus: Focus = "all"
    """Elements of a context that keep their attention: all, above the mean (equal) or above a weighted mean (prob)."""
    pooling: Pooling = "Mean"
    """Aggregation of the queries' cosines into one similarity."""
    pooling_inverse_temperature: float = 6.0
    """Inverse temperature of LogSumExp pooling."""

    def __call__(
        self, contexts: PaddedSets, queries: PaddedSets, products: Products | None = None
    ) -> Float[Tensor, "item other"]:
        """S of all contexts with all query sets; `products` are the raw products, if already computed."""
        products = products_of(contexts, queries) if products is None else products
        return self._pool(self._cosines(contexts, queries.norms, queries.query_mask, products), queries.query_mask)

    def of_pairs(self, contexts: PaddedSets, queries: PaddedSets) -> Float[Tensor, " pair"]:
        """Similarities of context k with query set k, without computing the full matrix."""
        products = (contexts.vectors @ queries.vectors.mT)[..., None]  # one query set per context
        real = queries.real[:, :, None]
        cosines = self._cosines(contexts, queries.vectors.norm(dim=2), real, products)
        return self._pool(cosines, real)[:, 0]

    def _cosines(
        self,
        contexts: PaddedSets,
        norms: Float[Tensor, "*item queries"],
        real: Bool[Tensor, "#item query other"],
        products: Products,
    ) -> Float[Tensor, "item query other"]:
        """Cosines of each query with its attended vector; 0 without a gradient where either norm is 0."""
        weights = self._weights(products, contexts.real, real)
        dots, squares = _Attended.apply(weights.flatten(2), products.flatten(2), contexts.gram)  # type: ignore[no-untyped-call]
        nonzero = (squares > TINY) & (norms.square() > TINY)
        norms = torch.where(nonzero, squares, 1).sqrt() * norms.clamp(min=EPSILON)
        return torch.where(nonzero, dots / norms, 0).unflatten(1, products.shape[2:])

    def attention(self, contexts: PaddedSets, queries: PaddedSets) -> Float[Tensor, "item context other query"]:
        """Attention of each query over its context: sums to 1, and is 0 where padded."""
        weights = self._weights(products_of(contexts, queries), contexts.real, queries.query_mask)
        return (weights / weights.sum(dim=1, keepdim=True).clamp(min=TINY)).mT

    def _weights(
        self, products: Products, contexts: Bool[Tensor, "item context"], queries: Bool[Tensor, "#item query other"]
    ) -> Products:
        """Unnormalized attention: the softmax denominator is a factor per query, which cancels in the cosine."""
        scaled = _scaled(products, queries, self.norm, self.inverse_temperature)
        # L1- and L2-normalized products are within +-inverse_temperature: exp cannot overflow.
        if not (self.norm.endswith(("l1norm", "l2norm")) and self.inverse_temperature <= MAX_SAFE_EXPONENT):
            scaled = scaled - _largest(scaled.detach(), contexts)
        weights = scaled.exp() if torch.is_grad_enabled() else scaled.exp_()
        if not contexts.all():
            weights = weights.masked_fill(~contexts[:, :, None, None], 0)
        if self.focus == "all":
            return weights
        return weights.masked_fill(weights.detach() <= _threshold(weights.detach(), contexts, self.focus), 0)

    def _pool(
        self, cosines: Float[Tensor, "item query other"], queries: Bool[Tensor, "#item query other"]
    ) -> Float[Tensor, "item other"]:
        """Pool the cosines over the real queries of each set; an empty set gives 0."""
        real = queries | ~queries.any(dim=1, keepdim=True)  # the cosines of an empty set are 0
        if self.pooling == "LogSumExp":
            exponents = (self.pooling_inverse_temperature * cosines).masked_fill(~real, float("-inf"))
            return exponents.logsumexp(dim=1) / self.pooling_inverse_temperature
        if self.pooling == "Max":
            return cosines.masked_fill(~real, float("-inf")).amax(dim=1)
        total = cosines.masked_fill(~real, 0).sum(dim=1)
        return total / real.sum(dim=1) if self.pooling == "Mean" else total


def products_of(contexts: PaddedSets, queries: PaddedSets) -> Products:
    """Dot products of every context element with every query."""
    return (contexts.vectors.flatten(0, 1) @ queries.position_major.T).view(*contexts.real.shape, *queries.real.T.shape)


def transpose_products(products: Products) -> Float[Tensor, "other query context item"]:
    """The same products with the roles of queries and contexts swapped."""
    return products.permute(3, 2, 1, 0).contiguous()


def _scaled(
    products: Products, queries: Bool[Tensor, "#item query other"], norm: Norm, inverse_temperature: float
) -> Products:
    """Normalize each context element's products over the queries and multiply by the inverse temperature.

    Always returns a new tensor.
    """
    if norm == "softmax":
        return inverse_temperature * torch.softmax(
            products.masked_fill(~queries[:, None], torch.finfo(products.dtype).min), dim=2
        )
    clipped = F.leaky_relu(products, LEAK) if norm.startswith("clipped") else products
    if norm in ("clipped", "no_norm"):
        return inverse_temperature * clipped
    if norm.endswith("l2norm"):
        # Clamped far below EPSILON, as sqrt has no derivative at 0. (torch's norm along this axis is slow.)
        norms = (clipped * clipped).sum(dim=2, keepdim=True).clamp(min=EPSILON**3).sqrt()
    else:
        norms = clipped.abs().sum(dim=2, keepdim=True)
    factors = inverse_temperature / (norms + EPSILON)
    return clipped * factors if torch.is_grad_enabled() or clipped is products else clipped.mul_(factors)


def _largest(scaled: Products, contexts: Bool[Tensor, "item context"]) -> Float[Tensor, "item 1 query other"]:
    """Maximum over the real elements of each context; 0 for an empty context."""
    real = contexts[:, :, None, None]
    largest = scaled.masked_fill(~real, torch.finfo(scaled.dtype).min).amax(dim=1, keepdim=True)
    return largest.masked_fill(~real.any(dim=1, keepdim=True), 0)


def _threshold(
    weights: Products, contexts: Bool[Tensor, "item context"], focus: Focus
) -> Float[Tensor, "item 1 query other"]:
    """Weights above the threshold are kept. If all are equal, all are kept; the published code divides 0 by 0."""
    if focus == "equal":
        mean = weights.sum(dim=1, keepdim=True) / contexts.sum(dim=1)[:, None, None, None]
    else:
        roots = weights.sqrt()
        mean = (weights * roots).sum(dim=1, keepdim=True) / roots.sum(dim=1, keepdim=True)
    return torch.where(weights.amax(dim=1, keepdim=True) > mean, mean, -1)


class _Attended(torch.autograd.Function):
    """Dot product of each query with its attended vector, and the squared norm of that vector, from weights, products
    and the Gram matrix. Autograd needs one matrix product more, as it does not know that a Gram matrix is symmetric.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, products: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
        weighted_gram = gram @ weights
        if not any(ctx.needs_input_grad):  # no backward: compute in place
            squares = weighted_gram.mul_(weights).sum(dim=1)
            return weights.mul_(products).sum(dim=1), squares
        ctx.save_for_backward(weights, products, weighted_gram)
        return (weights * products).sum(dim=1), (weights * weighted_gram).sum(dim=1)

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, dots_grad: Tensor, squares_grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, products, weighted_gram = ctx.saved_tensors
        dots_grad, squares_grad = dots_grad[:, None], squares_grad[:, None]
        weights_grad = (products * dots_grad).addcmul_(weighted_gram, 2 * squares_grad)
        return weights_grad, weights * dots_grad, (weights * squares_grad) @ weights.mT
