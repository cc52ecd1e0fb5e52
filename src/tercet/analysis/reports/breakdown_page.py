"""Gradient breakdown of one training batch as a page: what pulls and pushes an image or a caption, with images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from tercet import runs
from tercet.analysis.gradient_breakdown import Force, GradientBreakdown, breakdown_of, most_informative, percent
from tercet.analysis.reports.loaded_run import EvaluatedBatch, LoadedRun
from tercet.data.dataset import PairedData, Split
from tercet.data.samplers import BatchIndices
from tercet.objectives import RowObjective
from tercet.reporting.html import Section, caption_fallback, image_block, page, scrollable
from tercet.reporting.table_formats import Cell, Table
from tercet.storage import write_json
from tercet.types import PairMask, Similarity

Direction = Literal["i2t", "t2i"]
DIRECTIONS: dict[Direction, str] = {"i2t": "Image to text", "t2i": "Text to image"}
MAX_FORCES = 5  # listed per anchor: pulls, and as many pushes
MAX_FALSE_NEGATIVES = 2  # listed in addition, if they push less


class BreakdownSummary(NamedTuple):
    """Over all anchors of a direction; `hardest_share_mean` is over the anchors that are pushed."""

    anchors: int
    silent: int
    pushing_mean: float
    hardest_share_mean: float
    known_false: int
    known_false_share: float


@dataclass(frozen=True)
class BreakdownDirection:
    """One direction of the batch; rows are anchors."""

    direction: Direction
    similarity: Similarity
    false_negatives: Mapping[str, PairMask]
    """Known false negatives, by reason."""
    breakdowns: Sequence[GradientBreakdown]
    chosen: Sequence[tuple[str, GradientBreakdown]]
    """Anchors on the page, with their roles."""
    anchors: Sequence[int]
    """Rows of the training split."""
    candidates: Sequence[int]
    """Rows of the training split."""

    @property
    def strength(self) -> float:
        return sum((breakdown.strength for breakdown in self.breakdowns), 0.0)

    def false_negative_reason(self, anchor: int, candidate: int) -> str | None:
        """Why the pair is known to match; None if it is not known to match."""
        return next((reason for reason, mask in self.false_negatives.items() if mask[anchor, candidate]), None)

    def summary(self) -> BreakdownSummary:
        pushed = [breakdown for breakdown in self.breakdowns if breakdown.pushing]
        pushes = [(breakdown.anchor, force) for breakdown in self.breakdowns for force in breakdown.pushes]
        false_pushes = [
            force.gradient
            for anchor, force in pushes
            if self.false_negative_reason(anchor, force.candidate) is not None
        ]
        known_false = torch.stack(list(self.false_negatives.values())).any(dim=0)
        return BreakdownSummary(
            anchors=len(self.breakdowns),
            silent=sum(breakdown.silent for breakdown in self.breakdowns),
            pushing_mean=sum(breakdown.pushing for breakdown in self.breakdowns) / len(self.breakdowns),
            hardest_share_mean=sum((breakdown.hardest_share for breakdown in pushed), 0.0) / max(len(pushed), 1),
            known_false=int(known_false.sum()),
            known_false_share=sum(false_pushes) / sum(force.gradient for _, force in pushes) if pushes else 0.0,
        )


def write_breakdown(
    loaded: LoadedRun, objective: RowObjective, out: Path, *, batch: int = 0, batch_size: int = 128, anchors: int = 6
) -> Path:
    """Write `breakdown.html` and `breakdown.json`; `anchors` is the number shown, half of them captions."""
    if anchors < 1:
        raise ValueError(f"anchors must be at least 1, got {anchors}")
    evaluated = _evaluated_batch(loaded, objective, batch, batch_size)
    split = loaded.split(loaded.prepared.train)
    directions = _directions(loaded, objective, evaluated, anchors)
    heading = f"Gradient of {objective.name} on batch {batch}"
    document = {
        "run": loaded.name,
        "objective": objective.name,
        "objective_settings": objective.settings,
        "batch": batch,
        "images": evaluated.indices.images.tolist(),
        "captions": evaluated.indices.captions.tolist(),
        "summary": {each.direction: each.summary()._asdict() for each in directions},
        "anchors": [
            _anchor_document(each, role, breakdown, split) for each in directions for role, breakdown in each.chosen
        ],
    }
    sections = [
        Section("batch", "The whole batch", _batch_block(loaded, evaluated, directions)),
        *(
            Section(each.direction, DIRECTIONS[each.direction], _direction_block(each, split))
            for each in directions
            if each.chosen
        ),
    ]
    runs.write_artifact(out, "breakdown.html", page(f"Tercet: {heading}", heading, _lead(directions), sections))
    write_json(out / "breakdown.json", document)
    return out / "breakdown.html"


def known_false_negatives(data: PairedData, indices: BatchIndices, excluded: PairMask) -> dict[str, PairMask]:
    """Negatives that are known to match, by reason; `excluded` pairs are not negatives."""
    owners = data.owners
    starts = torch.searchsorted(owners, indices.images).tolist()
    ends = torch.searchsorted(owners, indices.images, right=True).tolist()
    own_texts = [set(data.texts[start:end]) for start, end in zip(starts, ends, strict=True)]
    texts = [data.texts[caption] for caption in indices.captions.tolist()]
    masks = {
        "same image": indices.images[:, None] == owners[indices.captions][None, :],
        "same words": torch.tensor([[text in own for text in texts] for own in own_texts]),
    }
    if data.truth is not None:
        masks["also true"] = data.truth(indices.images, indices.captions)
    return {reason: mask & ~excluded for reason, mask in masks.items()}


def _evaluated_batch(loaded: LoadedRun, objective: RowObjective, batch: int, batch_size: int) -> EvaluatedBatch:
    index_batches = loaded.index_batches(objective, batch_size)
    if not 0 <= batch < len(index_batches):
        raise ValueError(f"batch {batch}: there are {len(index_batches):,} batches, 0 to {len(index_batches) - 1}")
    return loaded.evaluate_batch(index_batches[batch])


def _directions(
    loaded: LoadedRun, objective: RowObjective, batch: EvaluatedBatch, anchors: int
) -> list[BreakdownDirection]:
    similarity = batch.similarity.double()  # rounding should not decide whether a negative pushes at all
    i2t, t2i = batch.bind(objective).pair_gradients(similarity, batch.positives, batch.ignored)
    excluded = batch.positives if batch.ignored is None else batch.positives | batch.ignored
    false_negatives = known_false_negatives(loaded.prepared.train, batch.indices, excluded)
    images, captions = batch.indices.images.tolist(), batch.indices.captions.tolist()
    ignored_t2i = None if batch.ignored is None else batch.ignored.T
    of_images = breakdown_of(i2t, similarity, batch.positives, batch.ignored)
    of_captions = breakdown_of(t2i.T, similarity.T, batch.positives.T, ignored_t2i)
    return [
        BreakdownDirection(
            "i2t",
            similarity,
            false_negatives,
            of_images,
            most_informative(of_images, (anchors + 1) // 2),
            images,
            captions,
        ),
        BreakdownDirection(
            "t2i",
            similarity.T,
            {reason: mask.T for reason, mask in false_negatives.items()},
            of_captions,
            most_informative(of_captions, anchors // 2),
            captions,
            images,
        ),
    ]


def _lead(directions: Sequence[BreakdownDirection]) -> str:
    return " ".join(
        _summary_sentence(each.summary(), kind) for each, kind in zip(directions, ("images", "captions"), strict=True)
    )


def _summary_sentence(summary: BreakdownSummary, kind: str) -> str:
    silent = "none is silent" if not summary.silent else f"{summary.silent:,} are silent"
    share = (
        ""
        if summary.silent == summary.anchors
        else f", and the hardest negative has {percent(summary.hardest_share_mean)} of the push on average"
    )
    return f"Of {summary.anchors:,} {kind} {silent}{share}."


def _batch_block(loaded: LoadedRun, batch: EvaluatedBatch, directions: Sequence[BreakdownDirection]) -> str:
    headings = (
        "direction",
        "anchors",
        "silent",
        "pushing negatives",
        "hardest's share",
        "false negatives",
        "their share",
    )
    rows = []
    for each in directions:
        summary = each.summary()
        cells = [
            f"{summary.anchors:,}",
            f"{summary.silent:,}",
            f"{summary.pushing_mean:.1f}",
            percent(summary.hardest_share_mean),
            f"{summary.known_false:,}",
            percent(summary.known_false_share),
        ]
        rows.append((DIRECTIONS[each.direction].lower(), [Cell(text) for text in cells]))
    title = (
        "Silent: anchors without a gradient. Means over anchors: number of negatives that push by more than 1 % of the "
        "strongest, and the share of the push on the hardest negative. False negatives: negatives known to match, and "
        "their share of all push."
    )
    images, captions = (f"{len(items):,}" for items in (batch.indices.images, batch.indices.captions))
    return (
        f'<p class="note">A training batch of {images} images and {captions} captions, with the selected weights of '
        f"{escape(loaded.name)} and without dropout. For each anchor below: what pulls it closer and what pushes it "
        "away, each with its share of all pull or push and its similarity. An image that is in the batch with several "
        f"captions is listed once per caption.</p>{scrollable(title, Table(title, headings, rows).html())}"
    )


def _direction_block(direction: BreakdownDirection, split: Split) -> str:
    return "".join(_anchor_block(direction, role, breakdown, split) for role, breakdown in direction.chosen)


def _anchor_block(direction: BreakdownDirection, role: str, breakdown: GradientBreakdown, split: Split) -> str:
    row = direction.anchors[breakdown.anchor]
    if direction.direction == "i2t":
        query = image_block(split, row) + caption_fallback(split, row)
    else:
        query = f"<q>{escape(split.texts[row])}</q> {image_block(split, int(split.owners[row]))}"
    share = (
        "" if breakdown.silent else f": {percent(breakdown.strength / direction.strength)} of the direction's gradient"
    )
    forces = _forces_block(direction, breakdown, "Pull", breakdown.pulls, split)
    forces += _forces_block(direction, breakdown, "Push", breakdown.pushes, split)
    css_class = "answers ranked texts" if direction.direction == "i2t" else "answers ranked"
    return (
        f'<div class="example"><h3>{role.capitalize()}{share}</h3><div class="query">{query}</div>'
        f'<p>{escape(breakdown.sentence())}</p><div class="{css_class}">{forces}</div></div>'
    )


def _forces_block(
    direction: BreakdownDirection, breakdown: GradientBreakdown, kind: str, forces: Sequence[Force], split: Split
) -> str:
    if not forces:
        return ""
    false_negatives = [
        force
        for force in forces[MAX_FORCES:]
        if direction.false_negative_reason(breakdown.anchor, force.candidate) is not None
    ]
    listed = [*forces[:MAX_FORCES], *false_negatives[:MAX_FALSE_NEGATIVES]]
    items = ""
    for force in listed:
        css_class = " class=own" if force.candidate in breakdown.positives else ""
        items += f"<li{css_class}>{_force_item(direction, breakdown, kind, force, split)}</li>"
    others = [force for force in forces if force not in listed]
    rest = f"; {len(others):,} more have {percent(sum(force.share for force in others))}" if others else ""
    return f"<div><h4>{kind}: {len(forces):,}{rest}</h4><ol>{items}</ol></div>"


def _force_item(
    direction: BreakdownDirection, breakdown: GradientBreakdown, kind: str, force: Force, split: Split
) -> str:
    row, similarity = direction.candidates[force.candidate], _similarity(direction, breakdown, force)
    values = f'<span class="rank">{percent(force.share)}</span> <span class="rank">at {similarity:.3f}</span>'
    bar = f'<span class="bar {kind.lower()}" style="width: {100 * force.share:.1f}%"></span>'
    marks = "".join(
        f'<span class="{css_class}">{escape(text)}</span>' for css_class, text in _marks(direction, breakdown, force)
    )
    if direction.direction == "i2t":
        return f"<q>{escape(split.texts[row])}</q> {values}{bar}{marks}"
    return f"{image_block(split, row)}{caption_fallback(split, row)}{values}{bar}{marks}"


def _similarity(direction: BreakdownDirection, breakdown: GradientBreakdown, force: Force) -> float:
    return float(direction.similarity[breakdown.anchor, force.candidate])


def _marks(direction: BreakdownDirection, breakdown: GradientBreakdown, force: Force) -> list[tuple[str, str]]:
    """CSS classes and texts."""
    marks = [("mark", "✓ own")] if force.candidate in breakdown.positives else []
    if force.candidate == breakdown.hardest:
        marks.append(("also", "hardest"))
    reason = direction.false_negative_reason(breakdown.anchor, force.candidate)
    return marks if reason is None else [*marks, ("also", f"≈ {reason}")]


def _anchor_document(
    direction: BreakdownDirection, role: str, breakdown: GradientBreakdown, split: Split
) -> dict[str, Any]:
    def item(row: int, *, is_image: bool) -> dict[str, Any]:
        image = row if is_image else int(split.owners[row])
        document: dict[str, Any] = {"image": image, "name": split.image_names[image]}
        return document if is_image else document | {"caption": row, "text": split.texts[row]}

    def force_document(force: Force) -> dict[str, Any]:
        return item(direction.candidates[force.candidate], is_image=direction.direction == "t2i") | {
            "gradient": force.gradient,
            "share": force.share,
            "similarity": _similarity(direction, breakdown, force),
            "positive": force.candidate in breakdown.positives,
            "hardest": force.candidate == breakdown.hardest,
            "known_false": direction.false_negative_reason(breakdown.anchor, force.candidate),
        }

    return {
        "direction": direction.direction,
        "role": role,
        "anchor": item(direction.anchors[breakdown.anchor], is_image=direction.direction == "i2t"),
        "sentence": breakdown.sentence(),
        "strength": breakdown.strength,
        "negatives": breakdown.negatives,
        "pushing": breakdown.pushing,
        "hardest_share": breakdown.hardest_share,
        "pulls": [force_document(force) for force in breakdown.pulls],
        "pushes": [force_document(force) for force in breakdown.pushes],
    }
