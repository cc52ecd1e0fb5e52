"""What each query weighs in the total: part of the scalar and of every gradient."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Reduction = Literal["sum", "mean"]


def weight_of_each(queries: int, reduction: Reduction) -> float:
    """Of one direction, where every anchor is a query."""
    return 1.0 if reduction == "sum" else 0.5 / max(1, queries)


def query_weights(
    is_query: Bool[Tensor, " anchor"], reduction: Reduction, dtype: torch.dtype
) -> Float[Tensor, " anchor"]:
    """Of one direction: 1 in a sum, half of one over the number of queries in a mean; 0 without a positive."""
    weights = is_query.to(dtype)
    return weights if reduction == "sum" else 0.5 * weights / is_query.sum().clamp(min=1)
