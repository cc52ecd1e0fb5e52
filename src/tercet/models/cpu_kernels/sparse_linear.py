"""Linear layer and L2 normalization for CPUs whose backward skips rows without a gradient.

With margin objectives many items have none, such as mined items in AOQ's second round whose hinges are satisfied. Their
rows of the gradient are exactly zero and add nothing to the gradient of the weights.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tercet.single_backward import single_backward

NO_SECOND = "projections on CPUs have a backward pass of their own"

MAX_ACTIVE_SHARE = 0.9  # above this share of rows with a gradient, gathering them costs more than it saves
MIN_NORM = 1e-12  # eps of F.normalize


class Projection(nn.Linear):
    """nn.Linear; gradients are equal up to the order of summation."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        if not _use_custom_backward(input):
            return super().forward(input)
        projected: Tensor = _Projected.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return projected


def l2_normalize_rows(vectors: Float[Tensor, "item dim"]) -> Float[Tensor, "item dim"]:
    """`l2_normalize` with a backward of three passes over the gradient instead of autograd's ten."""
    if not _use_custom_backward(vectors):
        return F.normalize(vectors, dim=-1)
    normalized: Tensor = _NormalizedRows.apply(vectors)  # type: ignore[no-untyped-call]
    return normalized


def _use_custom_backward(rows: Tensor) -> bool:
    """Only on CPUs (on a GPU, counting the active rows would force a synchronization) and not in a compiled graph."""
    full_precision = rows.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return (
        not torch.compiler.is_compiling()
        and torch.is_grad_enabled()
        and (full_precision and rows.ndim == 2 and rows.device.type == "cpu")
    )


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return F.linear(rows, weight, bias)

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        rows_need_grad, weight_needs_grad, bias_needs_grad = ctx.needs_input_grad
        active = rows_with_gradient(gradient)
        if active is not None:
            gradient = gradient.index_select(0, active)
            rows = rows.index_select(0, active) if weight_needs_grad else rows
        rows_grad = gradient @ weight if rows_need_grad else None
        if rows_grad is not None and active is not None:
            rows_grad = rows_grad.new_zeros(ctx.saved_tensors[0].shape).index_copy_(0, active, rows_grad)
        return (
            rows_grad,
            gradient.T @ rows if weight_needs_grad else None,
            gradient.sum(dim=0) if bias_needs_grad else None,
        )


def rows_with_gradient(gradient: Float[Tensor, "row dim"]) -> Tensor | None:
    """Indices of rows with a nonzero gradient; None if nearly all have one.

    Decided by the largest absolute entry: squares of tiny entries underflow to zero.
    """
    if not gradient.numel():
        return None
    active = gradient.abs().amax(dim=1).nonzero().flatten()
    return active if len(active) <= MAX_ACTIVE_SHARE * len(gradient) else None


class Normalized(NamedTuple):
    """u = v / |v| and what its gradient needs: that of v is that of u minus its component along u, divided by |v|."""

    vectors: Float[Tensor, "*item dim"]
    norms: Float[Tensor, "*item 1"]
    has_direction: Bool[Tensor, "*item 1"]
    """Zeros stay zeros."""

    @staticmethod
    def of(vectors: Float[Tensor, "*item dim"]) -> "Normalized":
        norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        clamped = norms.clamp_min(MIN_NORM)
        return Normalized(vectors / clamped, clamped, norms >= MIN_NORM)

    def backward(self, gradient: Float[Tensor, "*item dim"]) -> Float[Tensor, "*item dim"]:
        """The gradient of the vectors before normalization."""
        along = torch.linalg.vecdot(gradient, self.vectors)[..., None] * self.has_direction
        return torch.addcmul(gradient, self.vectors, along, value=-1).div_(self.norms)


class _NormalizedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        normalized = Normalized.of(vectors)
        ctx.save_for_backward(*normalized)
        return normalized.vectors

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return Normalized(*ctx.saved_tensors).backward(gradient)
