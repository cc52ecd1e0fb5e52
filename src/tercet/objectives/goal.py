"""The fifteen cells of GOAL, `T/P`: triplet weight times pair weight, a gradient first and a loss only sometimes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from tercet.objectives import weights
from tercet.objectives.hardest import hinge
from tercet.objectives.relative import RelativeSettings
from tercet.objectives.settings import require_numbers, require_one_of, require_positive
from tercet.objectives.triplets import TripletObjective, Triplets

TripletWeight = Literal["con", "nca", "cir"]
PairWeight = Literal["con", "lin", "sig", "lin-ms", "sig-ms"]
TRIPLET_WEIGHTS: tuple[TripletWeight, ...] = get_args(TripletWeight)
PAIR_WEIGHTS: tuple[PairWeight, ...] = get_args(PairWeight)

# What a setting is when it is not named: as the paper prints it, or as the authors' released program has it.
READINGS: dict[str, dict[str, Any]] = {
    "paper": {"margin": 0.2, "offset": 0.0, "empty": "plain"},
    "code": {"margin": None, "offset": 0.5, "empty": "zero"},
}
AS_READ: Any = object()


@dataclass(frozen=True, kw_only=True, repr=False)
class Goal(TripletObjective):
    """dL/dS_p = -T P+ and dL/dS_n = +T P- for every positive pair and its anchor's hardest negative.

    The weights are constants: no derivative goes through them. `margin` gates con (None: no gate), `tau` is the
    steepness of nca and cir, `offset` the constant of cir, `alpha`, `beta` and `lam` shape sig, `slack` the relative
    sets of the -ms cells; `empty` says what a relative term is over an empty set: "plain" falls back to the cell
    without -ms, "zero" takes 0. `reading` ("paper" or "code") sets margin, offset and empty where they are not named.

    A query without a negative gives zero. All similarities equal: every positive makes a triplet with the first
    negative. lin weighs a negative by S_n itself, so a negative below 0 is pulled; no weight is clipped.

    >>> import torch
    >>> similarity = torch.tensor([[0.5, 0.4]])
    >>> Goal("nca", "sig").pair_gradients(similarity, torch.tensor([[True, False]]))[0]
    tensor([[-0.1345,  0.0723]])
    """

    triplet_weight: TripletWeight = field(kw_only=False)
    pair_weight: PairWeight = field(kw_only=False)
    margin: float | None = AS_READ
    tau: float = 10.0
    offset: float = AS_READ
    alpha: float = 2.0
    beta: float = 10.0
    lam: float = 0.5
    slack: float = 0.1
    empty: Literal["plain", "zero"] = AS_READ
    reading: Literal["paper", "code"] = field(default="paper", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, allowed in (
            ("triplet_weight", TRIPLET_WEIGHTS),
            ("pair_weight", PAIR_WEIGHTS),
            ("reading", tuple(READINGS)),
        ):
            require_one_of(self, setting, allowed)
        for setting, read in READINGS[self.reading].items():
            if getattr(self, setting) is AS_READ:
                object.__setattr__(self, setting, read)
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
        # Plain lin is mu = 0, so that both kinds of empty agree there; plain sig is M = 1.
        if self.pair_weight == "lin-ms":
            return RelativeSettings("gap", self.slack, self.alpha, self.beta, empty=0.0)
        if self.pair_weight == "sig-ms":
            return RelativeSettings(
                "ratio", self.slack, self.alpha, self.beta, empty=1.0 if self.empty == "plain" else 0.0
            )
        return None

    def weigh(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        weight, positive, negative = self.weights(triplets)
        return weight * positive, weight * negative

    def weights(self, triplets: Triplets) -> tuple[Tensor, Tensor | float, Tensor | float]:
        return self._triplet_weights(triplets.s_p, triplets.s_n), *self._pair_weights(triplets)

    def triplet_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        loss = self._triplet_loss()
        return super().triplet_value(s_p, s_n) if loss is None else loss(s_p, s_n)

    def _triplet_weights(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        match self.triplet_weight:
            case "con":
                return weights.con_triplet(s_p, s_n, self.margin)
            case "nca":
                return weights.nca_triplet(s_p, s_n, self.tau)
            case "cir":
                return weights.cir_triplet(s_p, s_n, self.tau, self.offset)

    def _pair_weights(self, triplets: Triplets) -> tuple[Tensor | float, Tensor | float]:
        """(P+, P-)."""
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
        """The loss of one triplet whose gradient is (-T P+, T P-), for the cells that have one."""
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
            case ("cir", "lin"):  # circle
                return lambda s_p, s_n: _softplus(weights.circle_exponent(s_p, s_n, tau, self.offset)) / (2 * tau)
            case _:
                return None

    def _defaults(self) -> dict[str, Any]:
        return {**super()._defaults(), **READINGS[self.reading]}


def _softplus(exponent: Tensor) -> Tensor:
    return -F.logsigmoid(-exponent)  # F.softplus turns linear at 20 and is then off by 2e-9
