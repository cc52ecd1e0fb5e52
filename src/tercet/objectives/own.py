"""A user's own objective: a gradient function, three weight functions, or any torch loss on S."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.contracts import PairGradient, PairMask, Similarity
from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows, as_rows
from tercet.objectives.triplets import TripletObjective, Triplets

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnGradient(RowObjective):
    """`function(S, positives) -> G` with rows as anchors, before reduction; a parameter `ignored` gets that mask."""

    function: Function = field(kw_only=False)

    @property
    def name(self) -> str:
        return _name_of(self.function)

    @property
    def has_value(self) -> bool:
        return False

    @property
    def can_stream(self) -> bool:
        return False

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        # Grad is on, as it was when the function was tried: it may differentiate something itself.
        with torch.enable_grad():
            gradient = _call(self.function, rows._replace(similarity=rows.similarity.detach())).detach()
        if gradient.shape != rows.similarity.shape:
            raise ValueError(
                f"{self.name} returned shape {tuple(gradient.shape)} for similarity {tuple(rows.similarity.shape)}: "
                "a gradient has the shape of S"
            )
        # What a function says of ignored pairs, or of anchors without a positive (0 / 0), must not spread.
        counts = (rows.positives | rows.negatives) & rows.positives.any(dim=1, keepdim=True)
        return torch.where(counts, gradient, 0.0).to(rows.similarity.dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnWeights(TripletObjective):
    """dL/dS_p = -T(S_p, S_n) P+(S_p) and dL/dS_n = T(S_p, S_n) P-(S_n) on the hardest negative, as in GOAL."""

    triplet_weight: Function = field(kw_only=False)
    positive_weight: Function = field(kw_only=False)
    negative_weight: Function = field(kw_only=False)

    @property
    def name(self) -> str:
        return "/".join(map(_name_of, (self.triplet_weight, self.positive_weight, self.negative_weight)))

    @property
    def has_value(self) -> bool:
        return False

    def weigh(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        weight, positive, negative = self.weights(triplets)
        return weight * positive, weight * negative

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor, Tensor]:
        s_p, s_n = torch.broadcast_tensors(triplets.s_p, triplets.s_n)
        return self.triplet_weight(s_p, s_n), self.positive_weight(s_p), self.negative_weight(s_n)


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnLoss(RowObjective):
    """`function(S, positives) -> scalar`, taken whole as it is: autograd gives G, and each direction is half of it.

    Such a loss has its own reduction, and may have parameters of its own, which train; `reduction` here scales only the
    monitor.
    """

    function: Function = field(kw_only=False)

    @property
    def name(self) -> str:
        return _name_of(self.function)

    @property
    def can_stream(self) -> bool:
        return False

    def on_similarity(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""]:
        return self.value(similarity, positives, ignored, mined=mined)

    def value(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""]:
        loss: Tensor = _call(self.function, self.rows_of(similarity, positives, ignored, mined))
        return loss

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(_call(self.function, rows._replace(similarity=similarity)), similarity)
        return gradient if rows.ignored is None else gradient.masked_fill(rows.ignored, 0.0)

    def _directions(self, rows: Rows) -> tuple[PairGradient, PairGradient]:
        half = 0.5 * self.row_gradient(rows)
        return half, half


def own_objective(given: Any, **settings: Any) -> RowObjective:
    """Tell the three kinds apart; what is given is tried once on a 3 x 3 batch to see what it returns."""
    unknown = sorted(set(settings) - {"reduction"})
    if unknown:
        raise ValueError(f"one's own objective has no setting {unknown[0]!r}; it has: reduction")
    if isinstance(given, tuple):
        if len(given) != 3 or not all(callable(weight) for weight in given):
            raise ValueError("own weights are three functions: T(S_p, S_n), P+(S_p), P-(S_n)")
        weights = OwnWeights(*given, **settings)
        weights.pair_gradient(torch.linspace(-0.5, 0.5, 9).reshape(3, 3))
        return weights
    if not callable(given):
        raise ValueError(f"an objective is a name, a function (S, positives) or three weight functions, got {given!r}")
    with torch.enable_grad():
        sample = torch.linspace(-0.5, 0.5, 9).reshape(3, 3).requires_grad_()
        returned = _call(given, as_rows(sample, None, None))
    if not isinstance(returned, Tensor) or returned.shape not in ((), (3, 3)):
        found = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise ValueError(
            f"{_name_of(given)}(S, positives) returned {found} for a 3 x 3 similarity: "
            "expected a gradient of the same shape (rows as anchors) or a scalar loss"
        )
    if returned.ndim == 0 and not returned.requires_grad:
        raise ValueError(f"{_name_of(given)} returned a scalar that does not depend on S through autograd")
    return OwnGradient(given, **settings) if returned.ndim else OwnLoss(given, **settings)


def _call(function: Function, rows: Rows) -> Any:
    takes = function.forward if isinstance(function, torch.nn.Module) else function
    if "ignored" in inspect.signature(takes).parameters:
        ignored = torch.zeros_like(rows.positives) if rows.ignored is None else rows.ignored
        return function(rows.similarity, rows.positives, ignored=ignored)
    if rows.ignored is not None:
        raise ValueError(f"{_name_of(function)}(S, positives) cannot leave out pairs: add a parameter named ignored")
    return function(rows.similarity, rows.positives)


def _name_of(function: Function) -> str:
    inner = getattr(function, "func", function)  # a partial goes by what it is a part of
    return getattr(inner, "__name__", type(inner).__name__)
