"""`smooth-ap`: one minus average precision with soft ranks.

Smooth-AP (Brown et al., ECCV 2020), as in Bleeker and de Rijke (ECIR 2022), Eq. 5 to 8, with gradient Eq. 12.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.inputs import MAX_EXPONENT, Default, Reduction, Rows, normalized, require_positive
from tercet.objectives.streaming.accumulators import both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class SmoothAP(RowObjective):
    """L_q = 1 - (1/|P|) sum over positives i of R+(i) / R(i), the soft ranks of i among positives and among all.

    R(i) = 1 + sum over other candidates j of sigmoid((S_j - S_i) / temperature); R+(i) counts positives only.
    With g_ij = sigmoid' / temperature, positive i alone gives dAP/dS_j = -R+(i) g_ij / R(i)^2 for a negative j,
    +(R(i) - R+(i)) g_ij / R(i)^2 for another positive j, and minus their sum for i itself.
    A query without a negative gives zero, since R+ = R. All similarities equal: every sigmoid' is 1/4.

    Graded: L_q = 1 - sum over positives i of (w_i / sum of w) R+(i) / R(i). The weights choose the positives whose
    precision counts; R+ counts every candidate of weight above 0.

    Memory: anchors x largest number of positives per anchor x candidates.

    >>> similarity = torch.tensor([[0.0, 0.0]])
    >>> SmoothAP(temperature=1.0, reduction="sum").pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.1111,  0.1111]])
    """

    name = "smooth-ap"

    temperature: float = Default(0.01)
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature")

    @property
    def takes_grades(self) -> bool:
        return True

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        if torch.compiler.is_compiling():
            weights = rows.positive_weights()
            gradients: Tensor = _opaque(rows.similarity, rows.positives, rows.negatives, weights, self.temperature)[1]
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
        yield_to_positive = (soft.negatives_above / squared_rank)[:, :, None] * rows.positives[:, None, :]
        by_candidate = slope * (push - yield_to_positive) * soft.share[:, :, None]  # anchor slot candidate
        gradient = by_candidate.sum(dim=1)
        return gradient.scatter_add(1, soft.slots, -by_candidate.sum(dim=2))

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        if torch.compiler.is_compiling():
            weights = rows.positive_weights()
            values: Tensor = _opaque(rows.similarity, rows.positives, rows.negatives, weights, self.temperature)[0]
            return values
        return self._value(self.soft_ranks(rows))

    def _value(self, soft: "SoftRanks") -> Float[Tensor, " anchor"]:
        precision = soft.among_positives / (soft.among_positives + soft.negatives_above)
        return 1 - (soft.share * precision).sum(dim=1)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """Blocks of anchors against all candidates, first for i2t, then for t2i."""
        scalar = tiles.pair_similarity.new_zeros(())
        for direction in both_directions(tiles, self.reduction):
            oriented = tiles if direction.image_anchors else tiles.transposed()
            positives = max(1, int(direction.pair_count.max()))
            height = max(1, tiles.tile_size**2 // (positives * len(oriented.captions)))
            for top in range(0, len(direction.weights), height):
                anchors = slice(top, min(top + height, len(direction.weights)))
                rows = oriented.complete_rows(anchors)
                values, gradient = self.row_scalar_and_gradient(rows)
                scalar += (values * direction.weights[anchors]).sum()
                if into is not None:
                    gradient.mul_(direction.weights[anchors, None])
                    all_candidates = slice(0, len(oriented.captions))
                    if direction.image_anchors:
                        into.add_tile(anchors, all_candidates, gradient)
                    else:
                        into.add_tile(all_candidates, anchors, gradient.T)
        return scalar

    def soft_ranks(self, rows: Rows) -> "SoftRanks":
        """The soft ranks R+ and R of every positive of every anchor."""
        slots, is_filled = positive_slots(rows.positives)
        difference = rows.similarity[:, None, :] - rows.similarity.gather(1, slots)[:, :, None]
        others = torch.arange(rows.similarity.shape[1], device=slots.device) != slots[:, :, None]
        above = (difference / self.temperature).clamp(-MAX_EXPONENT, MAX_EXPONENT).sigmoid() * others
        among_positives = 1 + (above * rows.positives[:, None, :]).sum(dim=2)
        negatives_above = (above * rows.negatives[:, None, :]).sum(dim=2)
        if rows.grades is None:
            filled = is_filled.to(above.dtype)
            share = filled / filled.sum(dim=1, keepdim=True).clamp(min=1)
        else:
            share = normalized(rows.grades.gather(1, slots) * is_filled)
        return SoftRanks(slots, share, above, among_positives, negatives_above)


class SoftRanks(NamedTuple):
    """Slot k of an anchor is its k-th positive; a padding slot has share 0.

    `above` is sigmoid((S_j - S_i) / temperature); R+ is `among_positives`, R is `among_positives + negatives_above`.
    """

    slots: Int[Tensor, "anchor slot"]
    share: Float[Tensor, "anchor slot"]
    above: Float[Tensor, "anchor slot candidate"]
    among_positives: Float[Tensor, "anchor slot"]
    negatives_above: Float[Tensor, "anchor slot"]


def positive_slots(
    positives: Bool[Tensor, "anchor candidate"],
) -> tuple[Int[Tensor, "anchor slot"], Bool[Tensor, "anchor slot"]]:
    """(candidate index of each slot, whether it is filled): the positives of each anchor, padded to equal number."""
    count = max(1, int(positives.sum(dim=1).max()))
    order = positives.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    return order.indices[:, :count], order.values[:, :count].bool()


# Shapes in a compiled graph cannot depend on the number of positives, and one slot per candidate would need a tensor of
# anchor x candidate x candidate. So the compiler sees one opaque operation, which runs the eager code above.
@torch.library.custom_op("tercet::smooth_ap", mutates_args=())
def _opaque(
    similarity: Tensor, positives: Tensor, negatives: Tensor, weights: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    rows, objective = Rows(similarity, positives, negatives, None, weights), SmoothAP(temperature=temperature)
    return objective.row_value(rows), objective.row_gradient(rows)


@_opaque.register_fake
def _shapes(
    similarity: Tensor, positives: Tensor, negatives: Tensor, weights: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    return similarity.new_empty(len(similarity)), torch.empty_like(similarity)


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, for_value: Tensor, for_gradient: Tensor | None) -> tuple[Tensor, None, None, None, None]:
    (gradient,) = ctx.saved_tensors
    return for_value[:, None] * gradient, None, None, None, None


_opaque.register_autograd(_backward, setup_context=_save_gradient)
