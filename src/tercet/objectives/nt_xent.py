"""`nt-xent`: cross entropy of the positives among all candidates (InfoNCE; SupCon with several positives).

Bleeker and de Rijke (ECIR 2022), Eq. 4, with gradient Eq. 11.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.inputs import Default, Reduction, Rows, normalized, require_positive, uniform_query_weight
from tercet.objectives.stacks import StackedPairs
from tercet.objectives.streaming.accumulators import RunningLogSumExp, both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class NTXent(RowObjective):
    """L_q = -(1/|P|) sum over positives p of log softmax(S / temperature)_p, over all candidates.

    Graded: L_q = -sum over p of t_p log softmax(S / temperature)_p with the targets t_p = w_p / sum of w, so that
    dL/dS_j = (softmax_j - t_j) / temperature.

    dL/dS_j = (softmax_j - 1[j positive]/|P|) / temperature. A query whose only candidate is its positive gives zero.
    All similarities equal: softmax is uniform. Softmax subtracts the largest similarity: large values do not overflow.

    >>> similarity = torch.tensor([[0.0, 0.0]])
    >>> NTXent(temperature=0.5).pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.5000,  0.5000]])
    """

    name = "nt-xent"

    temperature: float = Default(0.1)
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature")

    @property
    def takes_grades(self) -> bool:
        return True

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self.row_scalar_and_gradient(rows)[1]

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return -(self.log_softmax(rows) * _shares(rows)).sum(dim=1)

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        log_probability, shares = self.log_softmax(rows), _shares(rows)
        value = -(log_probability * shares).sum(dim=1)
        gradient = log_probability.exp().sub_(shares).div_(self.temperature)
        return value, gradient if rows.ignored is None else gradient.masked_fill_(rows.ignored, 0.0)

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        z = similarity / self.temperature
        log_probability = z.log_softmax(dim=1).diagonal().sum() + z.log_softmax(dim=0).diagonal().sum()
        return -uniform_query_weight(len(z), self.reduction) * log_probability

    def stacked_gradient(
        self, similarity: Float[Tensor, "run image caption"], pairs: StackedPairs
    ) -> tuple[Float[Tensor, " run"], Float[Tensor, "run image caption"]]:
        z = similarity / self.temperature
        gradient, scalars, on_pairs = torch.zeros_like(z), z.new_zeros(pairs.runs), z.new_zeros(len(pairs.run))
        for side, candidates, anchors in ((pairs.images, 2, (-1, 1)), (pairs.captions, 1, (1, -1))):
            log_probability, weights = z.log_softmax(dim=candidates), side.weights(self.reduction, z.dtype)
            shares = (weights / side.pair_count.clamp(min=1))[side.of_pair]
            scalars -= pairs.sum(shares * pairs.of_matrices(log_probability))
            on_pairs -= shares
            gradient += log_probability.exp_().mul_(weights.view(pairs.runs, *anchors))
        gradient.view(-1).index_add_(0, pairs.entry, on_pairs)
        return scalars, gradient.div_(self.temperature)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """Two passes: the first computes the partition functions, the second recomputes the tiles for the gradient."""
        directions = both_directions(tiles, self.reduction)
        partitions = [RunningLogSumExp(len(direction.weights), tiles.pair_similarity) for direction in directions]
        for tile in tiles.walk(divided_by=self.temperature):
            for direction, partition in zip(directions, partitions, strict=True):
                view, anchors, _ = direction.view(tile)
                partition.update(view, anchors)
        z = tiles.pair_similarity
        scalar, on_pairs, shifts = z.new_zeros(()), torch.zeros_like(z), []
        for direction, partition in zip(directions, partitions, strict=True):
            total = torch.logaddexp(partition.total, direction.logsumexp(z))
            share = direction.per_pair(1 / direction.pair_count.to(z.dtype))
            log_probability = z - direction.per_pair(total)
            weights = direction.per_pair(direction.weights)
            scalar -= (weights * share * log_probability).sum()
            on_pairs += weights * (log_probability.exp() - share) / self.temperature
            shifts.append(total - (direction.weights / self.temperature).log())  # +inf if the anchor is not a query
        if into is not None:
            for tile in tiles.walk(divided_by=self.temperature):
                gradient = (tile.similarity - shifts[0][tile.images, None]).exp_()
                gradient += tile.similarity.sub_(shifts[1][tile.captions]).exp_()
                gradient[tile.pair_positions] = on_pairs[tile.pairs]
                into.add_tile(tile.images, tile.captions, gradient)
        return scalar

    def log_softmax(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        """Log probability of every candidate; ignored pairs get probability 0."""
        z = rows.similarity / self.temperature
        if rows.ignored is not None:
            # The lowest finite number, not -inf, so that a row with ignored pairs only does not become NaN.
            z = z.masked_fill(rows.ignored, torch.finfo(z.dtype).min)
        return z.log_softmax(dim=1)


def _shares(rows: Rows) -> Float[Tensor, "anchor candidate"]:
    """1/|P| at every positive of an anchor; graded, its share of the weights."""
    if rows.grades is not None:
        return normalized(rows.grades)
    positives = rows.positives.to(rows.similarity.dtype)  # integer division would give float32
    return positives / positives.sum(dim=1, keepdim=True).clamp(min=1)
