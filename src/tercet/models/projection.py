"""A linear layer and a unit length whose backward costs what the rows with a gradient cost.

Objectives with margins leave many items without any: of mined members in a second round those whose hinges are
satisfied. Their rows of the gradient are exact zeros, and add nothing to the gradient of the weights.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tercet.models.norms import unit

WORTH_GATHERING = 0.9  # where more of the rows have a gradient, gathering them costs what it saves
SHORTEST = 1e-12  # of F.normalize


class Projection(nn.Linear):
    """nn.Linear, its gradients equal up to the order of summation."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        if not _by_hand(input):
            return super().forward(input)
        projected: Tensor = _Projected.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return projected


def unit_rows(vectors: Float[Tensor, "item dim"]) -> Float[Tensor, "item dim"]:
    """`unit`, whose backward goes over the gradient three times where autograd's goes ten."""
    if not _by_hand(vectors):
        return unit(vectors)
    made: Tensor = _Unit.apply(vectors)  # type: ignore[no-untyped-call]
    return made


def _by_hand(rows: Tensor) -> bool:
    """Not on a device, which would have to be waited for to know how many rows there are, nor in a compiled graph."""
    wide = rows.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return (
        not torch.compiler.is_compiling()
        and torch.is_grad_enabled()
        and (wide and rows.ndim == 2 and rows.device.type == "cpu")
    )


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return F.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        active = rows_with_gradient(gradient)
        if active is not None:
            gradient = gradient.index_select(0, active)
            rows = rows.index_select(0, active) if for_weight else rows
        of_rows = gradient @ weight if for_rows else None
        if of_rows is not None and active is not None:
            of_rows = of_rows.new_zeros(ctx.saved_tensors[0].shape).index_copy_(0, active, of_rows)
        return of_rows, gradient.T @ rows if for_weight else None, gradient.sum(dim=0) if for_bias else None


def rows_with_gradient(gradient: Float[Tensor, "row dim"]) -> Tensor | None:
    """Their numbers; None where nearly all have one. The largest entry tells: squares of the smallest are zero."""
    if not gradient.numel():
        return None
    active = gradient.abs().amax(dim=1).nonzero().flatten()
    return active if len(active) <= WORTH_GATHERING * len(gradient) else None


class _Unit(torch.autograd.Function):
    """u = v / |v|: the gradient on v is that on u, less its part along u, over |v|. Zeros stay zeros."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        kept = lengths.clamp_min(SHORTEST)
        made = vectors / kept
        ctx.save_for_backward(made, kept, lengths >= SHORTEST)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        made, kept, long_enough = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, made)[:, None] * long_enough
        return torch.addcmul(gradient, made, along, value=-1).div_(kept)
