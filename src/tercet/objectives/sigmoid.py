"""`sigmoid`: binary classification of every pair (SigLIP, Zhai et al., ICCV 2023)."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.inputs import (
    Default,
    Reduction,
    Rows,
    logistic,
    require_numbers,
    require_one_of,
    require_positive,
    uniform_query_weight,
)
from tercet.objectives.stacks import StackedPairs
from tercet.objectives.streaming.accumulators import both_directions
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity


@dataclass(frozen=True, kw_only=True, repr=False)
class Sigmoid(RowObjective):
    """L_ij = -log sigmoid(z_ij (S_ij / temperature + bias)), z = +1 for a positive pair and -1 for a negative.

    `bias="batch"`: the log odds of a pair being positive, log(positive pairs / negative pairs) of the batch, each at
    least 1: -log(n - 1) for n pairs, at which a model that knows nothing is calibrated.
    Graded, w is a soft target: L_ij = -w log sigmoid(z) - (1 - w) log sigmoid(-z) with z = S / temperature + bias, so
    that dL/dS = (sigmoid(z) - w) / temperature; log odds count w as a positive and 1 - w as a negative pair.

    Both directions contain the same pairs, so each has half the weight: with "sum" every pair counts once, and "mean"
    of a square batch is the published loss, the sum over pairs divided by the batch size.
    A query without a negative still pulls its positives. All similarities equal: the gradient depends on the bias.

    >>> similarity = torch.tensor([[1.0, 1.0]])  # 1 / 0.1 - 10 = 0
    >>> Sigmoid(reduction="sum").pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-2.5000,  2.5000]])
    """

    name = "sigmoid"

    temperature: float = Default(0.1)
    bias: float | Literal["batch"] = Default(-10.0)
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature")
        if isinstance(self.bias, str):
            require_one_of(self, "bias", ("batch",))
        else:
            require_numbers(self, "bias")

    @property
    def takes_grades(self) -> bool:
        return True

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        if rows.grades is not None:
            error = logistic(rows.similarity / self.temperature + self._bias_of(rows)).sub_(rows.grades)
            return error.mul_(rows.positives | rows.negatives).mul_(self._share / self.temperature)
        sign = self._signs(rows)
        wrong = logistic((rows.similarity / self.temperature + self._bias_of(rows)).mul_(-sign))
        return wrong.mul_(sign).mul_(-self._share / self.temperature)

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        if rows.grades is not None:
            z = rows.similarity / self.temperature + self._bias_of(rows)
            log_right = rows.grades * F.logsigmoid(z) + (1 - rows.grades) * F.logsigmoid(-z)
            return -(log_right * (rows.positives | rows.negatives)).sum(dim=1) * self._share
        sign = self._signs(rows)
        log_right = F.logsigmoid(sign * (rows.similarity / self.temperature + self._bias_of(rows)))
        return -(log_right * sign.abs()).sum(dim=1) * self._share

    def diagonal_value(self, similarity: Float[Tensor, "pair pair"]) -> Float[Tensor, ""]:
        sign = torch.full_like(similarity, -1.0).fill_diagonal_(1.0)
        bias = self._bias_at(len(similarity), similarity.numel())
        log_right = F.logsigmoid(torch.addcmul(bias * sign, similarity, sign, value=1 / self.temperature))
        return -2 * self._share * uniform_query_weight(len(similarity), self.reduction) * log_right.sum()

    def stacked_gradient(
        self, similarity: Float[Tensor, "run image caption"], pairs: StackedPairs
    ) -> tuple[Float[Tensor, " run"], Float[Tensor, "run image caption"]]:
        bias: Any = self.bias
        if bias == "batch":
            positive, entries = pairs.run.bincount(minlength=pairs.runs), similarity[0].numel()
            biases = [self._bias_at(count, entries) for count in positive.tolist()]
            bias = similarity.new_tensor(biases)[:, None, None]
        z = similarity / self.temperature + bias
        of_images, of_captions = (
            side.weights(self.reduction, z.dtype).view(pairs.runs, -1) for side in (pairs.images, pairs.captions)
        )
        weights = self._share * (of_images[:, :, None] + of_captions[:, None, :])
        positive_z = pairs.of_matrices(z)
        terms = F.logsigmoid(-z)
        terms.view(-1)[pairs.entry] = F.logsigmoid(positive_z)
        gradient = logistic(z)
        gradient.view(-1)[pairs.entry] = -logistic(-positive_z)
        return -(terms * weights).sum(dim=(1, 2)), gradient.mul_(weights).div_(self.temperature)

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        """One pass: the term of a pair depends on that pair only."""
        images, captions = both_directions(tiles, self.reduction)
        scalar = tiles.pair_similarity.new_zeros(())
        bias = self._bias_at(len(tiles.pair_similarity), len(tiles.images) * len(tiles.captions))
        for tile in tiles.walk(divided_by=self.temperature):
            z = tile.similarity.add_(bias)
            positive_z = tiles.pair_similarity[tile.pairs] + bias
            weights = self._share * (images.weights[tile.images, None] + captions.weights[tile.captions])
            pair_weights = weights[tile.pair_positions]
            scalar -= (F.logsigmoid(-z) * weights).sum() + (F.logsigmoid(positive_z) * pair_weights).sum()
            if into is not None:
                gradient = z.sigmoid_().mul_(weights)
                gradient[tile.pair_positions] = -logistic(-positive_z) * pair_weights
                into.add_tile(tile.images, tile.captions, gradient.div_(self.temperature))
        return scalar

    def _bias_at(self, positive: int, pairs: int) -> float:
        """The bias of a batch with this number of positive pairs among all pairs."""
        if isinstance(self.bias, str):
            return math.log(max(1, positive)) - math.log(max(1, pairs - positive))
        return self.bias

    def _bias_of(self, rows: Rows) -> Any:
        if not isinstance(self.bias, str):
            return self.bias
        weights = rows.positive_weights()
        positive, counted = weights.sum(), (rows.positives | rows.negatives).sum()
        return positive.clamp(min=1).log() - (counted - positive).clamp(min=1).log()

    @property
    def _share(self) -> float:
        return 0.5 if self.reduction == "sum" else 1.0  # the mean already halves each direction

    def _signs(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        """+1 positive, -1 negative, 0 ignored."""
        return rows.positives.to(rows.similarity.dtype) - rows.negatives.to(rows.similarity.dtype)
