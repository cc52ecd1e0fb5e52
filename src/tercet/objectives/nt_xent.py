"""`nt-xent`: cross entropy of the positives among all candidates (InfoNCE; SupCon for several positives)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows
from tercet.objectives.pairs import logsumexp_by
from tercet.objectives.reduction import Reduction
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
        positives = rows.positives.to(rows.similarity.dtype)  # two integers would divide in float32
        share = positives / positives.sum(dim=1, keepdim=True).clamp(min=1)
        candidates = rows.positives | rows.negatives
        return (self.log_softmax(rows).exp() * candidates - share) / self.temperature

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        log_probability = torch.where(rows.positives, self.log_softmax(rows), 0.0)
        return -log_probability.sum(dim=1) / rows.positives.sum(dim=1).clamp(min=1)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass for the partition functions; a second, over recomputed tiles, for the gradient."""
        sides = both_sides(tiles, self.reduction)
        partitions = [RunningLogSumExp(len(side.weights), tiles.pair_similarity) for side in sides]
        for tile in tiles.walk():
            tile.similarity.div_(self.temperature)
            for side, partition in zip(sides, partitions, strict=True):
                view, anchors, _ = side.view(tile)
                partition.update(view, anchors)
        z = tiles.pair_similarity / self.temperature
        scalar, on_pairs, shifts = z.new_zeros(()), torch.zeros_like(z), []
        for side, partition in zip(sides, partitions, strict=True):
            total = torch.logaddexp(partition.total, logsumexp_by(side.pair_anchor, z, len(side.weights)))
            share = 1 / side.pair_count[side.pair_anchor].to(z.dtype)
            log_probability = z - total[side.pair_anchor]
            weights = side.weights[side.pair_anchor]
            scalar -= (weights * share * log_probability).sum()
            on_pairs += weights * (log_probability.exp() - share) / self.temperature
            shifts.append(total - (side.weights / self.temperature).log())  # +inf for what is no query
        if into is not None:
            into.add_entries(tiles.pair_image, tiles.pair_caption, on_pairs)
            for tile in tiles.walk():
                tile.similarity.div_(self.temperature)
                gradient = (tile.similarity - shifts[0][tile.images, None]).exp_()
                gradient += tile.similarity.sub_(shifts[1][tile.captions]).exp_()
                into.add_tile(tile.images, tile.captions, gradient)
        return scalar

    def log_softmax(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        # The lowest finite number, not -inf: a row of ignored pairs alone must not turn into NaN.
        lowest = torch.finfo(rows.similarity.dtype).min
        ignored = ~(rows.positives | rows.negatives)
        return (rows.similarity / self.temperature).masked_fill(ignored, lowest).log_softmax(dim=1)
