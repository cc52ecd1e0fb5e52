"""`triplet-sh`: the hinge of the hardest negative, the objective of VSE++ (and con/con of GOAL)."""

from dataclasses import dataclass

from torch import Tensor

from tercet.objectives.hardest import hinge
from tercet.objectives.settings import require_numbers
from tercet.objectives.triplets import TripletObjective, Triplets
from tercet.objectives.weights import con_triplet


@dataclass(frozen=True, kw_only=True, repr=False)
class HardestTriplet(TripletObjective):
    """L_q = sum over positives p of max(0, margin + S_n - S_p), n the query's most similar negative.

    Of equally similar negatives the one with the lowest index is pushed. A query without a negative gives zero.
    All similarities equal: every query is active and pushes its first negative.

    >>> import torch
    >>> similarity = torch.tensor([[0.5, 0.4, 0.35], [0.0, 0.1, 0.9]])
    >>> positives = torch.tensor([[True, False, False], [False, True, True]])
    >>> HardestTriplet().pair_gradients(similarity, positives)[0]
    tensor([[-1.,  1.,  0.],
            [ 1., -1.,  0.]])
    """

    margin: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "margin")

    @property
    def name(self) -> str:
        return "triplet-sh"

    def weigh(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        active = con_triplet(triplets.s_p, triplets.s_n, self.margin)
        return active, active

    def triplet_value(self, s_p: Tensor, s_n: Tensor) -> Tensor:
        return hinge(s_p, s_n, self.margin)
