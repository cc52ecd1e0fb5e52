"""COCOS of a run: counts over shuffled training batches at its chosen weights, for its own objective or any other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from tercet.analysis.cocos import Counts, cocos
from tercet.data.meetings import Meeting
from tercet.dissection.opened import Opened, Seen
from tercet.objectives import RowObjective
from tercet.pages.table import Cell, Table

SIDES = ("i2t", "t2i")
MEMBERS = ("(i, t-)", "(i-, t)", "(i-, t-)", "(i-', t-')")
SIDE_OF_MEMBER = (0, 1, 0, 0)  # the last two belong to both directions: shown once


@dataclass(frozen=True)
class Counted:
    """Over batches: mean and std (of all batches, as in the study) of every quantity, a direction at a time."""

    run: str
    objective: str
    batches: int
    mean: dict[str, Counts]
    std: dict[str, Counts]

    def content(self) -> dict[str, Any]:
        """Ready for JSON."""
        return vars(self)


def count_run(
    opened: Opened,
    objective: RowObjective,
    *,
    label: str | None = None,
    meetings: Iterable[Meeting] | None = None,
    epsilon: float = 0.01,
    as_published: bool = False,
) -> Counted:
    """Over all training batches of 128 where no `meetings` are given. `as_published`: by the released counters."""
    found = []
    for meeting in opened.meetings(objective) if meetings is None else meetings:
        batch = opened.seen(meeting)
        how: dict[str, Any] = {"epsilon": epsilon, "as_published": as_published}
        truth = opened.ready.train.truth
        if truth is not None and not as_published:
            how["matching"] = truth(batch.meeting.images, batch.meeting.captions)
        if not as_published:  # the released counters know none
            how["ignored"] = batch.ignored
            how["mined"] = batch.members(objective)
        found.append(cocos(objective, batch.similarity, _positives(batch, as_published), **how))
    means, stds = (
        {side: {key: reduce(values) for key, values in _by_key(found, side)} for side in SIDES}
        for reduce in (_mean, _std)
    )
    if "mined_active" in found[0]:  # of both directions: a column for each member
        for reduced, reduce in ((means, _mean), (stds, _std)):
            counts = zip(*(each["mined_active"] for each in found), strict=True)
            reduced["mined"] = {member: reduce(list(map(float, c))) for member, c in zip(MEMBERS, counts, strict=True)}
    return Counted(opened.name, label or objective.name, len(found), means, stds)


def _positives(batch: Seen, as_published: bool) -> Any:
    """The released counters take one caption an image, and no other caption of it for a positive."""
    images, captions = batch.similarity.shape
    return None if as_published and images == captions else batch.positives


def _by_key(found: Sequence[dict[str, Counts]], side: str) -> Iterator[tuple[str, list[float]]]:
    """Without NaN: the mean over no query of a batch is no number."""
    for key in found[0][side]:
        numbers = [each[side][key] for each in found]
        yield key, [number for number in numbers if number == number]


def _mean(numbers: list[float]) -> float:
    return fmean(numbers) if numbers else float("nan")


def _std(numbers: list[float]) -> float:
    return pstdev(numbers) if numbers else float("nan")


def table(counted: Counted) -> Table:
    """A row a quantity, a column a direction."""
    keys = dict.fromkeys(key for side in SIDES for key in counted.mean[side])
    rows = [(key, [Cell(_shown(counted, side, key)) for side in SIDES]) for key in keys]
    if "mined" in counted.mean:
        for member, side in zip(MEMBERS, SIDE_OF_MEMBER, strict=True):
            cells = [Cell(""), Cell("")]
            cells[side] = Cell(_shown(counted, "mined", member))
            rows.append((f"mined_active {member}", cells))
    title = f"{counted.objective} at the weights of {counted.run}: mean ± std over {counted.batches} training batches"
    return Table(title, ("", *SIDES), rows)


def _shown(counted: Counted, side: str, key: str) -> str:
    if key not in counted.mean[side]:
        return ""
    return f"{counted.mean[side][key]:.3f} ± {counted.std[side][key]:.3f}"
