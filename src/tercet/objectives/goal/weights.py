"""The weights of GOAL's triplets: T (Eq. 5, 7, 8), P+ and P- (Eq. 9 to 13), and the relative terms of the -ms cells.

| equation | weight | function |
|---|---|---|
| Eq. 5 | T con | `con_triplet` |
| Eq. 7 | T nca | `nca_triplet` |
| Eq. 8 | T cir | `cir_triplet` |
| Eq. 9 | P con | the constant 1, in `Goal._pair_weights` (cells.py) |
| Eq. 10 | P lin | `lin_positive`, `lin_negative` |
| Eq. 11 | P sig | `sig_positive`, `sig_negative` |
| Eq. 12 | P sig-ms | `sig_positive`, `sig_negative` with the relative terms M+, M- |
| Eq. 13 | P lin-ms | `lin_positive`, `lin_negative` with the relative terms mu+, mu- |

T depends on S_p and S_n, P+ on S_p, P- on S_n. All functions are elementwise and broadcast, so the same code serves a
matrix, a list of pairs or a diagram.

The relative terms compare a triplet's similarities with other pairs of the batch. For a triplet (anchor a, positive p,
hardest negative n), with m the smallest positive similarity of the batch:
- P = similarities R of every *other* positive pair of the batch with R < S_n + slack;
- N = similarities R of a's negatives other than n with R > m - slack.
Both comparisons are strict, and each term is a mean over its set (`OtherPositives`, `relative_to_negatives`).
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.objectives.inputs import Hardest, Rows, bounded_exp, logistic


def con_triplet(s_p: Tensor, s_n: Tensor, margin: float | None) -> Tensor:
    """T con, Eq. 5: 1 if margin + S_n > S_p, else 0; always 1 with margin None."""
    if margin is None:
        return torch.ones_like(s_p + s_n)
    return (margin + s_n > s_p).to(s_p.dtype)


def nca_triplet(s_p: Tensor, s_n: Tensor, tau: float) -> Tensor:
    """T nca, Eq. 7: 1 / (1 + exp(tau (S_p - S_n))). Lines of equal weight are straight."""
    return logistic(tau * (s_n - s_p))


def cir_triplet(s_p: Tensor, s_n: Tensor, tau: float, offset: float) -> Tensor:
    """T cir, Eq. 8: 1 / (1 + exp(tau (S_p (2 - S_p) - S_n^2 - offset))).

    Lines of equal weight are circles about (S_p, S_n) = (1, 0).
    """
    return logistic(circle_exponent(s_p, s_n, tau, offset))


def circle_exponent(s_p: Tensor, s_n: Tensor, tau: float, offset: float) -> Tensor:
    """tau (S_n^2 - S_p (2 - S_p) + offset), the exponent of Eq. 8 with its sign changed."""
    return tau * (s_n.square() - s_p * (2 - s_p) + offset)


def lin_positive(s_p: Tensor, mu: Tensor | None = None) -> Tensor:
    """P+ lin, Eq. 10: 1 - S_p; P+ lin-ms, Eq. 13: (1 - mu+) (1 - S_p)."""
    return 1 - s_p if mu is None else (1 - mu) * (1 - s_p)


def lin_negative(s_n: Tensor, mu: Tensor | None = None) -> Tensor:
    """P- lin, Eq. 10: S_n; P- lin-ms, Eq. 13: (1 + mu-) S_n."""
    return s_n if mu is None else (1 + mu) * s_n


def sig_positive(s_p: Tensor, alpha: float, lam: float, relative: Tensor | None = None) -> Tensor:
    """P+ sig, Eq. 11: 1 / (1 + exp(alpha (S_p - lam))); P+ sig-ms, Eq. 12: M+ in place of the 1."""
    return ((1.0 if relative is None else relative) + bounded_exp(alpha * (s_p - lam))).reciprocal()


def sig_negative(s_n: Tensor, beta: float, lam: float, relative: Tensor | None = None) -> Tensor:
    """P- sig, Eq. 11: 1 / (1 + exp(-beta (S_n - lam))); P- sig-ms, Eq. 12: M- in place of the 1."""
    return ((1.0 if relative is None else relative) + bounded_exp(-beta * (s_n - lam))).reciprocal()


class RelativeSettings(NamedTuple):
    """What a relative term is the mean of, and its value over an empty set.

    `gap` (lin-ms, Eq. 13): mu+ = mean over P of S_p - R, mu- = mean over N of S_n - R.
    `ratio` (sig-ms, Eq. 12): M+ = mean over P of exp(alpha (S_p - R)), M- = mean over N of exp(-beta (S_n - R)).
    """

    kind: Literal["gap", "ratio"]
    slack: float
    alpha: float
    beta: float
    empty: float


class OtherPositives:
    """mu+ or M+ of a batch: means over the set P of each triplet, from one sort and one cumulative sum."""

    def __init__(self, pool: Float[Tensor, " pair"], settings: RelativeSettings) -> None:
        """`pool`: similarities of all positive pairs of the batch, ascending; may be padded with +inf."""
        self.pool, self.settings, self._lowest = pool, settings, pool[0]
        terms = self._term(pool)
        self._sums = torch.nn.functional.pad(terms.cumsum(dim=0), (1, 0))  # [k]: sum of the k smallest
        # A triplet's own term is subtracted from the sum. Terms decrease as R grows (or are gaps), so cancellation is a
        # problem for the smallest pair only: for it, the sum is computed without its term instead.
        self._without_first = torch.nn.functional.pad(terms[1:].cumsum(dim=0), (2, 0))

    def relative(self, s_p: Float[Tensor, "*triplet"], s_n: Float[Tensor, "*#triplet"]) -> Float[Tensor, "*triplet"]:
        """mu+ (Eq. 13) or M+ (Eq. 12) of each triplet."""
        limit = s_n + self.settings.slack
        below = torch.searchsorted(self.pool, limit)
        includes_own = s_p < limit
        others = below - includes_own.to(below.dtype)
        own = self._term(s_p)
        subtracted = self._sums[below] - own * includes_own
        total = torch.where(s_p == self._lowest, self._without_first[below], subtracted)
        mean = total / others.clamp(min=1)
        # own is S_p - m, or 1 / exp(alpha (S_p - m))
        relative = own - mean if self.settings.kind == "gap" else mean / own
        return torch.where(others > 0, relative, self.settings.empty)

    def _term(self, s: Tensor) -> Tensor:
        """R - m, or exp(alpha (m - R)): exp(alpha (S_p - R)) divided by the triplet's factor exp(alpha (S_p - m))."""
        if self.settings.kind == "gap":
            return s - self._lowest
        return bounded_exp(self.settings.alpha * (self._lowest - s))


def relative_to_negatives(
    rows: Rows, hardest: Hardest, lowest_positive: Float[Tensor, "*#anchor"], settings: RelativeSettings
) -> Float[Tensor, " anchor"]:
    """mu- (Eq. 13, at least 0) or M- (Eq. 12, at most 1) of each anchor: means over its set N.

    `lowest_positive`: of the batch, or a column of those of the batches of the anchors.
    """
    in_set = rows.negatives & (rows.similarity > lowest_positive - settings.slack)
    in_set = in_set.scatter(1, hardest.candidate[:, None], False)
    gap = hardest.similarity[:, None] - rows.similarity
    term = gap if settings.kind == "gap" else bounded_exp(-settings.beta * gap)
    count = in_set.sum(dim=1)
    return torch.where(count > 0, (term * in_set).sum(dim=1) / count.clamp(min=1), settings.empty)
