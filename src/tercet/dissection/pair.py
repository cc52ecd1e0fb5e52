"""Two runs side by side: what they are called, and whether they answered the same queries."""

from collections.abc import Sequence

from tercet.data.dataset import Split
from tercet.dissection.opened import Opened


def labels(opened: Sequence[Opened]) -> list[str]:
    """Their objectives; with the seeds, or the folders' names, where that is what differs."""
    objectives = [run.objective.name for run in opened]
    with_seeds = [f"{run.objective.name} (seed {run.settings.seed})" for run in opened]
    for names in (objectives, with_seeds):
        if len(set(names)) == len(names):
            return names
    return [run.name for run in opened]


def shared_held_out(first: Opened, second: Opened | None) -> Split:
    """The images and captions that both were evaluated on; `ValueError` where they differ."""
    split = first.split(first.held_out)
    if second is None:
        return split
    if first.folder.resolve() == second.folder.resolve():
        raise ValueError(f"{first.name} is given twice: expected two different runs")
    other = second.split(second.held_out)
    if different := _difference(split, other):
        raise ValueError(
            f"{first.name} and {second.name} were evaluated on different data, so their answers cannot be "
            f"compared: {different}"
        )
    return split


def _difference(split: Split, other: Split) -> str:
    for what, ours, theirs in (
        ("image", split.image_names, other.image_names),
        ("caption", split.texts, other.texts),
        ("the image of caption", tuple(split.owners), tuple(other.owners)),
    ):
        if len(ours) != len(theirs):
            return f"{len(ours):,} {what}s and {len(theirs):,}"
        if ours != theirs:
            place = next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            return f"{what} {place} is {ours[place]!r} and {theirs[place]!r}"
    return ""
