"""`nt-xent`: cross entropy of the positives among all candidates (InfoNCE; SupCon for several positives)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows
from tercet.objectives.reduction import Reduction, weight_of_each
from tercet.objectives.running import RunningLogSumExp
from tercet.objectives.settings import require_positive
from tercet.objectives.sides import both_sides
from tercet.objectives.streaming import EmbeddingGradient
from tercet.objectives.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class NTXent(RowObjective):
    """L_q = -(1/|P|) sum over positives p of log softmax(S / temperature)_p, over all candidates.

    dL/dS_j = (softmax_j - 1[j positive]/|P|) / temperature. A query whose only candidate is its positive gives zero.
    All similarities equal: softmax is uniform. Similarities of any size are safe: the softmax subtracts the largest.

    >>> similarity = torch.tensor([[0.0, 0.0]])
    >>> NTXent(temperature=0.5).pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.5000,  0.5000]])
    """

    temperature: float = 0.1
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature")

    @property
    def name(self) -> str:
        return "nt-xent"

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self.row_scalar_and_gradient(rows)[1]

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return -(self.log_softmax(rows) * _shares(rows)).sum(dim=1)

    def row_scalar_and_gradient(self, rows: Rows) -> tuple[Float[Tensor, " anchor"], Float[Tensor, "anchor candidate"]]:
        log_probability, shares = self.log_softmax(rows), _shares(rows)
        value = -(log_probability * shares).sum(dim=1)
        gradient = log_probability.exp().sub_(shares).div_(self.temperature)
        return value, gradient if rows.ignored is None else gradient.masked_fill_(rows.ignored, 0.0)

    @property
    def has_diagonal_form(self) -> bool:
        return True

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        z = similarity / self.temperature
        log_probability = z.log_softmax(dim=1).diagonal().sum() + z.log_softmax(dim=0).diagonal().sum()
        return -weight_of_each(len(z), self.reduction) * log_probability

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass for the partition functions; a second, over recomputed tiles, for the gradient."""
        sides = both_sides(tiles, self.reduction)
        partitions = [RunningLogSumExp(len(side.weights), tiles.pair_similarity) for side in sides]
        for tile in tiles.walk(divided_by=self.temperature):
            for side, partition in zip(sides, partitions, strict=True):
                view, anchors, _ = side.view(tile)
                partition.update(view, anchors)
        z = tiles.pair_similarity
        scalar, on_pairs, shifts = z.new_zeros(()), torch.zeros_like(z), []
        for side, partition in zip(sides, partitions, strict=True):
            total = torch.logaddexp(partition.total, side.logsumexp(z))
            share = side.of_pairs(1 / side.pair_count.to(z.dtype))
            log_probability = z - side.of_pairs(total)
            weights = side.of_pairs(side.weights)
            scalar -= (weights * share * log_probability).sum()
            on_pairs += weights * (log_probability.exp() - share) / self.temperature
            shifts.append(total - (side.weights / self.temperature).log())  # +inf for what is no query
        if into is not None:
            for tile in tiles.walk(divided_by=self.temperature):
                gradient = (tile.similarity - shifts[0][tile.images, None]).exp_()
                gradient += tile.similarity.sub_(shifts[1][tile.captions]).exp_()
                gradient[tile.pair_places] = on_pairs[tile.pairs]
                into.add_tile(tile.images, tile.captions, gradient)
        return scalar

    def log_softmax(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        z = rows.similarity / self.temperature
        if rows.ignored is not None:
            # The lowest finite number, not -inf: a row of ignored pairs alone must not turn into NaN.
            z = z.masked_fill(rows.ignored, torch.finfo(z.dtype).min)
        return z.log_softmax(dim=1)


def _shares(rows: Rows) -> Float[Tensor, "anchor candidate"]:
    """1/|P| at every positive of an anchor."""
    positives = rows.positives.to(rows.similarity.dtype)  # two integers would divide in float32
    return positives / positives.sum(dim=1, keepdim=True).clamp(min=1)
