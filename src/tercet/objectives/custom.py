"""User-defined objectives: a gradient function, three weight functions, or any torch loss on S.

Keyword parameters of a function with a number, text, boolean or None as default are its settings.
"""

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.in_memory import name_of
from tercet.names import suggest
from tercet.objectives.base import RowObjective
from tercet.objectives.hardest_triplet import TripletObjective, Triplets
from tercet.objectives.inputs import BatchFacts, Rows, as_rows
from tercet.types import MaskOrWeights, PairGradient, PairMask, Similarity

Function = Callable[..., Any]
FACTS = ("image_ids", "caption_ids", "images", "captions", "step")
OF_ROWS = {"anchor_ids": "image_ids", "candidate_ids": "caption_ids", "anchors": "images", "candidates": "captions"}
SPLIT_TOLERANCE = 1e-4  # of the largest entry of G, up to which a loss counts as a sum over queries


@dataclass(frozen=True, kw_only=True, repr=False)
class FunctionObjective(RowObjective):
    """An objective of a user's function; its settings are the keyword parameters of the function, and `reduction`.

    Parameters with these names are no settings but facts about the batch: `ignored` and `grades` (the weights of the
    positives); `step`, the number of the training step; of a loss `image_ids`, `caption_ids`, `images` and `captions`
    (embeddings); of a gradient the same for its rows and columns: `anchor_ids`, `candidate_ids`, `anchors`,
    `candidates`.
    """

    function: Function = field(kw_only=False)
    arguments: tuple[tuple[str, Any], ...] = field(default=(), kw_only=False)
    """Values of all its keyword parameters that are settings."""
    facts: BatchFacts | None = field(default=None, kw_only=False, compare=False)

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | dict(self.arguments)

    def with_settings(self, **settings: Any) -> RowObjective:
        return custom_objective(self.function, **self.settings | settings)

    def _defaults(self) -> dict[str, Any]:
        return super()._defaults() | keyword_settings(self.function)

    @property
    def states(self) -> tuple[Any, ...]:
        return _states(self.function)

    @property
    def takes_grades(self) -> bool:
        return "grades" in _signature(self.function).parameters

    @property
    def asks(self) -> frozenset[str]:
        return frozenset(_signature(self.function).parameters) & {*FACTS, *OF_ROWS}

    def given(self, facts: BatchFacts) -> RowObjective:
        known = self.facts.step if self.facts is not None and facts.step is None else facts.step
        return replace(self, facts=facts._replace(step=known))

    def call(self, rows: Rows) -> Any:
        return _call(self.function, rows, dict(self.arguments), self.facts)


@dataclass(frozen=True, kw_only=True, repr=False)
class CustomGradient(FunctionObjective):
    """`function(S, positives) -> G` with rows as anchors, before reduction; an `ignored` parameter gets that mask."""

    has_value = False

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        # Gradients are enabled, as in the trial call of custom_objective: the function may use autograd itself.
        with torch.enable_grad():
            gradient = self.call(rows._replace(similarity=rows.similarity.detach())).detach()
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
        return "/".join(map(name_of, (self.triplet_weight, self.positive_weight, self.negative_weight)))

    @property
    def states(self) -> tuple[Any, ...]:
        return _states(self.triplet_weight, self.positive_weight, self.negative_weight)

    def pull_and_push(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        weight, positive, negative = self.weights(triplets)
        return weight * positive, weight * negative

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor, Tensor]:
        s_p, s_n = torch.broadcast_tensors(triplets.s_p, triplets.s_n)
        return self.triplet_weight(s_p, s_n), self.positive_weight(s_p), self.negative_weight(s_n)


@dataclass(frozen=True, kw_only=True, repr=False)
class CustomLoss(FunctionObjective):
    """`function(S, positives) -> scalar`, a loss of both directions: autograd gives G.

    The loss has its own reduction and may have trainable parameters; `reduction` applies to the monitor only. Where the
    loss is a sum over queries, its two directions are found by calling it on one query at a time: the other side of a
    single image has no negatives. A loss that is no such sum has no directions: each is then half of G.
    """

    has_value = True

    def on_similarity(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> Float[Tensor, ""]:
        return self.value(similarity, positives, ignored)

    def value(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> Float[Tensor, ""]:
        loss: Tensor = self.call(self._rows(similarity, positives, ignored))
        return loss

    def one_direction(
        self,
        similarity: Float[Tensor, "anchor candidate"],
        positives: MaskOrWeights | None = None,
        ignored: Bool[Tensor, "anchor candidate"] | None = None,
    ) -> Float[Tensor, ""]:
        raise ValueError(f"{self.name} is a loss of both directions at once: it cannot be used with a queue")

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.call(rows._replace(similarity=similarity)), similarity)
        return gradient if rows.ignored is None else gradient.masked_fill(rows.ignored, 0.0)

    def pair_gradient(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> PairGradient:
        return self.row_gradient(self._rows(similarity, positives, ignored)).to(similarity.dtype)

    def _directions(self, rows: Rows) -> tuple[PairGradient, PairGradient]:
        gradient = self.row_gradient(rows)
        return self._query_gradients(rows, gradient) or (0.5 * gradient, 0.5 * gradient)

    def _both_directions(self, rows: Rows) -> tuple[Float[Tensor, ""], PairGradient]:
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            value = self.call(rows._replace(similarity=similarity))
            (gradient,) = torch.autograd.grad(value, similarity)
        return value.detach(), gradient if rows.ignored is None else gradient.masked_fill(rows.ignored, 0.0)

    def _query_gradients(self, rows: Rows, gradient: PairGradient) -> tuple[PairGradient, PairGradient] | None:
        """The parts of the gradient of image and of caption queries; None if the loss is not a sum over queries."""
        if self.asks:  # facts are about the whole batch
            return None
        try:
            i2t = torch.cat([self._single(rows, image=i) for i in range(len(gradient))])
            t2i = torch.cat([self._single(rows, caption=j) for j in range(gradient.shape[1])], dim=1)
        except (ValueError, RuntimeError, IndexError, TypeError):  # a loss for square matrices only
            return None
        # One factor for all queries of a direction, by least squares: a mean divides by their number.
        parts, wanted = torch.stack([i2t.flatten(), t2i.flatten()]).double(), gradient.flatten().double()
        if not bool(parts.isfinite().all() & wanted.isfinite().all()):
            return None
        factors = torch.linalg.pinv(parts @ parts.T, hermitian=True) @ (parts @ wanted)
        if not bool(((factors @ parts - wanted).abs() <= SPLIT_TOLERANCE * wanted.abs().max()).all()):
            return None
        return float(factors[0]) * i2t, float(factors[1]) * t2i

    def _single(self, rows: Rows, *, image: int | None = None, caption: int | None = None) -> PairGradient:
        """The gradient of the loss on one row or one column."""
        images, captions = (slice(None) if n is None else slice(n, n + 1) for n in (image, caption))
        query = rows.map(lambda matrix: matrix[images, captions])
        return self.row_gradient(query) if bool(query.positives.any()) else torch.zeros_like(query.similarity)


def custom_objective(function: Any, **settings: Any) -> RowObjective:
    """Build an objective from a function or three weight functions.

    A function is called once on a 3 x 3 batch, and not again with the same settings in this process: a gradient returns
    a matrix, a loss a scalar.
    """
    if isinstance(function, tuple):
        _check_names("an objective of three weights", settings, {})
        if len(function) != 3 or not all(callable(weight) for weight in function):
            raise ValueError("user-defined weights must be three functions: T(S_p, S_n), P+(S_p), P-(S_n)")
        weights = CustomWeights(*function, **settings)
        weights.pair_gradient(torch.linspace(-0.5, 0.5, 9).reshape(3, 3))
        return weights
    if not callable(function):
        raise ValueError(
            f"an objective is a name, a function (S, positives) or three weight functions, got {function!r}"
        )
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function = function()
    known = keyword_settings(function)
    _check_names(name_of(function), settings, known)
    reduction = {name: settings.pop(name) for name in ("reduction",) if name in settings and name not in known}
    arguments = tuple((known | settings).items())
    build = CustomGradient if _is_gradient(function, arguments) else CustomLoss
    built = build(function, arguments, **reduction)
    if build is CustomGradient:
        for row_name, name in OF_ROWS.items():
            if name in built.asks:
                raise ValueError(
                    f"{built.name} returns a gradient with rows as anchors, which are images and then captions: "
                    f"ask for {row_name} instead of {name}"
                )
    return built


def keyword_settings(function: Function) -> dict[str, Any]:
    """Keyword parameters that are settings, with their defaults: all but S, positives, `ignored` and other objects."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {}
    for parameter in list(_signature(function).parameters.values())[2:]:
        name, default = parameter.name, parameter.default
        if parameter.kind not in kinds or name in ("ignored", "grades", *FACTS, *OF_ROWS):
            continue
        if default is inspect.Parameter.empty:
            raise ValueError(f"{name_of(function)}: its parameter {name!r} needs a default, which is then a setting")
        if default is None or isinstance(default, (bool, int, float, str)):
            known[name] = default
    return known


def _check_names(name: str, settings: dict[str, Any], known: dict[str, Any]) -> None:
    allowed = [*known, *(["reduction"] if "reduction" not in known else [])]
    for setting, value in settings.items():
        if setting not in allowed:
            hint = suggest(setting, allowed, cutoff=0.5)
            raise ValueError(f"{name} has no setting {setting!r}{hint}; it has: {', '.join(allowed)}")
        kinds = {_kind(known.get(setting)), _kind(value)}
        if len(kinds) > 1 and None not in kinds:
            raise ValueError(f"{name}: {setting} must be like its default {known[setting]!r}, got {value!r}")


def _kind(value: Any) -> str | None:
    """Which values are alike: numbers of both types. None if the default does not tell."""
    if value is None:
        return None
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


_known: WeakKeyDictionary[Function, dict[tuple[tuple[str, Any], ...], bool]] = WeakKeyDictionary()
"""Functions that were called -> arguments -> True if they return a gradient, False if they return a loss."""


def _is_gradient(function: Function, arguments: tuple[tuple[str, Any], ...]) -> bool:
    with suppress(TypeError):  # an object that cannot be hashed or weakly referenced is called again next time
        answers = _known.setdefault(function, {})
        if arguments not in answers:
            answers[arguments] = _returns_gradient(function, arguments)
        return answers[arguments]
    return _returns_gradient(function, arguments)


def _returns_gradient(function: Function, arguments: tuple[tuple[str, Any], ...]) -> bool:
    """Call the function on a small batch. Raises unless it returns a gradient or a loss."""
    returned = _trial_call(function, dict(arguments))
    if not isinstance(returned, Tensor) or returned.shape not in ((), (3, 3)):
        got = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise ValueError(
            f"{name_of(function)}(S, positives) returned {got} for a 3 x 3 similarity: "
            "expected a gradient of the same shape (rows as anchors) or a scalar loss"
        )
    if returned.ndim == 0 and not returned.requires_grad:
        raise ValueError(f"{name_of(function)} returned a scalar that does not depend on S through autograd")
    _check_repeatable(function, dict(arguments), returned)
    return returned.ndim > 0


def _trial_call(function: Function, arguments: dict[str, Any]) -> Any:
    """Call the function on a 3 x 3 batch. Its random numbers come from a fixed seed, and its state is restored."""
    states = [(part, copy.deepcopy(part.state_dict())) for part in _states(function)]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # No symmetry: the mean of the diagonal of a symmetric sample is 0, whatever it is multiplied with.
        sample = (torch.linspace(0.1, 1.0, 9).square() - 0.3).reshape(3, 3).requires_grad_()
        ids, embeddings = torch.arange(3), torch.eye(3)
        facts = BatchFacts(ids, ids, embeddings, embeddings, 0)
        returned = _call(function, as_rows(sample, None, None), arguments, facts)
    for part, state in states:
        part.load_state_dict(state)
    return returned


def _check_repeatable(function: Function, arguments: dict[str, Any], returned: Tensor) -> None:
    """Refuse a function that remembers its calls where nothing could save that: a resumed run would differ."""
    if _states(function):
        return
    again = _trial_call(function, arguments)
    if not torch.equal(returned.nan_to_num(), again.nan_to_num()):
        raise ValueError(
            f"{name_of(function)} returned other values for the same input: it changes between calls, which a resumed "
            "run would lose; make it a torch.nn.Module with buffers, or give it state_dict() and load_state_dict()"
        )


def _states(*functions: Function) -> tuple[Any, ...]:
    return tuple(part for part in functions if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"))


def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)


def _call(function: Function, rows: Rows, arguments: dict[str, Any], facts: BatchFacts | None) -> Any:
    asked = _signature(function).parameters
    if "ignored" in asked:
        ignored = torch.zeros_like(rows.positives) if rows.ignored is None else rows.ignored
        arguments = arguments | {"ignored": ignored}
    elif rows.ignored is not None:
        raise ValueError(f"{name_of(function)}(S, positives) cannot ignore pairs: add a parameter named ignored")
    if "grades" in asked:
        arguments = arguments | {"grades": rows.positive_weights()}
    known = BatchFacts() if facts is None else facts
    for name in asked:
        if name in FACTS or name in OF_ROWS:
            fact = getattr(known if rows.image_anchors else _swapped(known), OF_ROWS.get(name, name))
            if fact is None:
                raise ValueError(
                    f"{name_of(function)} asks for {name}, which is not known here: call the objective with embeddings"
                    f"{', step=' if name == 'step' else ''} and ids, or objective.given(BatchFacts(...)) before"
                )
            arguments = arguments | {name: fact}
    return function(rows.similarity, rows.positives, **arguments)


def _swapped(facts: BatchFacts) -> BatchFacts:
    return BatchFacts(facts.caption_ids, facts.image_ids, facts.captions, facts.images, facts.step)
