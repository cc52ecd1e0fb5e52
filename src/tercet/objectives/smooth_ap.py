"""`smooth-ap`: one minus average precision with soft ranks (Smooth-AP, Brown et al.; Eq. 5 to 8 of the study)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows
from tercet.objectives.reduction import Reduction
from tercet.objectives.settings import require_positive
from tercet.objectives.sides import both_sides
from tercet.objectives.streaming import EmbeddingGradient
from tercet.objectives.tiles import TiledSimilarity
from tercet.objectives.weights import logistic


@dataclass(frozen=True, kw_only=True, repr=False)
class SmoothAP(RowObjective):
    """L_q = 1 - (1/|P|) sum over positives i of R+(i) / R(i), the soft ranks of i among positives and among all.

    R(i) = 1 + sum over other candidates j of sigmoid((S_j - S_i) / temperature); R+(i) counts positives only.
    With g_ij = sigmoid' / temperature, positive i alone gives dAP/dS_j = -R+(i) g_ij / R(i)^2 for a negative j,
    +(R(i) - R+(i)) g_ij / R(i)^2 for another positive j, and minus their sum for i itself.
    Only negatives can lower R+/R: a query without a negative gives zero. All similarities equal: every g is 1/4.

    Memory is anchors x most positives of an anchor x candidates.

    >>> similarity = torch.tensor([[0.0, 0.0]])
    >>> SmoothAP(temperature=1.0, reduction="sum").pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.1111,  0.1111]])
    """

    temperature: float = 0.01
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature")

    @property
    def name(self) -> str:
        return "smooth-ap"

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        if torch.compiler.is_compiling():
            gradients: Tensor = _opaque(rows.similarity, rows.positives, rows.negatives, self.temperature)[1]
            return gradients
        return self._gradient(rows, self.soft_ranks(rows))

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        if torch.compiler.is_compiling():
            return super().row_scalar_and_gradient(rows)
        soft = self.soft_ranks(rows)
        return self._value(soft), self._gradient(rows, soft)

    def _gradient(self, rows: Rows, soft: "SoftRanks") -> Float[Tensor, "anchor candidate"]:
        slope = soft.above * (1 - soft.above) / self.temperature  # anchor slot candidate
        squared_rank = (soft.among_positives + soft.negatives_above).square()
        push = (soft.among_positives / squared_rank)[:, :, None] * rows.negatives[:, None, :]
        give_way = (soft.negatives_above / squared_rank)[:, :, None] * rows.positives[:, None, :]
        by_candidate = slope * (push - give_way) * soft.share[:, :, None]  # anchor slot candidate
        gradient = by_candidate.sum(dim=1)
        return gradient.scatter_add(1, soft.slots, -by_candidate.sum(dim=2))

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        if torch.compiler.is_compiling():
            values: Tensor = _opaque(rows.similarity, rows.positives, rows.negatives, self.temperature)[0]
            return values
        return self._value(self.soft_ranks(rows))

    def _value(self, soft: "SoftRanks") -> Float[Tensor, " anchor"]:
        precision = soft.among_positives / (soft.among_positives + soft.negatives_above)
        return 1 - (soft.share * precision).sum(dim=1)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """Some anchors at a time against all candidates, first images, then captions."""
        scalar = tiles.pair_similarity.new_zeros(())
        for side in both_sides(tiles, self.reduction):
            direction = tiles if side.is_image else tiles.transposed()
            positives = max(1, int(side.pair_count.max()))
            height = max(1, tiles.side**2 // (positives * len(direction.captions)))
            for top in range(0, len(side.weights), height):
                anchors = slice(top, min(top + height, len(side.weights)))
                rows = direction.complete_rows(anchors)
                values, gradient = self.row_scalar_and_gradient(rows)
                scalar += (values * side.weights[anchors]).sum()
                if into is not None:
                    gradient.mul_(side.weights[anchors, None])
                    everything = slice(0, len(direction.captions))
                    if side.is_image:
                        into.add_tile(anchors, everything, gradient)
                    else:
                        into.add_tile(everything, anchors, gradient.T)
        return scalar

    def soft_ranks(self, rows: Rows) -> "SoftRanks":
        slots, is_filled = positive_slots(rows.positives)
        difference = rows.similarity[:, None, :] - rows.similarity.gather(1, slots)[:, :, None]
        others = torch.arange(rows.similarity.shape[1], device=slots.device) != slots[:, :, None]
        above = logistic(difference / self.temperature) * others
        among_positives = 1 + (above * rows.positives[:, None, :]).sum(dim=2)
        negatives_above = (above * rows.negatives[:, None, :]).sum(dim=2)
        filled = is_filled.to(above.dtype)
        share = filled / filled.sum(dim=1, keepdim=True).clamp(min=1)
        return SoftRanks(slots, share, above, among_positives, negatives_above)


class SoftRanks(NamedTuple):
    """Slot k of an anchor is its k-th positive; an unfilled slot has share 0."""

    slots: Int[Tensor, "anchor slot"]
    share: Float[Tensor, "anchor slot"]
    above: Float[Tensor, "anchor slot candidate"]
    among_positives: Float[Tensor, "anchor slot"]
    negatives_above: Float[Tensor, "anchor slot"]


def positive_slots(
    positives: Bool[Tensor, "anchor candidate"],
) -> tuple[Int[Tensor, "anchor slot"], Bool[Tensor, "anchor slot"]]:
    """The candidate index of every positive, padded to the most positives that an anchor has."""
    count = max(1, int(positives.sum(dim=1).max()))
    order = positives.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    return order.indices[:, :count], order.values[:, :count].bool()


# A compiled graph cannot depend on how many positives there are, and a slot for every candidate would be a cube: to the
# compiler both results are one closed operation, inside which the lines above run as they do everywhere else.
@torch.library.custom_op("tercet::smooth_ap", mutates_args=())
def _opaque(similarity: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    rows, objective = Rows(similarity, positives, negatives), SmoothAP(temperature=temperature)
    return objective.row_value(rows), objective.row_gradient(rows)


@_opaque.register_fake
def _shapes(similarity: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    return similarity.new_empty(len(similarity)), torch.empty_like(similarity)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, for_value: Tensor, for_gradient: Tensor | None) -> tuple[Tensor, None, None, None]:
    (gradient,) = ctx.saved_tensors
    return for_value[:, None] * gradient, None, None, None


_opaque.register_autograd(_backward, setup_context=_keep_gradient)
