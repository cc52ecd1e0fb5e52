"""How much of an objective's push falls on pairs that people call matching."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from tercet.data.judgements import UNJUDGED, YES, Judgements
from tercet.data.meetings import Meeting, paired_meetings
from tercet.dissection.opened import Opened
from tercet.objectives import RowObjective
from tercet.pages.table import Cell, Table

SHUFFLES = 24  # how often every judged caption meets others: pairs that were judged must meet to be seen
DRAWS = 2000
LEVEL = 0.95
EVERYTHING, JUDGED, MATCHING = range(3)


@dataclass(frozen=True)
class Push:
    """By image of the pair and image of its caption: what is pushed in all, on judged negatives, on matching ones."""

    objective: str
    of: Float[np.ndarray, "3 image owner"]

    def content(self) -> dict[str, Any]:
        """Ready for JSON."""
        figures = {"share": self.share(), "interval": list(self.interval()), "judged": self.seen()}
        return {"objective": self.objective, **figures, "at_least": self.at_least()}

    def share(self) -> float:
        """Of the push on judged negatives, that on matching ones."""
        return _ratio(self.of[MATCHING], self.of[JUDGED])

    def at_least(self) -> float:
        """Of all push, that on pairs known to match: others may match that nobody looked at."""
        return _ratio(self.of[MATCHING], self.of[EVERYTHING])

    def seen(self) -> float:
        """Share of the push that falls on judged pairs."""
        return _ratio(self.of[JUDGED], self.of[EVERYTHING])

    def interval(self) -> tuple[float, float]:
        """Of `share`: percentiles over images drawn with replacement. A pair has two of them, and both are drawn."""
        return _percentiles(self.drawn_shares())

    def drawn_shares(self) -> Float[np.ndarray, " draw"]:
        """The same draws for every objective, so that differences can be told too."""
        images = self.of.shape[1]
        drawn = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), DRAWS).astype(np.float64)
        judged, matching = (((drawn @ self.of[part]) * drawn).sum(axis=1) for part in (JUDGED, MATCHING))
        return matching / np.where(judged > 0, judged, np.nan)


def difference(first: Push, second: Push) -> tuple[float, float]:
    """Interval of the first share minus the second, over the same images."""
    return _percentiles(first.drawn_shares() - second.drawn_shares())


def _percentiles(numbers: Float[np.ndarray, " draw"]) -> tuple[float, float]:
    low, high = np.nanquantile(numbers, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / whole.sum()) if whole.sum() else float("nan")


def push_on_judged(
    opened: Opened, objective: RowObjective, judgements: Judgements, *, label: str | None = None, batch_size: int = 128
) -> Push:
    """In batches of judged captions of the held-out split with their images, as they would meet in training."""
    images, captions = opened.encoded_held_out
    owners = opened.held_out.owners
    total = np.zeros((3, len(images), len(images)))
    for meeting in meetings_of(judgements, owners.numpy(), batch_size):
        chosen = torch.from_numpy(judgements.captions)[meeting.captions]
        similarity = opened.similarity(images[meeting.images][:], captions[chosen][:]).double()
        positives = meeting.images[:, None] == owners[chosen][None, :]
        said = judgements.said[np.ix_(meeting.images.numpy(), meeting.captions.numpy())]
        i2t, t2i = objective.pair_gradients(similarity, positives)
        # A negative below 0 that lin pulls is no push.
        push = ((i2t.clamp(min=0) + t2i.clamp(min=0)) * ~positives).numpy()
        pairs = np.ix_(meeting.images.numpy(), owners[chosen].numpy())
        for part, counted in (
            (EVERYTHING, push),
            (JUDGED, push * (said != UNJUDGED)),
            (MATCHING, push * (said == YES)),
        ):
            np.add.at(total[part], pairs, counted)
    return Push(label or objective.name, total)


def meetings_of(
    judgements: Judgements, owners: Int[np.ndarray, " caption"], batch_size: int, shuffles: int = SHUFFLES
) -> list[Meeting]:
    """Captions are numbers of judged ones."""
    own = torch.from_numpy(owners[judgements.captions])
    size = min(batch_size, len(own))
    return [meeting for number in range(shuffles) for meeting in paired_meetings(own, size, seed=0, epoch=number)]


def even_share(judgements: Judgements, owners: Int[np.ndarray, " caption"]) -> float:
    """What the share would be if all judged negatives were pushed alike."""
    negatives = np.arange(len(judgements.said))[:, None] != owners[judgements.captions][None, :]
    judged = negatives & (judgements.said != UNJUDGED)
    return float((judgements.said[judged] == YES).mean())


def table(pushes: Sequence[Push], even: float) -> Table:
    rows = []
    for each in pushes:
        low, high = each.interval()
        cells = [f"{100 * each.share():.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{each.share() / even:.1f}"]
        cells += [f"{100 * each.seen():.1f}", f"{100 * each.at_least():.2f}"]
        rows.append((each.objective, [Cell(text) for text in cells]))
    title = (
        f"Push on negatives that people call matching, % of that on judged negatives ({100 * even:.1f} if pushed alike)"
    )
    return Table(
        title, ("objective", "share", "95 % interval", "times even", "judged, % of push", "at least, % of push"), rows
    )
