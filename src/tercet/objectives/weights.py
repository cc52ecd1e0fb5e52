"""GOAL's weights of a triplet (Section 3 of the paper): T from both similarities, P+ and P- from one each.

All are elementwise in S_p and S_n and broadcast, so that the same lines serve a matrix, a list of pairs or a diagram.
"""

import torch
from jaxtyping import Float
from torch import Tensor

MOST = 60.0  # an exponent's bound: exp(60) and its square stay finite in float32


def bounded_exp(exponent: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return exponent.clamp(-MOST, MOST).exp()


def logistic(exponent: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 / (1 + exp(-exponent))."""
    return exponent.clamp(-MOST, MOST).sigmoid()


def con_triplet(s_p: Tensor, s_n: Tensor, margin: float | None) -> Tensor:
    """Eq. 5: 1 while the negative is within `margin` of the positive; always 1 with margin None."""
    if margin is None:
        return torch.ones_like(s_p + s_n)
    return (margin + s_n > s_p).to(s_p.dtype)


def nca_triplet(s_p: Tensor, s_n: Tensor, tau: float) -> Tensor:
    """1 / (1 + exp(tau (S_p - S_n))): equal-weight lines are straight."""
    return logistic(tau * (s_n - s_p))


def cir_triplet(s_p: Tensor, s_n: Tensor, tau: float, offset: float) -> Tensor:
    """1 / (1 + exp(tau (S_p (2 - S_p) - S_n^2 - offset))): equal-weight lines are circles about (1, 0)."""
    return logistic(circle_exponent(s_p, s_n, tau, offset))


def circle_exponent(s_p: Tensor, s_n: Tensor, tau: float, offset: float) -> Tensor:
    return tau * (s_n.square() - s_p * (2 - s_p) + offset)


def lin_positive(s_p: Tensor, mu: Tensor | None = None) -> Tensor:
    """(1 - mu)(1 - S_p); lin has no mu, lin-ms the relative term."""
    return 1 - s_p if mu is None else (1 - mu) * (1 - s_p)


def lin_negative(s_n: Tensor, mu: Tensor | None = None) -> Tensor:
    """(1 + mu) S_n."""
    return s_n if mu is None else (1 + mu) * s_n


def sig_positive(s_p: Tensor, alpha: float, lam: float, relative: Tensor | None = None) -> Tensor:
    """1 / (M + exp(alpha (S_p - lam))); M is 1 for sig, the relative term for sig-ms."""
    return 1 / ((1.0 if relative is None else relative) + bounded_exp(alpha * (s_p - lam)))


def sig_negative(s_n: Tensor, beta: float, lam: float, relative: Tensor | None = None) -> Tensor:
    """1 / (M + exp(-beta (S_n - lam)))."""
    return 1 / ((1.0 if relative is None else relative) + bounded_exp(-beta * (s_n - lam)))
