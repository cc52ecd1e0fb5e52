"""User-defined objectives: a gradient function, three weight functions, or any torch loss on S."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.hardest_triplet import TripletObjective, Triplets
from tercet.objectives.inputs import Rows, as_rows
from tercet.types import PairGradient, PairMask, Similarity

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, repr=False)
class CustomGradient(RowObjective):
    """`function(S, positives) -> G` with rows as anchors, before reduction; an `ignored` parameter gets that mask."""

    has_value = False

    function: Function = field(kw_only=False)

    @property
    def name(self) -> str:
        return _name_of(self.function)

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        # Gradients are enabled, as in the trial call of custom_objective: the function may use autograd itself.
        with torch.enable_grad():
            gradient = _call(self.function, rows._replace(similarity=rows.similarity.detach())).detach()
        if gradient.shape != rows.similarity.shape:
            raise ValueError(
                f"{self.name} returned shape {tuple(gradient.shape)} for similarity {tuple(rows.similarity.shape)}: "
                "a gradient must have the shape of S"
            )
        # The function may return anything (0 / 0) at ignored pairs and for anchors without a positive: set these to 0.
        counts = (rows.positives | rows.negatives) & rows.positives.any(dim=1, keepdim=True)
        return torch.where(counts, gradient, 0.0).to(rows.similarity.dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class CustomWeights(TripletObjective):
    """dL/dS_p = -T(S_p, S_n) P+(S_p) and dL/dS_n = T(S_p, S_n) P-(S_n), n the hardest negative, as in GOAL."""

    has_value = False

    triplet_weight: Function = field(kw_only=False)
    positive_weight: Function = field(kw_only=False)
    negative_weight: Function = field(kw_only=False)

    @property
    def name(self) -> str:
        return "/".join(map(_name_of, (self.triplet_weight, self.positive_weight, self.negative_weight)))

    def pull_and_push(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        weight, positive, negative = self.weights(triplets)
        return weight * positive, weight * negative

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor, Tensor]:
        s_p, s_n = torch.broadcast_tensors(triplets.s_p, triplets.s_n)
        return self.triplet_weight(s_p, s_n), self.positive_weight(s_p), self.negative_weight(s_n)


@dataclass(frozen=True, kw_only=True, repr=False)
class CustomLoss(RowObjective):
    """`function(S, positives) -> scalar`, a loss of both directions: autograd gives G, each direction is half of it.

    The loss has its own reduction and may have trainable parameters; `reduction` applies to the monitor only.
    """

    has_value = True

    function: Function = field(kw_only=False)

    @property
    def name(self) -> str:
        return _name_of(self.function)

    def on_similarity(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
    ) -> Float[Tensor, ""]:
        return self.value(similarity, positives, ignored)

    def value(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
    ) -> Float[Tensor, ""]:
        loss: Tensor = _call(self.function, as_rows(similarity, positives, ignored))
        return loss

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(_call(self.function, rows._replace(similarity=similarity)), similarity)
        return gradient if rows.ignored is None else gradient.masked_fill(rows.ignored, 0.0)

    def _directions(self, rows: Rows) -> tuple[PairGradient, PairGradient]:
        half = 0.5 * self.row_gradient(rows)
        return half, half


def custom_objective(function: Any, **settings: Any) -> RowObjective:
    """Build an objective from a function or three weight functions.

    A function is called once on a 3 x 3 batch, and not again in this process: a gradient returns a matrix, a loss a
    scalar.
    """
    unknown = sorted(set(settings) - {"reduction"})
    if unknown:
        raise ValueError(f"a user-defined objective has no setting {unknown[0]!r}; it has: reduction")
    if isinstance(function, tuple):
        if len(function) != 3 or not all(callable(weight) for weight in function):
            raise ValueError("user-defined weights must be three functions: T(S_p, S_n), P+(S_p), P-(S_n)")
        weights = CustomWeights(*function, **settings)
        weights.pair_gradient(torch.linspace(-0.5, 0.5, 9).reshape(3, 3))
        return weights
    if not callable(function):
        raise ValueError(
            f"an objective is a name, a function (S, positives) or three weight functions, got {function!r}"
        )
    is_gradient = _recall(function)
    if is_gradient is None:
        is_gradient = _returns_gradient(function)
        with suppress(TypeError):  # an object that cannot be hashed or weakly referenced is called again next time
            _known[function] = is_gradient
    return CustomGradient(function, **settings) if is_gradient else CustomLoss(function, **settings)


_known: WeakKeyDictionary[Function, bool] = WeakKeyDictionary()
"""Functions that were called: True if they return a gradient, False if they return a loss."""


def _recall(function: Function) -> bool | None:
    try:
        return _known.get(function)
    except TypeError:
        return None


def _returns_gradient(function: Function) -> bool:
    """Call the function on a small batch. Raises unless it returns a gradient or a loss."""
    with torch.enable_grad():
        sample = torch.linspace(-0.5, 0.5, 9).reshape(3, 3).requires_grad_()
        returned = _call(function, as_rows(sample, None, None))
    if not isinstance(returned, Tensor) or returned.shape not in ((), (3, 3)):
        got = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise ValueError(
            f"{_name_of(function)}(S, positives) returned {got} for a 3 x 3 similarity: "
            "expected a gradient of the same shape (rows as anchors) or a scalar loss"
        )
    if returned.ndim == 0 and not returned.requires_grad:
        raise ValueError(f"{_name_of(function)} returned a scalar that does not depend on S through autograd")
    return returned.ndim > 0


def _call(function: Function, rows: Rows) -> Any:
    signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    if "ignored" in signature.parameters:
        ignored = torch.zeros_like(rows.positives) if rows.ignored is None else rows.ignored
        return function(rows.similarity, rows.positives, ignored=ignored)
    if rows.ignored is not None:
        raise ValueError(f"{_name_of(function)}(S, positives) cannot ignore pairs: add a parameter named ignored")
    return function(rows.similarity, rows.positives)


def _name_of(function: Function) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    return getattr(inner, "__name__", type(inner).__name__)
