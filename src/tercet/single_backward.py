"""Backward passes written by hand: they may be differentiated once, and not by the transforms of `torch.func`.

`once_differentiable` of torch lets a second derivative pass silently wherever the upstream gradient is a constant: what
comes back then lacks the terms that go through the saved tensors. `single_backward` raises instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]


def single_backward(why: str) -> Callable[[Backward], Backward]:
    """Decorator of a `backward`: it runs without a graph, and differentiating its results raises with `why`."""

    def decorate(backward: Backward) -> Backward:
        def checked(ctx: Any, *upstream: Any) -> Any:
            if not torch.is_grad_enabled():  # enabled in a backward pass only if create_graph=True
                return backward(ctx, *upstream)
            with torch.no_grad():
                gradients = backward(ctx, *upstream)
            sources = [x for x in (*ctx.saved_tensors, *upstream) if isinstance(x, Tensor) and x.requires_grad]
            if isinstance(gradients, Tensor):
                return _refused(gradients, why, sources)
            return tuple(_refused(x, why, sources) if isinstance(x, Tensor) else x for x in gradients)

        return checked

    return decorate


def applied(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """`function.apply(*arguments)`; under a transform of `torch.func`, an error that says what to use instead."""
    try:
        result: Tensor = function.apply(*arguments)
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
        raise RuntimeError(
            "torch.func (vmap, grad, jvp, ...) cannot go through this backward pass, which is written by hand: use "
            "objective.value(S, positives), where it exists, or objective.pair_gradient(S, positives)"
        ) from error
    return result


def _refused(gradient: Tensor, why: str, sources: list[Tensor]) -> Tensor:
    refused: Tensor = _NoSecondDerivative.apply(why, gradient, *sources)  # type: ignore[no-untyped-call]
    return refused


class _NoSecondDerivative(torch.autograd.Function):
    """The identity, whose backward raises. It depends on `sources`, so that a second derivative gets here."""

    @staticmethod
    def forward(ctx: Any, why: str, gradient: Tensor, *sources: Tensor) -> Tensor:
        ctx.why = why
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        raise RuntimeError(f"no second derivative: {ctx.why}")
