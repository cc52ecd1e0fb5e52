"""`triplet`: hinge over every (positive, negative) of a query.

VSE0 in VSE++ (Faghri et al., BMVC 2018), and Bleeker and de Rijke (ECIR 2022), Eq. 3, with gradient Eq. 9b.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.inputs import Rows, require_numbers, require_positive, top_negatives, uniform_query_weight
from tercet.objectives.stacks import StackedPairs
from tercet.objectives.streaming.accumulators import Direction, RunningTop, both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class Triplet(RowObjective):
    """L_q = sum over positives p and negatives n of max(0, margin + S_n - S_p).

    dL/dS_n is the number of positives that n violates; dL/dS_p is minus the number of negatives that violate p.
    `top_k`: n is one of the query's k most similar negatives, those with the lowest indices in a tie; 1 is triplet-sh,
    None all negatives. Streamed, the k most similar negatives of every query are held.
    Graded: L_q = sum over p and n of w_p max(0, margin + S_n - S_p), n with weight 0: dL/dS_n is the sum of the
    weights of the positives that n violates, dL/dS_p is -w_p times the number of negatives that violate p.
    A query without a negative gives zero. All similarities equal: every triplet is active.

    >>> similarity = torch.tensor([[0.5, 0.4, 0.2], [0.0, 0.1, 0.9]])
    >>> positives = torch.tensor([[True, False, False], [False, True, True]])
    >>> Triplet().pair_gradients(similarity, positives)[0]
    tensor([[-1.,  1.,  0.],
            [ 1., -1.,  0.]])
    """

    name = "triplet"

    margin: float = 0.2
    top_k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "margin")
        if self.top_k is not None:
            require_positive(self, "top_k")
            if self.top_k != int(self.top_k):
                raise ValueError(f"top_k must be a whole number of at least 1, or None for all, got {self.top_k!r}")
            object.__setattr__(self, "top_k", int(self.top_k))

    @property
    def takes_grades(self) -> bool:
        return True

    # The forms for small and for stacked batches compare all negatives.

    @property
    def has_diagonal_form(self) -> bool:
        return self.top_k is None

    @property
    def has_stacked_form(self) -> bool:
        return self.top_k is None

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self._active_triplets(self._with_top_negatives(rows)).to(rows.similarity.dtype)

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return self._value(rows, self.row_gradient(rows))

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        active = self.row_gradient(rows)
        return self._value(rows, active), active

    def _with_top_negatives(self, rows: Rows) -> Rows:
        if self.top_k is None or not rows.similarity.numel():
            return rows
        top = top_negatives(torch.where(rows.negatives, rows.similarity.detach(), -torch.inf), self.top_k)
        return rows._replace(negatives=rows.negatives & top)

    def _value(self, rows: Rows, active: Float[Tensor, "anchor candidate"]) -> Float[Tensor, " anchor"]:
        # Piecewise linear: every active triplet adds (margin + S_n) - S_p, and `active` counts how often each term
        # occurs. The counts of a row sum to 0, so similarities can be taken relative to its best positive.
        best = rows.similarity.detach().masked_fill(~rows.positives, -torch.inf).amax(dim=1, keepdim=True)
        offset = rows.similarity - torch.where(best.isinf(), 0.0, best)
        return (active * torch.where(rows.negatives, offset + self.margin, offset)).sum(dim=1)

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        positive = similarity.diagonal()
        reach = (similarity + self.margin).fill_diagonal_(-torch.inf)
        violations = (reach - positive[:, None]).relu().sum() + (reach - positive).relu().sum()
        weight = uniform_query_weight(len(similarity), self.reduction)
        # The derivative of a hinge at NaN is a number: a NaN factor makes the whole gradient NaN. `where` of
        # two numbers has the default dtype: exact for 1, but it would round the weight of a float64 batch.
        return weight * (torch.where(violations.detach().isnan(), torch.nan, 1.0) * violations)

    def stacked_gradient(
        self, similarity: Float[Tensor, "run image caption"], pairs: StackedPairs
    ) -> tuple[Float[Tensor, " run"], Float[Tensor, "run image caption"]]:
        s_p, reach = pairs.of_matrices(similarity), similarity + self.margin
        reach.view(-1)[pairs.entry] = -torch.inf
        totals, pulls, pushes = torch.zeros_like(s_p), torch.zeros_like(s_p), []
        for side, view in ((pairs.images, reach), (pairs.captions, reach.mT.contiguous())):
            view, weights = view.flatten(0, 1), side.weights(self.reduction, s_p.dtype)
            pushed = torch.zeros_like(view)  # anchor candidate
            for slot in side.slots():
                anchors, is_all = side.of_pair[slot], len(slot) == len(view)
                violation = ((view if is_all else view[anchors]) - s_p[slot, None]).relu_()
                active, total = (violation > 0).to(s_p.dtype), violation.sum(dim=1)
                weight = torch.where(total.isnan(), torch.nan, weights[anchors])
                totals[slot] += weight * total
                pulls[slot] -= weight * active.sum(dim=1)
                active *= weight[:, None]
                pushed = pushed.add_(active) if is_all else pushed.index_add_(0, anchors, active)
            pushes.append(pushed.view(pairs.runs, side.per_run, -1))
        gradient = pushes[0] + pushes[1].mT
        gradient.view(-1).index_add_(0, pairs.entry, pulls)
        return pairs.sum(totals), gradient

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """Two passes: the first computes the positives, the second compares every negative with each of them."""
        if self.top_k is not None:
            return self._stream_top(tiles, into, self.top_k)
        for _ in tiles.walk():
            pass
        s_p = tiles.pair_similarity.clone()
        directions = both_directions(tiles, self.reduction)
        slots = [_Slots(direction, s_p) for direction in directions]
        scalar = s_p.new_zeros(())
        for tile in tiles.walk():
            reach = tile.similarity.add_(self.margin)
            gradient = torch.zeros_like(reach)
            for direction, positives in zip(directions, slots, strict=True):
                view, anchors, _ = direction.view(tile)
                pushes = gradient if direction.image_anchors else gradient.T
                for slot in range(positives.similarity.shape[1]):
                    violation = (view - positives.similarity[anchors, slot, None]).relu_()  # anchor candidate
                    active, total = (violation > 0).to(s_p.dtype), violation.sum(dim=1)
                    weights = torch.where(total.isnan(), torch.nan, direction.weights[anchors])
                    scalar += torch.dot(total, weights)
                    positives.violators[anchors, slot] += active.sum(dim=1)
                    pushes += active.mul_(weights[:, None])
            if into is not None:
                into.add_tile(tile.images, tile.captions, gradient)
        if into is not None:
            pulls = [
                direction.per_pair(direction.weights) * positives.per_pair()
                for direction, positives in zip(directions, slots, strict=True)
            ]
            into.add_entries(tiles.pair_image, tiles.pair_caption, -(pulls[0] + pulls[1]))
        return scalar

    def _stream_top(self, tiles: TiledSimilarity, into: EmbeddingGradient | None, top_k: int) -> Float[Tensor, ""]:
        """One pass finds the top negatives; the rest needs one entry of G per pair and k per anchor."""
        directions = both_directions(tiles, self.reduction)
        trackers = [RunningTop(len(direction.weights), top_k, tiles.pair_similarity) for direction in directions]
        for tile in tiles.walk():
            for direction, top in zip(directions, trackers, strict=True):
                top.update(*direction.view(tile))
        s_p = tiles.pair_similarity
        scalar, pulls = s_p.new_zeros(()), torch.zeros_like(s_p)
        for direction, top in zip(directions, trackers, strict=True):
            anchors = direction.pair_anchor
            violation = (top.similarity[anchors] + self.margin - s_p[:, None]).relu_()  # pair top
            total, active = violation.sum(dim=1), (violation > 0).to(s_p.dtype)
            weights = torch.where(total.isnan(), torch.nan, direction.weights[anchors])
            scalar += torch.dot(total, weights)
            pulls -= weights * active.sum(dim=1)
            pushes = torch.zeros_like(top.similarity).index_add_(0, anchors, active.mul_(weights[:, None]))
            if into is not None:
                own = torch.arange(len(pushes), device=s_p.device)[:, None].expand_as(pushes).flatten()
                entries = (own, top.candidate.flatten()) if direction.image_anchors else (top.candidate.flatten(), own)
                into.add_entries(*entries, pushes.flatten())
        if into is not None:
            into.add_entries(tiles.pair_image, tiles.pair_caption, pulls)
        return scalar

    @torch.no_grad()
    def _active_triplets(self, rows: Rows) -> Shaped[Tensor, "anchor candidate"]:
        """Active triplets of each negative, minus those of each positive; counted by sorting, not in a 3-D tensor."""
        reach = rows.similarity + self.margin
        if rows.grades is not None:
            return self._weighted_triplets(rows, reach, rows.grades)
        sorted_positives = rows.similarity.masked_fill(~rows.positives, torch.inf).sort(dim=1).values
        violated = torch.searchsorted(sorted_positives, reach)  # positives strictly below the negative's reach
        sorted_reaches = reach.masked_fill(~rows.negatives, -torch.inf).sort(dim=1).values
        within = torch.searchsorted(sorted_reaches, rows.similarity, right=True)  # negatives that do not violate
        violators = rows.similarity.shape[1] - within
        return violated * rows.negatives - violators * rows.positives

    def _weighted_triplets(
        self, rows: Rows, reach: Float[Tensor, "anchor candidate"], grades: Float[Tensor, "anchor candidate"]
    ) -> Float[Tensor, "anchor candidate"]:
        """The same, each with the weight of its positive."""
        ordered = rows.similarity.masked_fill(~rows.positives, torch.inf).sort(dim=1)
        weight_below = torch.nn.functional.pad(grades.gather(1, ordered.indices).cumsum(dim=1), (1, 0))
        violated = weight_below.gather(1, torch.searchsorted(ordered.values, reach))
        sorted_reaches = reach.masked_fill(~rows.negatives, -torch.inf).sort(dim=1).values
        within = torch.searchsorted(sorted_reaches, rows.similarity, right=True)
        return violated * rows.negatives - grades * (rows.similarity.shape[1] - within)


class _Slots:
    """The positives of each anchor, padded with +inf to equal number, and the number of negatives that violate each."""

    def __init__(self, direction: Direction, s_p: Float[Tensor, " pair"]) -> None:
        self.index: tuple[Tensor, Tensor] | None = None
        if direction.paired_by_rows:
            self.similarity = s_p[:, None]
        else:
            order = direction.pair_anchor.argsort(stable=True)
            first = direction.pair_count.cumsum(dim=0) - direction.pair_count
            slot = torch.empty_like(order)
            slot[order] = torch.arange(len(order), device=order.device) - first[direction.pair_anchor[order]]
            self.index = direction.pair_anchor, slot
            self.similarity = s_p.new_full((len(direction.pair_count), int(direction.pair_count.max())), torch.inf)
            self.similarity[self.index] = s_p
        self.violators = torch.zeros_like(self.similarity)

    def per_pair(self) -> Float[Tensor, " pair"]:
        """The number of violators of every positive pair."""
        return self.violators[:, 0] if self.index is None else self.violators[self.index]
