"""The gradient of one training batch laid open: who pulls an image or a caption, who pushes it, with pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from tercet import runs
from tercet.analysis.anatomy import Anatomy, Force, dissect, percent, telling
from tercet.contracts import PairMask, Similarity
from tercet.data.dataset import Split
from tercet.data.meetings import Meeting
from tercet.data.pairs import PairedData
from tercet.dissection.opened import Opened, Seen
from tercet.objectives import RowObjective
from tercet.pages.page import Section, page, scrolling
from tercet.pages.pictures import picture_block, stand_in
from tercet.pages.table import Cell, Table

Direction = Literal["i2t", "t2i"]
DIRECTIONS: dict[Direction, str] = {"i2t": "Image to text", "t2i": "Text to image"}
SHOWN = 5  # that pull, and as many that push
FALSE = 2  # that push less, yet are known to be no negatives


class Summary(NamedTuple):
    """Of all anchors of a direction; the hardest's share is a mean over those that are pushed."""

    anchors: int
    silent: int
    pushing_mean: float
    hardest_share_mean: float
    known_false: int
    known_false_share: float


@dataclass(frozen=True)
class Side:
    """One direction of the batch: rows are anchors."""

    direction: Direction
    similarity: Similarity
    known: Mapping[str, PairMask]
    anatomies: Sequence[Anatomy]
    chosen: Sequence[tuple[str, Anatomy]]
    anchors: Sequence[int]
    """Rows of the data."""
    candidates: Sequence[int]

    @property
    def strength(self) -> float:
        return sum((each.strength for each in self.anatomies), 0.0)

    def why_false(self, anchor: int, candidate: int) -> str | None:
        """What tells that a negative is none."""
        return next((why for why, mask in self.known.items() if mask[anchor, candidate]), None)

    def summary(self) -> Summary:
        pushed = [each for each in self.anatomies if each.pushing]
        pushes = [(each.anchor, force) for each in self.anatomies for force in each.pushes]
        false = [force.gradient for anchor, force in pushes if self.why_false(anchor, force.candidate) is not None]
        known = torch.stack(list(self.known.values())).any(dim=0)
        return Summary(
            anchors=len(self.anatomies),
            silent=sum(each.silent for each in self.anatomies),
            pushing_mean=sum(each.pushing for each in self.anatomies) / len(self.anatomies),
            hardest_share_mean=sum((each.hardest_share for each in pushed), 0.0) / max(len(pushed), 1),
            known_false=int(known.sum()),
            known_false_share=sum(false) / sum(force.gradient for _, force in pushes) if pushes else 0.0,
        )


def write_anatomy(
    opened: Opened, objective: RowObjective, out: Path, *, batch: int = 0, batch_size: int = 128, anchors: int = 6
) -> Path:
    """`anatomy.html` and, for programs, `anatomy.json`: so many anchors of the batch, half of them captions."""
    if anchors < 1:
        raise ValueError(f"expected to show at least 1 anchor, got {anchors}")
    seen = _batch(opened, objective, batch, batch_size)
    split = opened.split(opened.ready.train)
    sides = _sides(opened, objective, seen, anchors)
    heading = f"What {objective.name} does to batch {batch}"
    lead = _lead(sides)
    document = {
        "run": opened.name,
        "objective": objective.name,
        "objective_settings": objective.settings,
        "batch": batch,
        "images": seen.meeting.images.tolist(),
        "captions": seen.meeting.captions.tolist(),
        "summary": {side.direction: side.summary()._asdict() for side in sides},
        "anchors": [_document(side, role, each, split) for side in sides for role, each in side.chosen],
    }
    sections = [
        Section("batch", "The whole batch", _batch_block(opened, seen, sides)),
        *(
            Section(side.direction, DIRECTIONS[side.direction], _side_block(side, split))
            for side in sides
            if side.chosen
        ),
    ]
    runs.write_beside_runs(out, "anatomy.html", page(f"Tercet: {heading}", heading, lead, sections))
    runs.write_json(out / "anatomy.json", document)
    return out / "anatomy.html"


def _batch(opened: Opened, objective: RowObjective, batch: int, batch_size: int) -> Seen:
    meetings = opened.meetings(objective, batch_size)
    if not 0 <= batch < len(meetings):
        raise ValueError(f"batch {batch}: there are {len(meetings):,} batches, 0 to {len(meetings) - 1}")
    return opened.seen(meetings[batch])


def _sides(opened: Opened, objective: RowObjective, seen: Seen, anchors: int) -> list[Side]:
    similarity = seen.similarity.double()  # who pushes at all should not hang on a rounding
    members = seen.members(objective)
    mined = None if members is None else members.double()
    i2t, t2i = objective.pair_gradients(similarity, seen.positives, seen.ignored, mined=mined)
    out = seen.positives if seen.ignored is None else seen.positives | seen.ignored
    known = known_false(opened.ready.train, seen.meeting, out)
    images, captions = seen.meeting.images.tolist(), seen.meeting.captions.tolist()
    of_images = dissect(i2t, similarity, seen.positives, seen.ignored)
    of_captions = dissect(t2i.T, similarity.T, seen.positives.T, None if seen.ignored is None else seen.ignored.T)
    turned = {why: mask.T for why, mask in known.items()}
    return [
        Side("i2t", similarity, known, of_images, telling(of_images, (anchors + 1) // 2), images, captions),
        Side("t2i", similarity.T, turned, of_captions, telling(of_captions, anchors // 2), captions, images),
    ]


def known_false(data: PairedData, meeting: Meeting, positives: PairMask) -> dict[str, PairMask]:
    """Negatives that are known to match, by what tells so."""
    owners = data.owners
    starts = torch.searchsorted(owners, meeting.images).tolist()
    ends = torch.searchsorted(owners, meeting.images, right=True).tolist()
    own_texts = [set(data.texts[start:end]) for start, end in zip(starts, ends, strict=True)]
    texts = [data.texts[caption] for caption in meeting.captions.tolist()]
    found = {
        "same image": meeting.images[:, None] == owners[meeting.captions][None, :],
        "same words": torch.tensor([[text in own for text in texts] for own in own_texts]),
    }
    if data.truth is not None:
        found["also true"] = data.truth(meeting.images, meeting.captions)
    return {why: mask & ~positives for why, mask in found.items()}


def _lead(sides: Sequence[Side]) -> str:
    return " ".join(_said(side.summary(), kind) for side, kind in zip(sides, ("images", "captions"), strict=True))


def _said(found: Summary, kind: str) -> str:
    silent = "none is silent" if not found.silent else f"{found.silent:,} are silent"
    rest = (
        ""
        if found.silent == found.anchors
        else (f", and the hardest negative carries {percent(found.hardest_share_mean)} of the push on average")
    )
    return f"Of {found.anchors:,} {kind} {silent}{rest}."


def _batch_block(opened: Opened, seen: Seen, sides: Sequence[Side]) -> str:
    headings = (
        "direction",
        "anchors",
        "silent",
        "that push",
        "hardest's share",
        "false negatives",
        "their share",
    )
    rows = []
    for side in sides:
        found = side.summary()
        cells = [
            f"{found.anchors:,}",
            f"{found.silent:,}",
            f"{found.pushing_mean:.1f}",
            percent(found.hardest_share_mean),
            f"{found.known_false:,}",
            percent(found.known_false_share),
        ]
        rows.append((DIRECTIONS[side.direction].lower(), [Cell(text) for text in cells]))
    title = (
        "Means over anchors: how many negatives push by more than 1 % of the strongest, and the hardest one's share of "
        "the push. False negatives: those known to match; their share of all push."
    )
    images, captions = (f"{len(each):,}" for each in (seen.meeting.images, seen.meeting.captions))
    return (
        f'<p class="note">A training batch of {images} images and {captions} captions, with the final weights of '
        f"{escape(opened.name)} and no dropout. Below, what pulls an anchor closer and what pushes it away: its share "
        f"of all pull or all push, and its similarity. An image that came with several captions stands there as often."
        f"</p>{scrolling(title, Table(title, headings, rows).html())}"
    )


def _side_block(side: Side, split: Split) -> str:
    return "".join(_anchor_block(side, role, each, split) for role, each in side.chosen)


def _anchor_block(side: Side, role: str, each: Anatomy, split: Split) -> str:
    row = side.anchors[each.anchor]
    if side.direction == "i2t":
        query = picture_block(split, row) + stand_in(split, row)
    else:
        query = f"<q>{escape(split.texts[row])}</q> {picture_block(split, int(split.owners[row]))}"
    weight = "" if each.silent else f": {percent(each.strength / side.strength)} of the gradient of this direction"
    lists = _forces_block(side, each, "Pull", each.pulls, split) + _forces_block(side, each, "Push", each.pushes, split)
    kind = "answers placed texts" if side.direction == "i2t" else "answers placed"
    return (
        f'<div class="example"><h3>{role.capitalize()}{weight}</h3>'
        f'<div class="query">{query}</div><p>{escape(each.sentence())}</p><div class="{kind}">{lists}</div></div>'
    )


def _forces_block(side: Side, each: Anatomy, what: str, forces: Sequence[Force], split: Split) -> str:
    if not forces:
        return ""
    false = [force for force in forces[SHOWN:] if side.why_false(each.anchor, force.candidate) is not None]
    shown = [*forces[:SHOWN], *false[:FALSE]]
    items = ""
    for force in shown:
        own = " class=own" if force.candidate in each.positives else ""
        items += f"<li{own}>{_force_item(side, each, what, force, split)}</li>"
    rest = [force for force in forces if force not in shown]
    left = f"; {len(rest):,} more carry {percent(sum(force.share for force in rest))}" if rest else ""
    return f"<div><h4>{what}: {len(forces):,}{left}</h4><ol>{items}</ol></div>"


def _force_item(side: Side, each: Anatomy, what: str, force: Force, split: Split) -> str:
    row, similarity = side.candidates[force.candidate], float(side.similarity[each.anchor, force.candidate])
    numbers = f'<span class="place">{percent(force.share)}</span> <span class="place">at {similarity:.3f}</span>'
    bar = f'<span class="bar {what.lower()}" style="width: {100 * force.share:.1f}%"></span>'
    marks = "".join(f'<span class="{kind}">{escape(text)}</span>' for kind, text in _marks(side, each, force))
    if side.direction == "i2t":
        return f"<q>{escape(split.texts[row])}</q> {numbers}{bar}{marks}"
    return f"{picture_block(split, row)}{stand_in(split, row)}{numbers}{bar}{marks}"


def _marks(side: Side, each: Anatomy, force: Force) -> list[tuple[str, str]]:
    found = [("mark", "✓ own")] if force.candidate in each.positives else []
    if force.candidate == each.hardest:
        found.append(("also", "hardest"))
    why = side.why_false(each.anchor, force.candidate)
    return found if why is None else [*found, ("also", f"≈ {why}")]


def _document(side: Side, role: str, each: Anatomy, split: Split) -> dict[str, Any]:
    def item(row: int, *, image: bool) -> dict[str, Any]:
        owner = row if image else int(split.owners[row])
        found: dict[str, Any] = {"image": owner, "name": split.image_names[owner]}
        return found if image else found | {"caption": row, "text": split.texts[row]}

    def force_document(force: Force) -> dict[str, Any]:
        return item(side.candidates[force.candidate], image=side.direction == "t2i") | {
            "gradient": force.gradient,
            "share": force.share,
            "similarity": float(side.similarity[each.anchor, force.candidate]),
            "positive": force.candidate in each.positives,
            "hardest": force.candidate == each.hardest,
            "known_false": side.why_false(each.anchor, force.candidate),
        }

    return {
        "direction": side.direction,
        "role": role,
        "anchor": item(side.anchors[each.anchor], image=side.direction == "i2t"),
        "sentence": each.sentence(),
        "strength": each.strength,
        "negatives": each.negatives,
        "pushing": each.pushing,
        "hardest_share": each.hardest_share,
        "pulls": [force_document(force) for force in each.pulls],
        "pushes": [force_document(force) for force in each.pushes],
    }
