"""`triplet`: the hinge over every (positive, negative) of a query, as VSE0 and the comparison study sum it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows
from tercet.objectives.reduction import weight_of_each
from tercet.objectives.settings import require_numbers
from tercet.objectives.sides import Side, both_sides
from tercet.objectives.streaming import EmbeddingGradient
from tercet.objectives.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class Triplet(RowObjective):
    """L_q = sum over positives p and negatives n of max(0, margin + S_n - S_p).

    dL/dS_n is the number of positives that n violates, dL/dS_p minus the number of negatives that violate p.
    Nothing to compare with (no negative, or no positive) gives zero. All similarities equal: every triplet is active.

    >>> similarity = torch.tensor([[0.5, 0.4, 0.2], [0.0, 0.1, 0.9]])
    >>> positives = torch.tensor([[True, False, False], [False, True, True]])
    >>> Triplet().pair_gradients(similarity, positives)[0]
    tensor([[-1.,  1.,  0.],
            [ 1., -1.,  0.]])
    """

    margin: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "margin")

    @property
    def name(self) -> str:
        return "triplet"

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self._active_triplets(rows).to(rows.similarity.dtype)

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return self._value(rows, self.row_gradient(rows))

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        active = self.row_gradient(rows)
        return self._value(rows, active), active

    def _value(self, rows: Rows, active: Float[Tensor, "anchor candidate"]) -> Float[Tensor, " anchor"]:
        # Piecewise linear: every active triplet adds (margin + S_n) - S_p, and the counts say how often each occurs.
        # They cancel within a row, so that measuring from its best positive costs no precision.
        best = rows.similarity.detach().masked_fill(~rows.positives, -torch.inf).amax(dim=1, keepdim=True)
        above = rows.similarity - torch.where(best.isinf(), 0.0, best)
        return (active * torch.where(rows.negatives, above + self.margin, above)).sum(dim=1)

    @property
    def has_diagonal_form(self) -> bool:
        return True

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        positive = similarity.diagonal()
        reach = (similarity + self.margin).fill_diagonal_(-torch.inf)
        violations = (reach - positive[:, None]).relu().sum() + (reach - positive).relu().sum()
        return weight_of_each(len(similarity), self.reduction) * violations

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """A pass for the positives, then one that compares every negative with each positive of its anchor."""
        for _ in tiles.walk():
            pass
        s_p = tiles.pair_similarity.clone()
        sides = both_sides(tiles, self.reduction)
        slots = [_Slots(side, s_p) for side in sides]
        scalar = s_p.new_zeros(())
        for tile in tiles.walk():
            reach = tile.similarity.add_(self.margin)
            gradient = torch.zeros_like(reach)
            for side, positives in zip(sides, slots, strict=True):
                view, anchors, _ = side.view(tile)
                pushes = gradient if side.is_image else gradient.T
                for slot in range(positives.similarity.shape[1]):
                    violation = (view - positives.similarity[anchors, slot, None]).relu_()  # anchor candidate
                    active = (violation > 0).to(s_p.dtype)
                    scalar += torch.dot(violation.sum(dim=1), side.weights[anchors])
                    positives.violators[anchors, slot] += active.sum(dim=1)
                    pushes += active.mul_(side.weights[anchors, None])
            if into is not None:
                into.add_tile(tile.images, tile.captions, gradient)
        if into is not None:
            pulls = [side.of_pairs(side.weights) * each.of_pairs() for side, each in zip(sides, slots, strict=True)]
            into.add_entries(tiles.pair_image, tiles.pair_caption, -(pulls[0] + pulls[1]))
        return scalar

    @torch.no_grad()
    def _active_triplets(self, rows: Rows) -> Int[Tensor, "anchor candidate"]:
        """Active triplets of each negative, minus those of each positive; sorting counts them without a cube."""
        reach = rows.similarity + self.margin
        sorted_positives = rows.similarity.masked_fill(~rows.positives, torch.inf).sort(dim=1).values
        violated = torch.searchsorted(sorted_positives, reach)  # positives strictly below the negative's reach
        sorted_reaches = reach.masked_fill(~rows.negatives, -torch.inf).sort(dim=1).values
        within = torch.searchsorted(sorted_reaches, rows.similarity, right=True)  # negatives that stay below
        violators = rows.similarity.shape[1] - within
        return violated * rows.negatives - violators * rows.positives


class _Slots:
    """The positives of each anchor side by side, +inf where it has no more, with the number of their violators."""

    def __init__(self, side: Side, s_p: Float[Tensor, " pair"]) -> None:
        self.place: tuple[Tensor, Tensor] | None = None
        if side.paired_by_rows:
            self.similarity = s_p[:, None]
        else:
            order = side.pair_anchor.argsort(stable=True)
            first = side.pair_count.cumsum(dim=0) - side.pair_count
            slot = torch.empty_like(order)
            slot[order] = torch.arange(len(order), device=order.device) - first[side.pair_anchor[order]]
            self.place = side.pair_anchor, slot
            self.similarity = s_p.new_full((len(side.pair_count), int(side.pair_count.max())), torch.inf)
            self.similarity[self.place] = s_p
        self.violators = torch.zeros_like(self.similarity)

    def of_pairs(self) -> Float[Tensor, " pair"]:
        return self.violators[:, 0] if self.place is None else self.violators[self.place]
