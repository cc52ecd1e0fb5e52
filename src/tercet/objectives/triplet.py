"""`triplet`: the hinge over every (positive, negative) of a query, as VSE0 and the comparison study sum it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows
from tercet.objectives.settings import require_numbers


@dataclass(frozen=True, kw_only=True, repr=False)
class Triplet(RowObjective):
    """L_q = sum over positives p and negatives n of max(0, margin + S_n - S_p).

    dL/dS_n is the number of positives that n violates, dL/dS_p minus the number of negatives that violate p.
    Nothing to compare with (no negative, or no positive) gives zero. All similarities equal: every triplet is active.

    >>> similarity = torch.tensor([[0.5, 0.4, 0.2], [0.0, 0.1, 0.9]])
    >>> positives = torch.tensor([[True, False, False], [False, True, True]])
    >>> Triplet().pair_gradients(similarity, positives)[0]
    tensor([[-1.,  1.,  0.],
            [ 1., -1.,  0.]])
    """

    margin: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "margin")

    @property
    def name(self) -> str:
        return "triplet"

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self._active_triplets(rows).to(rows.similarity.dtype)

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        # Piecewise linear: every active triplet adds (margin + S_n) - S_p, and the counts say how often each occurs.
        active = self._active_triplets(rows).to(rows.similarity.dtype)
        reach = torch.where(rows.negatives, rows.similarity + self.margin, rows.similarity)
        return (active * reach).sum(dim=1)

    @torch.no_grad()
    def _active_triplets(self, rows: Rows) -> Int[Tensor, "anchor candidate"]:
        """Active triplets of each negative, minus those of each positive; sorting counts them without a cube."""
        reach = rows.similarity + self.margin
        sorted_positives = rows.similarity.masked_fill(~rows.positives, torch.inf).sort(dim=1).values
        violated = torch.searchsorted(sorted_positives, reach)  # positives strictly below the negative's reach
        sorted_reaches = reach.masked_fill(~rows.negatives, -torch.inf).sort(dim=1).values
        within = torch.searchsorted(sorted_reaches, rows.similarity, right=True)  # negatives that stay below
        violators = rows.similarity.shape[1] - within
        return violated * rows.negatives - violators * rows.positives
