"""`RowObjective`: base class that turns a gradient with rows as anchors into a complete objective.

It adds both directions, the reduction, masks and ids, the differentiable scalar, and the choice of dense or streamed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.inputs import (
    BatchFacts,
    Default,
    Reduction,
    Rows,
    as_rows,
    as_square,
    at_least_float32,
    hinge_of_hardest,
    query_weights,
    require_one_of,
    require_tensor,
    warn_of_embeddings,
)
from tercet.objectives.stacks import StackedPairs
from tercet.objectives.streaming.autograd import NO_SECOND, EmbeddingGradient, streamed_scalar, without_autocast
from tercet.objectives.streaming.tiles import TILE_SIZE, EmbeddedBatch, TiledSimilarity
from tercet.single_backward import applied, single_backward
from tercet.types import MaskOrWeights, PairGradient, PairMask, Similarity

if TYPE_CHECKING:
    from tercet.objectives.composed import Composed
    from tercet.objectives.queue import Queue

MONITOR_MARGIN = 0.2
TAKE_WEIGHTS = (
    "triplet, triplet-sh, nt-xent, smooth-ap, sigmoid, circle, multi-similarity, binomial-deviance, the cells of GOAL "
    "but -ms, and three weight functions"
)
TILE_ENTRIES = TILE_SIZE**2
MAX_DENSE_ENTRIES = (1 << 12) - 1  # entries of S; up to here a few operations on the dense matrix are faster


@dataclass(frozen=True, kw_only=True, repr=False)
class RowObjective(ABC):
    """An objective: its settings are the dataclass fields, its mathematics is `row_gradient` (and `row_value`).

    Reduction `"sum"` adds the queries of both directions; `"mean"` is half the mean over image queries plus half the
    mean over caption queries. A query without a positive contributes nothing and is not counted.
    """

    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        require_one_of(self, "reduction", ("sum", "mean"))

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that `tercet.objective` takes."""

    @property
    def has_value(self) -> bool:
        """Whether a scalar exists whose gradient is the pair gradient: whether `row_value` is implemented."""
        return type(self).row_value is not RowObjective.row_value

    @property
    def takes_grades(self) -> bool:
        """Whether `positives` may hold weights in 0..1: whether the class defines what they mean."""
        return False

    @property
    def asks(self) -> frozenset[str]:
        """What a user's function asks for besides S and positives: see `BatchFacts`."""
        return frozenset()

    def given(self, facts: BatchFacts) -> "RowObjective":
        """The same objective, which passes these facts about the batch to a user's function that asks for them."""
        return self

    @abstractmethod
    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        """d(sum of anchor values)/dS before reduction; finite for finite similarities, 0 at ignored pairs."""

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        """The value of each anchor before reduction, differentiable by autograd."""
        raise ValueError(f"{self.name} has no value: its gradient is not that of any loss")

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        """(`row_value`, or the monitor if there is no value; `row_gradient`). Override it if they share computation."""
        row_scalar = self.row_value if self.has_value else row_monitor
        return row_scalar(rows), self.row_gradient(rows)

    def __call__(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        *,
        owners: Int[Tensor, " caption"] | None = None,
        image_ids: Int[Tensor, " image"] | None = None,
        caption_ids: Int[Tensor, " caption"] | None = None,
        scale: float | Float[Tensor, ""] | None = None,
        bias: float | Float[Tensor, ""] | None = None,
        streamed: bool | None = None,
        queue: "Queue | None" = None,
        step: int | None = None,
    ) -> Float[Tensor, ""]:
        """The scalar of S = scale * images @ captions.T + bias; without ids or owners, row i of both is a pair.

        Large batches are streamed: S is computed in tiles and never held in memory. `streamed` True or False overrides
        the automatic choice; values and gradients are the same. Under torch.distributed every rank must make this call:
        embeddings and ids of all ranks are gathered into one batch. The entries of a `queue` are further candidates
        (see `tercet.Queue`). `step` is for a user's function that asks for it.
        """
        self._check_scale(scale, bias)
        if queue is not None:
            queue.check_call(self, image_ids, streamed)
        batch = EmbeddedBatch.of(images, captions, owners, image_ids, caption_ids, scale, bias)
        warn_of_embeddings(batch.images, batch.captions, batch.ids, paired_by_rows=batch.paired_by_rows)
        objective = self.given(batch.facts(step)) if self.asks else self
        return objective.on_batch(batch, streamed) if queue is None else queue.scalar(objective, batch)

    def on_batch(self, batch: EmbeddedBatch, streamed: bool | None = None) -> Float[Tensor, ""]:
        """`__call__` of a batch that is checked and gathered."""
        if self._is_streamed(batch, streamed):
            return streamed_scalar(self, batch)
        return self.on_similarity(batch.similarity(), None if batch.paired_by_rows else batch.positives())

    def _check_scale(self, scale: float | Tensor | None, bias: float | Tensor | None) -> None:
        """`scale` and `bias` would be combined with a default temperature and bias that the caller may not know of."""
        for name, given, setting, neutral in (("scale", scale, "temperature", 1.0), ("bias", bias, "bias", 0.0)):
            value = getattr(self, setting, None)
            if given is not None and isinstance(value, str):
                raise ValueError(f"{self.name} has {setting}={value!r}, which {name}= cannot be combined with")
            if given is not None and isinstance(value, Default):
                raise ValueError(
                    f"{self.name} has {setting}={value:g} by default, which {name}= would be combined with: name it, "
                    f"tercet.objective({self.name!r}, {setting}={neutral}) for {name} alone"
                )

    def _is_streamed(self, batch: EmbeddedBatch, streamed: bool | None) -> bool:
        """Whether S is computed in tiles: as the caller says, or where that is faster or needed for memory."""
        if streamed is None:
            dense_up_to = TILE_ENTRIES if batch.paired_by_rows and self.has_diagonal_form else MAX_DENSE_ENTRIES
            streamed = not torch.compiler.is_compiling() and self.can_stream and batch.entries > dense_up_to
        return streamed and batch.entries > 0

    def on_similarity(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> Float[Tensor, ""]:
        """`value` if the objective has one, else `monitor`. In both cases S.grad is upstream x pair gradient."""
        require_tensor("similarity", similarity)
        if positives is None and ignored is None and self.has_diagonal_form and similarity.numel():
            with without_autocast(similarity):
                return self.diagonal_value(as_square(similarity))
        with torch.no_grad(), without_autocast(similarity):
            scalar, gradient = self._both_directions(self._rows(similarity, positives, ignored))
        return applied(_InjectGradient, similarity, scalar, gradient)

    def one_direction(
        self,
        similarity: Float[Tensor, "anchor candidate"],
        positives: MaskOrWeights | None = None,
        ignored: Bool[Tensor, "anchor candidate"] | None = None,
    ) -> Float[Tensor, ""]:
        """The part of `on_similarity` with rows as anchors: on S and on its transpose they add up to it."""
        with torch.no_grad(), without_autocast(similarity):
            rows = self._rows(similarity, positives, ignored)
            scalar, gradient = self.row_scalar_and_gradient(rows)
            weights = weights_of(rows, self.reduction)
            total, gradient = torch.dot(scalar, weights), gradient * weights[:, None]
        return applied(_InjectGradient, similarity, total, gradient)

    def pair_gradient(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> PairGradient:
        """dL/dS, sum of both directions: negative entries pull a pair together, positive entries push it apart."""
        i2t, t2i = self.pair_gradients(similarity, positives, ignored)
        return i2t + t2i

    def pair_gradients(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> tuple[PairGradient, PairGradient]:
        """The pair gradients of image queries (i2t) and of caption queries (t2i), both image x caption."""
        with torch.no_grad():
            i2t, t2i = self._directions(self._rows(similarity, positives, ignored))
        return i2t.to(similarity.dtype), t2i.to(similarity.dtype)

    def value(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
    ) -> Float[Tensor, ""] | None:
        """The loss whose gradient is the pair gradient, differentiable by autograd; None if no such loss exists."""
        if not self.has_value:
            return None
        return self._total(self.row_value, self._rows(similarity, positives, ignored))

    def monitor(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        """Hinge with the hardest negative at margin 0.2 and this objective's reduction, to compare objectives."""
        return self._total(row_monitor, self._rows(similarity, positives, ignored))

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """Compute the scalar from tiles of S, and add its reduced gradient of both directions to `into`."""
        raise ValueError(f"{self.name} needs the dense similarity and cannot be streamed")

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        """The value if the positives are the diagonal: a short formula whose autograd is fastest on a small batch."""
        raise ValueError(f"{self.name} has no formula for positives on the diagonal")

    def on_stack(
        self,
        similarity: Float[Tensor, "run image caption"],
        pairs: StackedPairs,
        ignored: Bool[Tensor, "run image caption"] | None = None,
    ) -> tuple[Float[Tensor, " run"], Float[Tensor, "run image caption"]]:
        """The scalars and the pair gradients of several batches: those of `on_similarity` of each."""
        with torch.no_grad():
            if ignored is None and self.has_stacked_form and similarity.numel():
                return self.stacked_gradient(at_least_float32(similarity), pairs)
            masks = zip(pairs.mask(), [None] * pairs.runs if ignored is None else ignored, strict=True)
            of_runs = [
                self._both_directions(as_rows(each, *of_run)) for each, of_run in zip(similarity, masks, strict=True)
            ]
            return torch.stack([scalar for scalar, _ in of_runs]), torch.stack([gradient for _, gradient in of_runs])

    def stacked_gradient(
        self, similarity: Float[Tensor, "run image caption"], pairs: StackedPairs
    ) -> tuple[Float[Tensor, " run"], Float[Tensor, "run image caption"]]:
        """`on_stack` with the operations of one batch for all."""
        raise ValueError(f"{self.name} has no form for a stack of batches")

    @property
    def has_stacked_form(self) -> bool:
        """Whether `stacked_gradient` is implemented; otherwise the batches of a stack are handled one by one."""
        return type(self).stacked_gradient is not RowObjective.stacked_gradient

    @property
    def can_stream(self) -> bool:
        """Whether `stream` is implemented; otherwise S is always dense, at any size."""
        return type(self).stream is not RowObjective.stream

    @property
    def has_diagonal_form(self) -> bool:
        """Whether `diagonal_value` is implemented."""
        return type(self).diagonal_value is not RowObjective.diagonal_value

    @property
    def states(self) -> tuple[Any, ...]:
        """Parts of a user's objective with `state_dict` and `load_state_dict`; parameters of modules are trained."""
        return ()

    @property
    def learned(self) -> dict[str, float]:
        """The present values of settings that are trained."""
        return {}

    def __mul__(self, weight: int | float) -> "Composed":
        """`0.1 * objective`, as a term of a sum."""
        from tercet.objectives.composed import Composed

        return Composed(((1.0 * weight, self),))

    __rmul__ = __mul__

    def __add__(self, other: "RowObjective") -> "Composed":
        """The sum of two objectives: of their scalars and of their gradients, each with its own reduction."""
        from tercet.objectives.composed import Composed

        if not isinstance(other, RowObjective):
            return NotImplemented
        return Composed((*Composed.terms_of(self), *Composed.terms_of(other)))

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name; for registered objectives, `tercet.objective(o.name, **o.settings) == o`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init and field.kw_only}

    def with_settings(self, **settings: Any) -> "RowObjective":
        """The same objective with other settings."""
        return replace(self, **settings)

    @property
    def changed_settings(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        defaults = self._defaults()
        return {key: value for key, value in self.settings.items() if key not in defaults or value != defaults[key]}

    def __repr__(self) -> str:
        changed = [f"{key}={value!r}" for key, value in self.changed_settings.items()]
        return f"tercet.objective({', '.join([repr(self.name), *changed])})"

    def _defaults(self) -> dict[str, Any]:
        return {field.name: field.default for field in fields(self) if field.default is not MISSING}

    def _rows(self, similarity: Tensor, positives: MaskOrWeights | None, ignored: PairMask | None) -> Rows:
        rows = as_rows(similarity, positives, ignored)
        if rows.grades is not None and not self.takes_grades:
            raise ValueError(
                f"{self.name} does not define weights of positives: give a boolean mask. {TAKE_WEIGHTS} take weights"
            )
        return rows

    def _directions(self, rows: Rows) -> tuple[PairGradient, PairGradient]:
        if not rows.similarity.numel():
            return torch.zeros_like(rows.similarity), torch.zeros_like(rows.similarity)
        columns = rows.transposed()
        i2t = self.row_gradient(rows) * weights_of(rows, self.reduction)[:, None]
        t2i = self.row_gradient(columns) * weights_of(columns, self.reduction)[:, None]
        return i2t, t2i.T

    def _both_directions(self, rows: Rows) -> tuple[Float[Tensor, ""], PairGradient]:
        if not rows.similarity.numel():
            return rows.similarity.sum(), torch.zeros_like(rows.similarity)
        scalar, gradient = self.row_scalar_and_gradient(rows)
        weights = weights_of(rows, self.reduction)
        columns = rows.transposed()
        column_scalar, column_gradient = self.row_scalar_and_gradient(columns)
        column_weights = weights_of(columns, self.reduction)
        total = torch.dot(scalar, weights) + torch.dot(column_scalar, column_weights)
        return total, gradient * weights[:, None] + column_gradient.T * column_weights

    def _total(self, row_value: Callable[[Rows], Float[Tensor, " anchor"]], rows: Rows) -> Float[Tensor, ""]:
        if not rows.similarity.numel():
            return rows.similarity.sum()
        columns = rows.transposed()
        i2t = (row_value(rows) * weights_of(rows, self.reduction)).sum()
        t2i = (row_value(columns) * weights_of(columns, self.reduction)).sum()
        return i2t + t2i


def row_monitor(rows: Rows) -> Float[Tensor, " anchor"]:
    """The monitor of each anchor before reduction."""
    return hinge_of_hardest(rows, MONITOR_MARGIN)


def weights_of(rows: Rows, reduction: Reduction) -> Float[Tensor, " anchor"]:
    """The weight of each anchor in the scalar and in the gradient; NaN if one of its similarities is NaN.

    Comparisons with NaN are false, so that hinges of a diverged model would look satisfied.
    """
    weights = query_weights(rows.positives.any(dim=1), reduction, rows.similarity.dtype)
    is_nan = rows.similarity.isnan().any(dim=1)
    return torch.where(is_nan & (weights > 0), torch.nan, weights)


class _InjectGradient(torch.autograd.Function):
    """A scalar whose backward returns upstream x a given gradient."""

    # forward takes ctx: a separate setup_context makes every call several times slower.
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, scalar: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, similarity)  # S only to tell that a second derivative depends on it
        ctx.dtype = similarity.dtype
        return scalar.clone()

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        # Scale in the precision of the gradient, then round once to the dtype of S.
        gradient, _ = ctx.saved_tensors
        return (upstream * gradient).to(ctx.dtype), None, None
