"""`multi-similarity`: the Multi-Similarity loss with its mining (Wang et al., CVPR 2019).

P sig-ms of GOAL (`.../sig-ms`) is its weight of one pair relative to others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.objectives.inputs import require_numbers, require_positive
from tercet.objectives.log_sums import LogSumObjective, softplus


@dataclass(frozen=True, kw_only=True, repr=False)
class MultiSimilarity(LogSumObjective):
    """L_q = (1/alpha) log(1 + sum over p of exp(-alpha (S_p - lam))) + (1/beta) log(1 + sum over n of exp(beta (S_n - lam))).

    The sums are over the mined pairs (Eq. 9 and 10): positives with S_p < S_n' + slack for the most similar negative n',
    and negatives with S_n > S_p' - slack for the least similar positive p'. `slack=None`: over all pairs.
    dL/dS_p = -exp(-alpha (S_p - lam)) / (1 + sum over p), dL/dS_n = exp(beta (S_n - lam)) / (1 + sum over n).
    Graded: the exponential of a positive is multiplied by its weight. With mining a query without a negative gives zero.

    >>> similarity = torch.tensor([[0.5, 0.5]])
    >>> MultiSimilarity(lam=0.5).pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.5000,  0.5000]])
    """  # noqa: E501 - one equation

    name = "multi-similarity"

    alpha: float = 2.0
    beta: float = 50.0
    lam: float = 1.0
    slack: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "alpha", "beta")
        require_numbers(self, "lam", *([] if self.slack is None else ["slack"]))

    @property
    def mined_within(self) -> float | None:
        return self.slack

    def positive_exponent(self, s_p: Tensor) -> tuple[Tensor, Tensor]:
        return -self.alpha * (s_p - self.lam), torch.full_like(s_p, -1.0)

    def negative_exponent(self, s_n: Tensor) -> tuple[Tensor, Tensor]:
        return self.beta * (s_n - self.lam), torch.ones_like(s_n)

    def combined(self, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value = softplus(positive) / self.alpha + softplus(negative) / self.beta
        return value, torch.sigmoid(positive), torch.sigmoid(negative)  # 1/alpha and dz/dS = -alpha cancel
