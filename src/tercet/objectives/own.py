"""A user's own objective: a gradient function, three weight functions, or any torch loss on S."""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.contracts import PairGradient, PairMask, Similarity
from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows, as_rows
from tercet.objectives.triplets import TripletObjective, Triplets

Weight = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnGradient(RowObjective):
    """`function(S, positives) -> G` with rows as anchors, before reduction; a third parameter receives `ignored`."""

    function: Callable[..., Tensor] = field(kw_only=False)

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
        gradient = _call(self.function, rows)
        if gradient.shape != rows.similarity.shape:
            raise ValueError(
                f"{self.name} returned shape {tuple(gradient.shape)} for similarity {tuple(rows.similarity.shape)}: "
                "a gradient has the shape of S"
            )
        return gradient.detach()


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnWeights(TripletObjective):
    """dL/dS_p = -T(S_p, S_n) P+(S_p) and dL/dS_n = T(S_p, S_n) P-(S_n) on the hardest negative, as in GOAL."""

    triplet_weight: Weight = field(kw_only=False)
    positive_weight: Weight = field(kw_only=False)
    negative_weight: Weight = field(kw_only=False)

    @property
    def name(self) -> str:
        return "/".join(_name_of(weight) for weight in (self.triplet_weight, self.positive_weight))

    @property
    def has_value(self) -> bool:
        return False

    def weigh(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        s_p, s_n = torch.broadcast_tensors(triplets.s_p, triplets.s_n)
        weight = self.triplet_weight(s_p, s_n)
        return weight * self.positive_weight(s_p), weight * self.negative_weight(s_n)


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnLoss(RowObjective):
    """`function(S, positives) -> scalar`, taken whole as it is: autograd gives G, and each direction is half of it.

    Such a loss has its own reduction; `reduction` here scales only the monitor.
    """

    function: Callable[..., Tensor] = field(kw_only=False)

    @property
    def name(self) -> str:
        return _name_of(self.function)

    @property
    def can_stream(self) -> bool:
        return False

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            loss = _call(self.function, rows._replace(similarity=similarity))
            (gradient,) = torch.autograd.grad(loss, similarity)
        return gradient

    def value(
        self, similarity: Similarity, positives: PairMask | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        return _call(self.function, as_rows(similarity, positives, ignored))

    def _directions(
        self, similarity: Similarity, positives: PairMask | None, ignored: PairMask | None
    ) -> tuple[PairGradient, PairGradient]:
        half = 0.5 * self.row_gradient(as_rows(similarity, positives, ignored))
        return half, half


def own_objective(given: Any, **settings: Any) -> RowObjective:
    """Tell the three kinds apart; a function is tried once on a 3 x 3 batch to see what it returns."""
    if isinstance(given, tuple):
        if len(given) != 3 or not all(callable(weight) for weight in given):
            raise ValueError("own weights are three functions: T(S_p, S_n), P+(S_p), P-(S_n)")
        return OwnWeights(*given, **settings)
    if not callable(given):
        raise ValueError(f"an objective is a name, a function (S, positives) or three weight functions, got {given!r}")
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


def function_from_file(location: str) -> Any:
    """What stands behind `path/to/mine.py:name`."""
    path, _, name = location.rpartition(":")
    if not Path(path).is_file():
        raise ValueError(f"{location}: no file {path!r}; expected path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        defined = ", ".join(key for key in vars(module) if not key.startswith("_"))
        raise ValueError(f"{path} defines no {name!r}; it defines: {defined}")
    return getattr(module, name)


def _call(function: Callable[..., Tensor], rows: Rows) -> Tensor:
    ignored = ~(rows.positives | rows.negatives)
    takes_ignored = len(inspect.signature(function).parameters) >= 3
    if takes_ignored:
        return function(rows.similarity, rows.positives, ignored)
    if ignored.any():
        raise ValueError(f"{_name_of(function)}(S, positives) cannot leave out pairs: add a third parameter, ignored")
    return function(rows.similarity, rows.positives)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
