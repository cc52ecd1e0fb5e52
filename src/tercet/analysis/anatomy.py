"""The anatomy of a gradient: which candidates pull an anchor, which push it, and how much of it each carries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.objectives.hardest import hardest_negative
from tercet.objectives.masks import as_rows

EPSILON = 0.01  # of an anchor's largest push: as COCOS counts


class Force(NamedTuple):
    """One entry of an anchor's row; `share` is of all that pulls the anchor, or of all that pushes it."""

    candidate: int
    gradient: float
    share: float


@dataclass(frozen=True)
class Anatomy:
    """One anchor. Entries below 0 pull, entries above 0 push; both lists begin with the largest."""

    anchor: int
    pulls: Sequence[Force]
    pushes: Sequence[Force]
    positives: frozenset[int]
    negatives: int
    pushing: int
    """Negatives that push by more than 1 % of the negative that pushes most."""
    hardest: int | None
    """The most similar negative."""
    nearest_positive: float | None
    """Its similarity."""
    hardest_similarity: float | None

    @property
    def strength(self) -> float:
        """Of all its entries, by size alone."""
        return sum((abs(force.gradient) for force in (*self.pulls, *self.pushes)), 0.0)

    @property
    def silent(self) -> bool:
        return not self.pulls and not self.pushes

    @property
    def hardest_share(self) -> float:
        """Of the push."""
        return next((force.share for force in self.pushes if force.candidate == self.hardest), 0.0)

    def sentence(self) -> str:
        """What happens to the anchor, in plain words."""
        return " ".join(part for part in (self._pushed(), self._unusual(), self._seen()) if part)

    def _pushed(self) -> str:
        if self.silent:
            return f"Silent: nothing pulls, and none of {self.negatives:,} negatives pushes."
        if not self.pushing:
            return f"None of {self.negatives:,} negatives pushes; what there is pulls."
        at_all = sum(force.candidate not in self.positives for force in self.pushes)
        more = "" if at_all == self.pushing else " by more than 1 % of the strongest"
        verb = "pushes" if self.pushing == 1 else "push"
        carries = f"the hardest carries {percent(self.hardest_share)} of the push"
        return f"{self.pushing:,} of {self.negatives:,} negatives {verb}{more}; {carries}."

    def _unusual(self) -> str:
        pulled = sum(force.candidate not in self.positives for force in self.pulls)
        pushed = sum(force.candidate in self.positives for force in self.pushes)
        said = [
            f"{count:,} {kind}{'s are' if count > 1 else ' is'} {done}"
            for count, kind, done in ((pulled, "negative", "pulled"), (pushed, "positive", "pushed"))
            if count
        ]
        return f"Against the mask, {' and '.join(said)}." if said else ""

    def _seen(self) -> str:
        if self.nearest_positive is None or self.hardest_similarity is None:
            return ""
        kind = "nearest positive" if len(self.positives) > 1 else "positive"
        return f"Its {kind} is at {self.nearest_positive:.3f}, its hardest negative at {self.hardest_similarity:.3f}."


def percent(share: float) -> str:
    if 0 < share < 0.0001:
        return "under 0.01 %"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.2g} %"


def dissect(
    gradient: Float[Tensor, "anchor candidate"],
    similarity: Float[Tensor, "anchor candidate"],
    positives: Bool[Tensor, "anchor candidate"],
    ignored: Bool[Tensor, "anchor candidate"] | None = None,
) -> list[Anatomy]:
    """Of every anchor with a positive, from the gradient of the direction whose anchors are the rows."""
    rows = as_rows(similarity, positives, ignored)
    hardest = hardest_negative(rows)
    found = []
    for anchor in rows.positives.any(dim=1).nonzero().flatten().tolist():
        own, row = rows.positives[anchor], gradient[anchor].double()
        others = rows.negatives[anchor]
        pushed_negatives = row[others].clamp(min=0)
        threshold = EPSILON * float(pushed_negatives.max()) if len(pushed_negatives) else 0.0
        exists = bool(hardest.exists[anchor])
        found.append(
            Anatomy(
                anchor,
                _forces(row, similarity[anchor], row < 0),
                _forces(row, similarity[anchor], row > 0),
                frozenset(own.nonzero().flatten().tolist()),
                negatives=int(others.sum()),
                pushing=int((pushed_negatives > threshold).sum()),
                hardest=int(hardest.candidate[anchor]) if exists else None,
                nearest_positive=float(similarity[anchor][own].max()),
                hardest_similarity=float(hardest.similarity[anchor]) if exists else None,
            )
        )
    return found


def telling(anatomies: Sequence[Anatomy], count: int) -> list[tuple[str, Anatomy]]:
    """So many anchors with what each stands for: the strongest, a median one, a silent one, then the next strongest.

    Where none is silent the weakest takes its place.
    """
    active = sorted((each for each in anatomies if not each.silent), key=lambda each: -each.strength)
    silent = [("silent", each) for each in anatomies if each.silent][:1]
    wanted = [("strongest", active[0]), ("median", active[(len(active) - 1) // 2])] if active else []
    wanted += silent or [("weakest", each) for each in active[-1:]]
    wanted += [(f"number {place} by strength", each) for place, each in enumerate(active[1:], 2)]
    chosen: dict[int, tuple[str, Anatomy]] = {}
    for role, each in wanted:
        if len(chosen) < count:
            chosen.setdefault(each.anchor, (role, each))
    return sorted(chosen.values(), key=lambda pair: -pair[1].strength)


def _forces(
    row: Float[Tensor, " candidate"], similarity: Float[Tensor, " candidate"], among: Bool[Tensor, " candidate"]
) -> list[Force]:
    """The largest first; among equals the most similar."""
    total = float(row[among].abs().sum())
    candidates = among.nonzero().flatten()
    for key in (similarity, row.abs()):  # sorted by the last, and where that is equal by the one before
        candidates = candidates[torch.sort(key[candidates], descending=True, stable=True).indices]
    return [
        Force(candidate, float(row[candidate]), abs(float(row[candidate])) / total) for candidate in candidates.tolist()
    ]
