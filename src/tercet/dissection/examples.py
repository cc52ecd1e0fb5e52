"""Retrieval examples (AOQ's supplement, Figures 2 and 3): what one or two runs find for queries that tell most."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from tercet import runs
from tercet.comparison.report.evidence import Embedded
from tercet.comparison.report.examples import (
    Example,
    Found,
    Side,
    example,
    example_block,
    one_an_image,
    ranks_of,
)
from tercet.data.dataset import Split
from tercet.dissection.cross_ranks import CrossRanks, compare_cross_ranks, cross_ranks_block
from tercet.dissection.opened import Opened
from tercet.dissection.pair import labels, shared_held_out
from tercet.dissection.queries import matched
from tercet.pages.page import Section, page

EACH = 3  # queries of a kind and direction
DIRECTIONS: dict[Side, str] = {"t2i": "Text to image", "i2t": "Image to text"}


@dataclass(frozen=True)
class Group:
    """Queries that were chosen for the same reason."""

    side: Side
    why: str
    examples: Sequence[Example]


@dataclass(frozen=True)
class Shown:
    """Everything on the page."""

    runs: Sequence[Opened]
    names: Sequence[str]
    split: Split
    lead: str
    groups: Sequence[Group]
    crossed: CrossRanks | None

    def document(self) -> dict[str, Any]:
        """For programs."""
        found = [_example_document(each, group.why, self.split) for group in self.groups for each in group.examples]
        document = {
            "runs": [{"name": name, "folder": run.name} for name, run in zip(self.names, self.runs, strict=True)],
            "held_out": {"images": len(self.split.image_names), "captions": len(self.split.texts)},
            "summary": self.lead,
            "examples": found,
        }
        return document if self.crossed is None else document | {"cross_ranks": self.crossed.document()}


def write_examples(
    first: Opened, second: Opened | None, out: Path, *, queries: Sequence[str] = (), shown: int = 5
) -> Path:
    """`examples.html` and, for programs, `examples.json`: the given queries, or those that tell most."""
    if shown < 1:
        raise ValueError(f"expected to show at least 1 result of a query, got {shown}")
    opened = [first] if second is None else [first, second]
    split = shared_held_out(first, second)
    asked = [matched(query, split) for query in dict.fromkeys(queries)]
    names = labels(opened)
    embedded = [
        Embedded(name, run.model, *run.encoded_held_out, run.held_out.owners)
        for name, run in zip(names, opened, strict=True)
    ]
    ranks = {side: np.stack([ranks_of(each, side) for each in embedded]) for side in DIRECTIONS}
    chosen: list[tuple[Side, str, list[int]]] = [
        (each.side, f"“{each.said}”" + (f": {each.more:,} more captions hold it" if each.more else ""), each.queries)
        for each in asked
    ] or [
        (side, why, one_an_image(order, embedded[0], side, EACH))
        for side in DIRECTIONS
        for why, order in _telling(ranks[side], names, shown)
    ]
    groups = [
        Group(
            side, why, [example(embedded, side, query, shown, _also_true(side, query, first, split)) for query in found]
        )
        for side, why, found in chosen
        if found
    ]
    crossed = None if second is None else compare_cross_ranks(first, second)
    content = Shown(opened, names, split, _lead(ranks, names), groups, crossed)
    runs.write_beside_runs(out, "examples.html", _page(content, out))
    runs.write_json(out / "examples.json", content.document())
    return out / "examples.html"


def _telling(
    ranks: Int[np.ndarray, "run query"], names: Sequence[str], shown: int
) -> list[tuple[str, Int[np.ndarray, " _"]]]:
    """Kinds of queries, each with the most telling ones first."""
    if len(names) == 1:
        missed = f"Its own comes just after the {shown} results" if shown > 1 else "Its own comes second"
        return [
            ("Its own is far behind", _ordered(-ranks[0], ranks[0] > shown)),
            (missed, _ordered(ranks[0], ranks[0] > shown)),
            ("Its own comes first", _ordered(ranks[0], ranks[0] == 1)),
        ]
    ratio = np.log(ranks[1] / ranks[0])  # from 1 to 20 is as far as from 10 to 200
    return [
        (f"{names[0]} is ahead", _ordered(-ratio, ratio > 0)),
        (f"{names[1]} is ahead", _ordered(ratio, ratio < 0)),
        (f"Both fail: not among the first {shown}", _ordered(-ranks.min(axis=0), ranks.min(axis=0) > shown)),
    ]


def _ordered(key: np.ndarray, among: Bool[np.ndarray, " query"]) -> Int[np.ndarray, " _"]:
    """The queries among these, by ascending key."""
    order = np.argsort(key, kind="stable")
    return order[among[order]]


def _also_true(side: Side, query: int, run: Opened, split: Split) -> Bool[np.ndarray, " candidate"]:
    """Candidates known to match: by the data's own truth, or since the very words stand under the image."""
    texts = np.array(split.texts, dtype=object)
    if side == "t2i":
        equal = np.isin(np.arange(len(split.image_names)), split.owners[texts == split.texts[query]])
    else:
        own = set(texts[split.owners == query])
        equal = np.array([text in own for text in split.texts])
    truth = run.held_out.truth
    if truth is None:
        return equal
    images = torch.tensor([query]) if side == "i2t" else torch.arange(len(split.image_names))
    captions = torch.tensor([query]) if side == "t2i" else torch.arange(len(split.texts))
    return np.asarray(equal | truth(images, captions).flatten().numpy())


def _lead(ranks: dict[Side, np.ndarray], names: Sequence[str]) -> str:
    said = []
    for side, kind in (("t2i", "captions"), ("i2t", "images")):
        found: np.ndarray = ranks[side]  # type: ignore[index]
        if len(names) == 1:
            said.append(f"{names[0]} puts the truth first for {(found[0] == 1).sum():,} of {found.shape[1]:,} {kind}")
        else:
            ahead = ((found[0] < found[1]).sum(), (found[1] < found[0]).sum())
            said.append(
                f"of {found.shape[1]:,} {kind} {names[0]} ranks the truth better for {ahead[0]:,}, {names[1]} for "
                f"{ahead[1]:,}"
            )
    text = "; ".join(said) + "."
    return text if len(names) == 1 else text[0].upper() + text[1:]


def _page(content: Shown, out: Path) -> str:
    sections = []
    for side, heading in DIRECTIONS.items():
        groups = [group for group in content.groups if group.side == side]
        if groups:
            blocks = "".join(_group_block(group, content.split) for group in groups)
            sections.append(Section(side, heading, f'<p class="note">{NOTES[side]}</p>{blocks}'))
    if content.crossed is not None:
        sections.append(Section("cross", "Cross-retrieval ranks", cross_ranks_block(content.crossed, out)))
    title = " and ".join(content.names)
    return page(
        f"Tercet: examples of {title}",
        f"What {title} find" + ("s" if len(content.names) == 1 else ""),
        content.lead,
        sections,
    )


NOTES: dict[Side, str] = {
    "t2i": "A caption and its own image, then what is found, with place and similarity. “✓ own” marks the truth, "
    "“≈ also true” another image that the caption is known to be true of.",
    "i2t": "An image, then the captions that are found, with place and similarity. “✓ own” marks the truth, “≈ also "
    "true” another caption known to be true of it. Where none of its own is in front, the nearest of them comes last.",
}


def _group_block(group: Group, split: Split) -> str:
    blocks = "".join(example_block(each, split, similarities=True) for each in group.examples)
    return f"<h3>{escape(group.why)}</h3>{blocks}"


def _example_document(shown: Example, why: str, split: Split) -> dict[str, Any]:
    of_captions = shown.side == "t2i"
    return {
        "direction": shown.side,
        "why": why,
        "query": _caption(shown.query, split) if of_captions else _image(shown.query, split),
        "answers": [
            {
                "run": answer.name,
                "rank": answer.rank,
                "nearest_own": _found(answer.nearest, shown.side, split),
                "results": [_found(each, shown.side, split) for each in answer.front],
            }
            for answer in shown.answers
        ],
    }


def _found(found: Found, side: Side, split: Split) -> dict[str, Any]:
    item = _image(found.item, split) if side == "t2i" else _caption(found.item, split)
    return item | {"similarity": found.similarity, "own": found.own, "also_true": found.also_true}


def _image(image: int, split: Split) -> dict[str, Any]:
    return {"image": image, "name": split.image_names[image]}


def _caption(caption: int, split: Split) -> dict[str, Any]:
    return {"caption": caption, "text": split.texts[caption]} | _image(int(split.owners[caption]), split)
