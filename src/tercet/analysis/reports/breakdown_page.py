"""Gradient breakdown of one training batch as a page: what pulls and pushes an image or a caption, with images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from tercet import runs
from tercet.analysis.gradient_breakdown import Force, GradientBreakdown, breakdown_of, most_informative, percent
from tercet.analysis.reports.loaded_run import EvaluatedBatch, LoadedRun
from tercet.data.dataset import PairedData, Split
from tercet.data.samplers import BatchIndices
from tercet.objectives import RowObjective
from tercet.reporting.output_formats import Cell, PageItem, Table, candidate_item, query_item, render_page
from tercet.storage import write_json
from tercet.types import PairMask, Sides, Similarity

Direction = Literal["i2t", "t2i"]
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


class PageForce(NamedTuple):
    """A candidate that pulls or pushes an anchor, as the page shows it."""

    item: PageItem
    share: float
    share_text: str
    similarity: float
    own: bool
    notes: Sequence[str]


class PageForces(NamedTuple):
    """What pulls or what pushes an anchor, as the page shows it."""

    kind: Literal["pull", "push"]
    heading: str
    listed: Sequence[PageForce]


class PageAnchor(NamedTuple):
    """An anchor, as the page shows it."""

    heading: str
    query: PageItem
    sentence: str
    forces: Sequence[PageForces]


def write_breakdown(
    loaded: LoadedRun, objective: RowObjective, out: Path, *, batch: int = 0, batch_size: int = 128, anchors: int = 6
) -> Path:
    """Write `breakdown.html` and `breakdown.json`; `anchors` is the number shown, half of them captions."""
    if anchors < 1:
        raise ValueError(f"anchors must be at least 1, got {anchors}")
    evaluated = _evaluated_batch(loaded, objective, batch, batch_size)
    split, sides = loaded.split(loaded.prepared.train), loaded.prepared.train.sides
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
    content = render_page(
        "breakdown.html",
        heading=heading,
        lead=_lead(directions, sides),
        sides=sides,
        run=loaded.name,
        images=len(evaluated.indices.images),
        captions=len(evaluated.indices.captions),
        summary_table=_summary_table(directions, sides),
        anchors={
            each.direction: [_page_anchor(each, role, breakdown, split) for role, breakdown in each.chosen]
            for each in directions
        },
    )
    runs.write_artifact(out, "breakdown.html", content)
    write_json(out / "breakdown.json", document)
    return out / "breakdown.html"


def known_false_negatives(data: PairedData, indices: BatchIndices, excluded: PairMask) -> dict[str, PairMask]:
    """Negatives that are known to match, by reason; `excluded` pairs are not negatives."""
    texts_of: dict[int, set[str]] = {image: set() for image in indices.images.tolist()}
    for image, caption in data.pairs[torch.isin(data.pairs[:, 0], indices.images)].tolist():
        texts_of[image].add(data.texts[caption])
    own_texts = [texts_of[image] for image in indices.images.tolist()]
    texts = [data.texts[caption] for caption in indices.captions.tolist()]
    masks = {
        "same image": data.positives(indices.images, indices.captions),
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


def _lead(directions: Sequence[BreakdownDirection], sides: Sides) -> str:
    kinds = (sides.images, sides.captions)
    return " ".join(_summary_sentence(each.summary(), kind) for each, kind in zip(directions, kinds, strict=True))


def _summary_sentence(summary: BreakdownSummary, kind: str) -> str:
    silent = "none is silent" if not summary.silent else f"{summary.silent:,} are silent"
    share = (
        ""
        if summary.silent == summary.anchors
        else f", and the hardest negative has {percent(summary.hardest_share_mean)} of the push on average"
    )
    return f"Of {summary.anchors:,} {kind} {silent}{share}."


def _summary_table(directions: Sequence[BreakdownDirection], sides: Sides) -> Table:
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
        rows.append((sides.long(each.direction), [Cell(text) for text in cells]))
    title = (
        "Silent: anchors without a gradient. Means over anchors: number of negatives that push by more than 1 % of the "
        "strongest, and the share of the push on the hardest negative. False negatives: negatives known to match, and "
        "their share of all push."
    )
    return Table(title, headings, rows)


def _page_anchor(direction: BreakdownDirection, role: str, breakdown: GradientBreakdown, split: Split) -> PageAnchor:
    share = (
        "" if breakdown.silent else f": {percent(breakdown.strength / direction.strength)} of the direction's gradient"
    )
    return PageAnchor(
        f"{role.capitalize()}{share}",
        query_item(split, direction.direction, direction.anchors[breakdown.anchor]),
        breakdown.sentence(),
        [
            *_page_forces(direction, breakdown, "pull", breakdown.pulls, split),
            *_page_forces(direction, breakdown, "push", breakdown.pushes, split),
        ],
    )


def _page_forces(
    direction: BreakdownDirection,
    breakdown: GradientBreakdown,
    kind: Literal["pull", "push"],
    forces: Sequence[Force],
    split: Split,
) -> list[PageForces]:
    """The strongest forces and some known false negatives; empty if there are no forces."""
    if not forces:
        return []
    false_negatives = [
        force
        for force in forces[MAX_FORCES:]
        if direction.false_negative_reason(breakdown.anchor, force.candidate) is not None
    ]
    listed = [*forces[:MAX_FORCES], *false_negatives[:MAX_FALSE_NEGATIVES]]
    others = [force for force in forces if force not in listed]
    rest = f"; {len(others):,} more have {percent(sum(force.share for force in others))}" if others else ""
    heading = f"{kind.capitalize()}: {len(forces):,}{rest}"
    return [PageForces(kind, heading, [_page_force(direction, breakdown, force, split) for force in listed])]


def _page_force(direction: BreakdownDirection, breakdown: GradientBreakdown, force: Force, split: Split) -> PageForce:
    notes = ["hardest"] if force.candidate == breakdown.hardest else []
    reason = direction.false_negative_reason(breakdown.anchor, force.candidate)
    return PageForce(
        candidate_item(split, direction.direction, direction.candidates[force.candidate]),
        force.share,
        percent(force.share),
        _similarity(direction, breakdown, force),
        force.candidate in breakdown.positives,
        notes if reason is None else [*notes, f"≈ {reason}"],
    )


def _similarity(direction: BreakdownDirection, breakdown: GradientBreakdown, force: Force) -> float:
    return float(direction.similarity[breakdown.anchor, force.candidate])


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
