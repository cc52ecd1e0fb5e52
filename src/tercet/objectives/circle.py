"""`circle`: the Circle loss over all positives and negatives of a query (Sun et al., CVPR 2020).

T cir of GOAL (`cir/...`) is its weight of one triplet.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.objectives.inputs import require_numbers, require_one_of, require_positive
from tercet.objectives.log_sums import LogSumObjective, softplus


@dataclass(frozen=True, kw_only=True, repr=False)
class Circle(LogSumObjective):
    """L_q = log(1 + sum over n of exp(gamma a_n (S_n - margin)) x sum over p of exp(-gamma a_p (S_p - 1 + margin))).

    a_n = [S_n + margin]+ and a_p = [1 + margin - S_p]+ (Eq. 5, 6 and 8). As published they are constants of the
    gradient: with Z = 1 - exp(-L_q), dL/dS_n = Z gamma a_n softmax_n and dL/dS_p = -Z gamma a_p softmax_p. That is the
    gradient of no loss. `detach_weights=False` differentiates them: 2 S_n replaces a_n, and 2 (1 - S_p) replaces a_p,
    where they are above 0; this is the gradient of the value. Defaults: those for fine-grained retrieval.
    Graded: the exponential of a positive is multiplied by its weight. A query without a negative gives zero.

    >>> similarity = torch.tensor([[0.6, 0.4]], dtype=torch.float64)  # both at their boundary: Z = 1/2
    >>> Circle(gamma=1.0).pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.4000,  0.4000]], dtype=torch.float64)
    """

    name = "circle"

    margin: float = 0.4
    gamma: float = 80.0
    detach_weights: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "margin")
        require_positive(self, "gamma")
        require_one_of(self, "detach_weights", (True, False))

    @property
    def has_value(self) -> bool:
        return not self.detach_weights

    def positive_exponent(self, s_p: Tensor) -> tuple[Tensor, Tensor]:
        weight = (1 + self.margin - s_p).relu()
        slope = weight if self.detach_weights else 2 * (1 - s_p) * (weight > 0)
        return -self.gamma * weight * (s_p - 1 + self.margin), -self.gamma * slope

    def negative_exponent(self, s_n: Tensor) -> tuple[Tensor, Tensor]:
        weight = (s_n + self.margin).relu()
        slope = weight if self.detach_weights else 2 * s_n * (weight > 0)
        return self.gamma * weight * (s_n - self.margin), self.gamma * slope

    def combined(self, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        both = positive + negative
        share = torch.sigmoid(both)
        return softplus(both), share, share
