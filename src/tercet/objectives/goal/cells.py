"""The fifteen cells `T/P` of GOAL: triplet weight times pair weight.

Each cell is defined by its gradient, -T P+ and +T P- (used in Eq. 3; the weights are Eq. 5 to 13, in weights.py). Some
cells are also the gradient of a loss (`Goal._triplet_loss`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from tercet.objectives.goal import weights
from tercet.objectives.goal.weights import RelativeSettings
from tercet.objectives.hardest_triplet import TripletObjective, Triplets
from tercet.objectives.inputs import hinge, require_numbers, require_one_of, require_positive

TripletWeight = Literal["con", "nca", "cir"]
PairWeight = Literal["con", "lin", "sig", "lin-ms", "sig-ms"]
TRIPLET_WEIGHTS: tuple[TripletWeight, ...] = get_args(TripletWeight)
PAIR_WEIGHTS: tuple[PairWeight, ...] = get_args(PairWeight)

# Defaults of three settings: as printed in the paper, or as in the authors' released code.
READINGS: dict[str, dict[str, Any]] = {
    "paper": {"margin": 0.2, "offset": 0.0, "empty": "plain"},
    "code": {"margin": None, "offset": 0.5, "empty": "zero"},
}
FROM_READING: Any = object()  # default of a setting that `reading` decides


@dataclass(frozen=True, kw_only=True, repr=False)
class Goal(TripletObjective):
    """dL/dS_p = -T P+ and dL/dS_n = +T P- for every positive pair and its anchor's hardest negative.

    The weights are constants: they are not differentiated.

    - `margin`: the margin of T con, Eq. 5 (None: always 1)
    - `tau`: steepness of T nca and T cir, Eq. 7 and 8
    - `offset`: constant in the exponent of T cir, Eq. 8
    - `alpha`, `beta`, `lam`: steepness and center of P sig, Eq. 11
    - `slack`: slack of the relative sets of the -ms cells, Eq. 12 and 13
    - `empty`: relative term over an empty set; "plain" falls back to the cell without -ms, "zero" uses 0
    - `reading` ("paper" or "code"): sets margin, offset and empty where they are not given

    A query without a negative gives zero. All similarities equal: every positive makes a triplet with the first
    negative. P- lin is S_n itself, so a negative below 0 is pulled; no weight is clipped.

    >>> import torch
    >>> similarity = torch.tensor([[0.5, 0.4]])
    >>> Goal("nca", "sig").pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.1345,  0.0723]])
    """

    triplet_weight: TripletWeight = field(kw_only=False)
    pair_weight: PairWeight = field(kw_only=False)
    margin: float | None = FROM_READING
    tau: float = 10.0
    offset: float = FROM_READING
    alpha: float = 2.0
    beta: float = 10.0
    lam: float = 0.5
    slack: float = 0.1
    empty: Literal["plain", "zero"] = FROM_READING
    reading: Literal["paper", "code"] = field(default="paper", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, allowed in (
            ("triplet_weight", TRIPLET_WEIGHTS),
            ("pair_weight", PAIR_WEIGHTS),
            ("reading", tuple(READINGS)),
        ):
            require_one_of(self, setting, allowed)
        for setting, default in READINGS[self.reading].items():
            if getattr(self, setting) is FROM_READING:
                object.__setattr__(self, setting, default)
        require_one_of(self, "empty", ("plain", "zero"))
        require_positive(self, "tau", "alpha", "beta")
        require_numbers(self, "offset", "lam", "slack", *([] if self.margin is None else ["margin"]))

    @property
    def name(self) -> str:
        return f"{self.triplet_weight}/{self.pair_weight}"

    @property
    def has_value(self) -> bool:
        return self._triplet_loss() is not None

    @property
    def relative(self) -> RelativeSettings | None:
        # lin is lin-ms with mu = 0, so "plain" and "zero" agree; sig is sig-ms with M = 1.
        if self.pair_weight == "lin-ms":
            return RelativeSettings("gap", self.slack, self.alpha, self.beta, empty=0.0)
        if self.pair_weight == "sig-ms":
            return RelativeSettings(
                "ratio", self.slack, self.alpha, self.beta, empty=1.0 if self.empty == "plain" else 0.0
            )
        return None

    def pull_and_push(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        weight, positive, negative = self.weights(triplets)
        return weight * positive, weight * negative

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor | float, Tensor | float]:
        """(T, P+, P-) of each triplet."""
        return self._triplet_weights(triplets.s_p, triplets.s_n), *self._pair_weights(triplets)

    def triplet_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        loss = self._triplet_loss()
        return super().triplet_value(s_p, s_n) if loss is None else loss(s_p, s_n)

    def _triplet_weights(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        """T: con is Eq. 5, nca Eq. 7, cir Eq. 8."""
        match self.triplet_weight:
            case "con":
                return weights.con_triplet(s_p, s_n, self.margin)
            case "nca":
                return weights.nca_triplet(s_p, s_n, self.tau)
            case "cir":
                return weights.cir_triplet(s_p, s_n, self.tau, self.offset)

    def _pair_weights(self, triplets: Triplets) -> tuple[Tensor | float, Tensor | float]:
        """(P+, P-): con is Eq. 9, lin Eq. 10, sig Eq. 11, sig-ms Eq. 12, lin-ms Eq. 13."""
        s_p, s_n, relative_p, relative_n = triplets
        if self.pair_weight == "con":
            return 1.0, 1.0
        if self.pair_weight in ("lin", "lin-ms"):
            return weights.lin_positive(s_p, relative_p), weights.lin_negative(s_n, relative_n)
        return (
            weights.sig_positive(s_p, self.alpha, self.lam, relative_p),
            weights.sig_negative(s_n, self.beta, self.lam, relative_n),
        )

    def _triplet_loss(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """The loss of one triplet whose gradient is (-T P+, T P-), or None if the cell has no loss.

        con/con is the hinge of Eq. 4. nca/con is Eq. 6, NT-Xent with one negative, divided by tau: Eq. 7 drops the
        factor tau of the gradient of Eq. 6.
        """
        tau, alpha, beta, lam, margin = self.tau, self.alpha, self.beta, self.lam, self.margin
        match (self.triplet_weight, self.pair_weight):
            case ("con", "con") if margin is not None:
                return lambda s_p, s_n: hinge(s_p, s_n, margin)
            case ("con", "con"):
                return lambda s_p, s_n: s_n - s_p
            case ("con", "lin") if margin is None:
                return lambda s_p, s_n: 0.5 * (1 - s_p).square() + 0.5 * s_n.square()
            case ("con", "sig") if margin is None:  # binomial deviance
                return lambda s_p, s_n: _softplus(alpha * (lam - s_p)) / alpha + _softplus(beta * (s_n - lam)) / beta
            case ("nca", "con"):
                return lambda s_p, s_n: _softplus(tau * (s_n - s_p)) / tau
            case ("cir", "lin"):  # circle loss
                return lambda s_p, s_n: _softplus(weights.circle_exponent(s_p, s_n, tau, self.offset)) / (2 * tau)
            case _:
                return None

    def _defaults(self) -> dict[str, Any]:
        return {**super()._defaults(), **READINGS[self.reading]}


def _softplus(exponent: Tensor) -> Tensor:
    return -F.logsigmoid(-exponent)  # F.softplus is linear above 20 and off by 2e-9 there
