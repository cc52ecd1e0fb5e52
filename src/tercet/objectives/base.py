"""What every objective can do, given its gradient with rows as anchors: both directions, reduction, the scalar."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.contracts import PairGradient, PairMask, Similarity
from tercet.objectives import distributed
from tercet.objectives.hardest import hinge_of_hardest
from tercet.objectives.masks import Rows, as_rows, as_square, check_embeddings, ids_of_pairs, positives_from_ids
from tercet.objectives.members import Embedded, Members
from tercet.objectives.reduction import Reduction, query_weights
from tercet.objectives.settings import require_one_of
from tercet.objectives.streaming import EmbeddingGradient, streamed_scalar, without_autocast
from tercet.objectives.tiles import SIDE, TiledSimilarity

MONITOR_MARGIN = 0.2
ONE_TILE = SIDE**2
STREAMED_FROM = 1 << 12  # entries of S: below, a handful of whole-matrix operations is all there is


@dataclass(frozen=True, kw_only=True, repr=False)
class RowObjective(ABC):
    """An objective is its settings (the fields) and `row_gradient`; the methods below are the same for all.

    `"sum"` adds the queries of both directions. `"mean"` is half the mean over image queries plus half the mean
    over caption queries. A query without a positive contributes nothing and is counted nowhere.
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
        """Whether a scalar exists whose gradient is the pair gradient."""
        return True

    @abstractmethod
    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        """d(sum of the anchors' values)/dS, before reduction; finite for finite similarities, 0 at ignored pairs."""

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        """Each anchor's value, before reduction, differentiable by autograd."""
        raise ValueError(f"{self.name} has no value: its gradient belongs to no loss")

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        """Each anchor's value, or monitor where none exists, with `row_gradient`; overridden where they share work."""
        shown = self.row_value if self.has_value else row_monitor
        return shown(rows), self.row_gradient(rows)

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
        mined: tuple[Float[Tensor, "pair 2 dim"], Float[Tensor, "pair 2 dim"]] | None = None,
        streamed: bool | None = None,
    ) -> Float[Tensor, ""]:
        """The scalar of S = scale * images @ captions.T + bias; without ids, row i of both is a pair.

        `mined`: embeddings of the offline images and captions of each positive pair, for objectives that take them.

        Above a size S is never held: `streamed` True or False forces the choice. Values and gradients are the same.
        Under torch.distributed every rank must call it: the batch is that of all ranks together.
        """
        check_embeddings(images, captions, scale, bias)
        self.check_mined(mined)
        ids = ids_of_pairs(images, captions, owners, image_ids, caption_ids)
        paired_by_rows = owners is None and image_ids is None
        if distributed.in_use():
            images, captions, ids = distributed.everyones(images, captions, *ids, ids_are_rows=image_ids is None)
            mined = None if mined is None else (distributed.rows_of_all(mined[0]), distributed.rows_of_all(mined[1]))
            paired_by_rows = False
        entries = len(images) * len(captions)
        if streamed is None:
            streamed = self._streams(entries, paired_by_rows)
        if mined is not None:
            embedded = Embedded(images, captions, ids, scale, bias)
            return self.on_embeddings(embedded, Members(*mined), streamed=streamed and entries > 0)
        if streamed and entries:
            return streamed_scalar(self, images, captions, ids, scale, bias, paired_by_rows=paired_by_rows)
        similarity = images @ captions.T
        if scale is not None:
            similarity = scale * similarity
        if bias is not None:
            similarity = similarity + bias
        return self.on_similarity(similarity, None if paired_by_rows else positives_from_ids(*ids))

    def on_similarity(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""]:
        """`value` where one exists, else `monitor`; in both cases `.backward()` delivers upstream x pair gradient."""
        self.check_mined(mined)
        if positives is None and ignored is None and self.has_diagonal_form and similarity.numel():
            with without_autocast(similarity):
                return self.diagonal_value(as_square(similarity))
        with torch.no_grad(), without_autocast(similarity):
            scalar, gradient = self._both_directions(as_rows(similarity, positives, ignored))
        delivered: Tensor = _Deliver.apply(similarity, scalar, gradient)  # type: ignore[no-untyped-call]
        return delivered

    def pair_gradient(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> PairGradient:
        """dL/dS, both directions: negative entries pull together, positive entries push apart."""
        i2t, t2i = self.pair_gradients(similarity, positives, ignored, mined=mined)
        return i2t + t2i

    def pair_gradients(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> tuple[PairGradient, PairGradient]:
        """The pair gradient of image queries and of caption queries, both image x caption."""
        with torch.no_grad():
            i2t, t2i = self._directions(self.rows_of(similarity, positives, ignored, mined))
        return i2t.to(similarity.dtype), t2i.to(similarity.dtype)

    def value(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""] | None:
        """The scalar whose gradient is the pair gradient, differentiable by autograd; None where none exists."""
        if not self.has_value:
            return None
        return self._total(self.row_value, self.rows_of(similarity, positives, ignored, mined))

    def monitor(
        self, similarity: Similarity, positives: PairMask | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        """The hardest negative's hinge at margin 0.2, reduced like this objective: comparable across objectives."""
        return self._total(row_monitor, as_rows(similarity, positives, ignored))

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """The scalar from tiles of S; its gradient, both directions and reduced, is added to `into`."""
        raise ValueError(f"{self.name} needs the whole similarity at once and cannot be streamed")

    @property
    def takes_mined(self) -> bool:
        """Whether it is given offline members of every positive pair, and needs them."""
        return False

    def on_embeddings(self, embedded: Embedded, members: Members, streamed: bool) -> Float[Tensor, ""]:
        """The scalar with offline members."""
        raise ValueError(f"{self.name} takes no mined= members")

    @property
    def can_stream(self) -> bool:
        return True

    @property
    def has_diagonal_form(self) -> bool:
        """Whether there is a `diagonal_value`."""
        return False

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        """The value where the diagonal is positive, as a short formula: on a small batch autograd of it is quickest."""
        raise ValueError(f"{self.name} has no form of its own for a diagonal of positives")

    def _streams(self, entries: int, paired_by_rows: bool) -> bool:
        least = ONE_TILE + 1 if paired_by_rows and self.has_diagonal_form else STREAMED_FROM
        return entries >= least and self.can_stream and not torch.compiler.is_compiling()

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name; for the catalogue, `tercet.objective(o.name, **o.settings) == o`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init and field.kw_only}

    def __repr__(self) -> str:
        changed = [f"{key}={value!r}" for key, value in self.settings.items() if value != self._defaults()[key]]
        return f"tercet.objective({', '.join([repr(self.name), *changed])})"

    def _defaults(self) -> dict[str, Any]:
        return {field.name: field.default for field in fields(self) if field.default is not MISSING}

    def rows_of(
        self, similarity: Similarity, positives: PairMask | None, ignored: PairMask | None, mined: Tensor | None
    ) -> Rows:
        """What a caller gave, checked, with images as anchors."""
        self.check_mined(mined)
        return as_rows(similarity, positives, ignored, mined)

    def check_mined(self, mined: Any) -> None:
        if self.takes_mined and mined is None:
            raise ValueError(
                f"{self.name} needs mined=, offline members of its positive pairs: `tercet mine` finds them"
            )
        if mined is not None and not self.takes_mined:
            raise ValueError(f"{self.name} takes no mined= members; off-tri, off-quin and aoq do")

    def _directions(self, rows: Rows) -> tuple[PairGradient, PairGradient]:
        if not rows.similarity.numel():
            return torch.zeros_like(rows.similarity), torch.zeros_like(rows.similarity)
        columns = rows.transposed()
        i2t = self.row_gradient(rows) * _weights(rows, self.reduction)[:, None]
        t2i = self.row_gradient(columns) * _weights(columns, self.reduction)[:, None]
        return i2t, t2i.T

    def _both_directions(self, rows: Rows) -> tuple[Float[Tensor, ""], PairGradient]:
        if not rows.similarity.numel():
            return rows.similarity.sum(), torch.zeros_like(rows.similarity)
        scalar, gradient = self.row_scalar_and_gradient(rows)
        weights = _weights(rows, self.reduction)
        columns = rows.transposed()
        column_scalar, column_gradient = self.row_scalar_and_gradient(columns)
        column_weights = _weights(columns, self.reduction)
        total = torch.dot(scalar, weights) + torch.dot(column_scalar, column_weights)
        return total, gradient * weights[:, None] + column_gradient.T * column_weights

    def _total(self, row_value: Callable[[Rows], Float[Tensor, " anchor"]], rows: Rows) -> Float[Tensor, ""]:
        if not rows.similarity.numel():
            return rows.similarity.sum()
        columns = rows.transposed()
        i2t = (row_value(rows) * _weights(rows, self.reduction)).sum()
        t2i = (row_value(columns) * _weights(columns, self.reduction)).sum()
        return i2t + t2i


def row_monitor(rows: Rows) -> Float[Tensor, " anchor"]:
    return hinge_of_hardest(rows, MONITOR_MARGIN)


def _weights(rows: Rows, reduction: Reduction) -> Float[Tensor, " anchor"]:
    return query_weights(rows.positives.any(dim=1), reduction, rows.similarity.dtype)


class _Deliver(torch.autograd.Function):
    """A scalar whose backward is a given gradient, times whatever comes from upstream."""

    # One method with ctx: a separate setup_context makes every call several times as long.
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, scalar: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.dtype = similarity.dtype
        return scalar.clone()

    @staticmethod
    @once_differentiable  # G is a constant to it: a second derivative would be wrong, so there is none
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        # Scaled in the gradient's own precision and rounded once, to that of S.
        (gradient,) = ctx.saved_tensors
        return (upstream * gradient).to(ctx.dtype), None, None
