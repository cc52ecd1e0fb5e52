"""Gradient breakdown per anchor: which candidates pull it, which push it, and the share of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.objectives.inputs import as_rows, hardest_negative

EPSILON = 0.01  # threshold relative to an anchor's largest push, as in COCOS


class Force(NamedTuple):
    """One nonzero entry of an anchor's gradient row; `share` is its share of all pulls, or of all pushes."""

    candidate: int
    gradient: float
    share: float


@dataclass(frozen=True)
class GradientBreakdown:
    """The gradient row of one anchor. Negative entries pull, positive entries push; both lists are largest first."""

    anchor: int
    pulls: Sequence[Force]
    pushes: Sequence[Force]
    positives: frozenset[int]
    negatives: int
    """Number of negatives."""
    pushing: int
    """Number of negatives whose push is more than 1 % of the largest push on a negative."""
    hardest: int | None
    """Index of the most similar negative."""
    nearest_positive: float | None
    """Similarity of the most similar positive."""
    hardest_similarity: float | None
    """Similarity of the most similar negative."""

    @property
    def strength(self) -> float:
        """Sum of |entries|."""
        return sum((abs(force.gradient) for force in (*self.pulls, *self.pushes)), 0.0)

    @property
    def silent(self) -> bool:
        """Whether all entries are zero."""
        return not self.pulls and not self.pushes

    @property
    def hardest_share(self) -> float:
        """Share of the hardest negative in all pushes."""
        return next((force.share for force in self.pushes if force.candidate == self.hardest), 0.0)

    def sentence(self) -> str:
        """A one-line description of the breakdown."""
        return " ".join(text for text in (self._pushes(), self._unexpected(), self._similarities()) if text)

    def _pushes(self) -> str:
        if self.silent:
            return f"Silent: nothing pulls, and none of {self.negatives:,} negatives pushes."
        if not self.pushing:
            return f"None of {self.negatives:,} negatives pushes; there are only pulls."
        any_push = sum(force.candidate not in self.positives for force in self.pushes)
        threshold = "" if any_push == self.pushing else " by more than 1 % of the strongest"
        verb = "pushes" if self.pushing == 1 else "push"
        carries = f"the hardest carries {percent(self.hardest_share)} of the push"
        return f"{self.pushing:,} of {self.negatives:,} negatives {verb}{threshold}; {carries}."

    def _unexpected(self) -> str:
        pulled = sum(force.candidate not in self.positives for force in self.pulls)
        pushed = sum(force.candidate in self.positives for force in self.pushes)
        clauses = [
            f"{count:,} {kind}{'s are' if count > 1 else ' is'} {action}"
            for count, kind, action in ((pulled, "negative", "pulled"), (pushed, "positive", "pushed"))
            if count
        ]
        return f"Against the mask, {' and '.join(clauses)}." if clauses else ""

    def _similarities(self) -> str:
        if self.nearest_positive is None or self.hardest_similarity is None:
            return ""
        kind = "nearest positive" if len(self.positives) > 1 else "positive"
        return f"Its {kind} is at {self.nearest_positive:.3f}, its hardest negative at {self.hardest_similarity:.3f}."


def percent(share: float) -> str:
    """Format a share as percent."""
    if 0 < share < 0.0001:
        return "under 0.01 %"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.2g} %"


def breakdown_of(
    gradient: Float[Tensor, "anchor candidate"],
    similarity: Float[Tensor, "anchor candidate"],
    positives: Bool[Tensor, "anchor candidate"],
    ignored: Bool[Tensor, "anchor candidate"] | None = None,
) -> list[GradientBreakdown]:
    """Break down the gradient of one direction, rows as anchors, for every anchor with a positive."""
    rows = as_rows(similarity, positives, ignored)
    hardest = hardest_negative(rows)
    breakdowns = []
    for anchor in rows.positives.any(dim=1).nonzero().flatten().tolist():
        is_positive, is_negative = rows.positives[anchor], rows.negatives[anchor]
        row = gradient[anchor].double()
        pushes = row[is_negative].clamp(min=0)
        threshold = EPSILON * float(pushes.max()) if len(pushes) else 0.0
        exists = bool(hardest.exists[anchor])
        breakdowns.append(
            GradientBreakdown(
                anchor,
                _forces(row, similarity[anchor], row < 0),
                _forces(row, similarity[anchor], row > 0),
                frozenset(is_positive.nonzero().flatten().tolist()),
                negatives=int(is_negative.sum()),
                pushing=int((pushes > threshold).sum()),
                hardest=int(hardest.candidate[anchor]) if exists else None,
                nearest_positive=float(similarity[anchor][is_positive].max()),
                hardest_similarity=float(hardest.similarity[anchor]) if exists else None,
            )
        )
    return breakdowns


def most_informative(breakdowns: Sequence[GradientBreakdown], count: int) -> list[tuple[str, GradientBreakdown]]:
    """At most `count` (role, breakdown): the strongest, the median, a silent one, then the next strongest.

    If none is silent, the weakest is used instead. The result is sorted by strength.
    """
    active = sorted((item for item in breakdowns if not item.silent), key=lambda item: -item.strength)
    silent = [("silent", item) for item in breakdowns if item.silent][:1]
    candidates = [("strongest", active[0]), ("median", active[(len(active) - 1) // 2])] if active else []
    candidates += silent or [("weakest", item) for item in active[-1:]]
    candidates += [(f"number {rank} by strength", item) for rank, item in enumerate(active[1:], 2)]
    chosen: dict[int, tuple[str, GradientBreakdown]] = {}
    for role, item in candidates:
        if len(chosen) < count:
            chosen.setdefault(item.anchor, (role, item))
    return sorted(chosen.values(), key=lambda pair: -pair[1].strength)


def _forces(
    row: Float[Tensor, " candidate"], similarity: Float[Tensor, " candidate"], mask: Bool[Tensor, " candidate"]
) -> list[Force]:
    """The entries in the mask, largest first, ties by similarity."""
    total = float(row[mask].abs().sum())
    candidates = mask.nonzero().flatten()
    for key in (similarity, row.abs()):  # stable sorts: the last key is the primary one
        candidates = candidates[torch.sort(key[candidates], descending=True, stable=True).indices]
    return [
        Force(candidate, float(row[candidate]), abs(float(row[candidate])) / total) for candidate in candidates.tolist()
    ]
