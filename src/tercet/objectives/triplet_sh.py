"""`triplet-sh`: the hinge of the hardest negative, the objective of VSE++ (and con/con of GOAL)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.hardest import hardest_negative, hinge_of_hardest, triplet_gradient
from tercet.objectives.masks import Rows
from tercet.objectives.settings import require_numbers


@dataclass(frozen=True, kw_only=True, repr=False)
class HardestTriplet(RowObjective):
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

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        hardest = hardest_negative(rows)
        active = (self.margin + hardest.similarity > rows.similarity).to(rows.similarity.dtype)
        return triplet_gradient(rows, hardest, pull=active, push=active)

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return hinge_of_hardest(rows, self.margin)
