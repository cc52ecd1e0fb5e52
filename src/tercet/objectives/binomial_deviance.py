"""`binomial-deviance`: a logistic loss of every pair around a similarity threshold.

Yi, Lei and Li (arXiv:1407.4979, 2014), with the cost of negatives of Ustinova and Lempitsky (NeurIPS 2016).
P sig of GOAL (`.../sig`) is its weight of one pair.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.inputs import Rows, logistic, normalized, require_numbers, require_positive
from tercet.objectives.log_sums import softplus
from tercet.objectives.streaming.accumulators import both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class BinomialDeviance(RowObjective):
    """L_q = mean over p of log(1 + exp(-alpha (S_p - lam))) + mean over n of log(1 + exp(beta (S_n - lam))).

    With W = 1 / number of positive or negative pairs and beta = C alpha this is the published loss, C = 25 the cost of
    negatives. dL/dS_p = -(alpha / |P|) sigmoid(-alpha (S_p - lam)), dL/dS_n = (beta / |N|) sigmoid(beta (S_n - lam)).
    Graded: the mean over positives is weighted. A query without a negative still pulls its positives.

    >>> similarity = torch.tensor([[0.5, 0.5]])
    >>> BinomialDeviance().pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-1., 25.]])
    """

    name = "binomial-deviance"

    alpha: float = 2.0
    beta: float = 50.0
    lam: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "alpha", "beta")
        require_numbers(self, "lam")

    @property
    def takes_grades(self) -> bool:
        return True

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        pull = logistic(-self.alpha * (rows.similarity - self.lam)) * normalized(rows.positive_weights())
        push = logistic(self.beta * (rows.similarity - self.lam)) * _shares_of_negatives(rows)
        return self.beta * push - self.alpha * pull

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        of_positives = softplus(-self.alpha * (rows.similarity - self.lam)) * normalized(rows.positive_weights())
        of_negatives = softplus(self.beta * (rows.similarity - self.lam)) * _shares_of_negatives(rows)
        return (of_positives + of_negatives).sum(dim=1)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass: the term of a pair depends on that pair only."""
        directions = both_directions(tiles, self.reduction)
        scalar = tiles.pair_similarity.new_zeros(())
        shares = []
        for direction, candidates in zip(directions, (len(tiles.captions), len(tiles.images)), strict=True):
            positives = direction.pair_count.to(scalar.dtype)
            of_negatives = direction.weights / (candidates - positives).clamp(min=1)
            shares.append((of_negatives, direction.per_pair(direction.weights / positives.clamp(min=1))))
        of_pairs = shares[0][1] + shares[1][1]
        for tile in tiles.walk():
            weights = shares[0][0][tile.images, None] + shares[1][0][tile.captions]
            z_n = (tile.similarity - self.lam).mul_(self.beta)  # -inf at positives
            z_p = -self.alpha * (tiles.pair_similarity[tile.pairs] - self.lam)
            scalar += (softplus(z_n) * weights).sum() + torch.dot(softplus(z_p), of_pairs[tile.pairs])
            if into is not None:
                gradient = logistic(z_n).mul_(weights).mul_(self.beta)
                gradient[tile.pair_positions] = -self.alpha * logistic(z_p) * of_pairs[tile.pairs]
                into.add_tile(tile.images, tile.captions, gradient)
        return scalar


def _shares_of_negatives(rows: Rows) -> Float[Tensor, "anchor candidate"]:
    return normalized(rows.negatives.to(rows.similarity.dtype))
