"""Retrieval examples of one or two runs (AOQ's supplement, Figures 2 and 3): given queries or the most informative.

A query is a caption or part of one, an image name, `caption:17` or `image:3`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int

from tercet import runs
from tercet.analysis.reports.cross_ranks import (
    CrossRanks,
    compare_cross_ranks,
    run_labels,
    shared_held_out,
)
from tercet.analysis.reports.loaded_run import LoadedRun
from tercet.comparison.report.report_page import (
    Direction,
    Example,
    RetrievedItem,
    example,
    one_per_image,
    page_example,
)
from tercet.data.dataset import Split
from tercet.reporting.output_formats import render_page
from tercet.storage import write_json
from tercet.training.eval_loop import EmbeddedSplit
from tercet.types import Sides

MAX_CAPTIONS = 5  # captions that match one query
MAX_SUGGESTIONS = 3
QUERIES_PER_GROUP = 3
DIRECTIONS: tuple[Direction, ...] = ("t2i", "i2t")


class ResolvedQuery(NamedTuple):
    """The rows that a user's query refers to."""

    text: str
    direction: Direction
    rows: list[int]
    more: int = 0
    """Number of further captions that contain the text."""


@dataclass(frozen=True)
class ExampleGroup:
    """Queries that were chosen for the same reason."""

    direction: Direction
    why: str
    examples: Sequence[Example]


@dataclass(frozen=True)
class ExamplesReport:
    """Content of the page and of the JSON file."""

    runs: Sequence[LoadedRun]
    names: Sequence[str]
    split: Split
    lead: str
    groups: Sequence[ExampleGroup]
    cross_ranks: CrossRanks | None

    def document(self) -> dict[str, Any]:
        """Content for JSON."""
        document = {
            "runs": [{"name": name, "folder": run.name} for name, run in zip(self.names, self.runs, strict=True)],
            "held_out": {"images": len(self.split.image_names), "captions": len(self.split.texts)},
            "summary": self.lead,
            "examples": [
                _example_document(each, group.why, self.split) for group in self.groups for each in group.examples
            ],
        }
        return document if self.cross_ranks is None else document | {"cross_ranks": self.cross_ranks.document()}


def _best_ranks(loaded: Sequence[LoadedRun], direction: str) -> Int[np.ndarray, "run query"]:
    """The rank of each query's best positive; 0 for a query without any."""
    best = np.stack([run.ranks.best(direction) for run in loaded])
    return np.where(np.isfinite(best), best, 0).astype(np.int64)


def write_examples(
    first: LoadedRun, second: LoadedRun | None, out: Path, *, queries: Sequence[str] = (), shown: int = 5
) -> Path:
    """Write `examples.html` and `examples.json`: the given or the most informative queries, with `shown` results."""
    if shown < 1:
        raise ValueError(f"shown must be at least 1, got {shown}")
    loaded = [first] if second is None else [first, second]
    split = shared_held_out(first, second)
    resolved = [resolve_query(query, split) for query in dict.fromkeys(queries)]
    names = run_labels(loaded)
    embedded = [
        EmbeddedSplit(name, run.model, *run.encoded_held_out, run.held_out.pairs)
        for name, run in zip(names, loaded, strict=True)
    ]
    ranks = {direction: _best_ranks(loaded, direction) for direction in DIRECTIONS}
    chosen: list[tuple[Direction, str, list[int]]] = [
        (
            query.direction,
            f"“{query.text}”" + (f": {query.more:,} more {split.sides.captions} contain it" if query.more else ""),
            query.rows,
        )
        for query in resolved
    ] or [
        (direction, why, one_per_image(order, embedded[0], direction, QUERIES_PER_GROUP))
        for direction in DIRECTIONS
        for why, order in _most_informative(ranks[direction], names, shown)
    ]
    groups = [
        ExampleGroup(
            direction,
            why,
            [example(embedded, direction, row, shown, _also_true(direction, row, first, split)) for row in rows],
        )
        for direction, why, rows in chosen
        if rows
    ]
    cross_ranks = None if second is None else compare_cross_ranks(first, second)
    report = ExamplesReport(loaded, names, split, _lead(ranks, names, split.sides), groups, cross_ranks)
    runs.write_artifact(out, "examples.html", _page(report, out))
    write_json(out / "examples.json", report.document())
    return out / "examples.html"


def resolve_query(text: str, split: Split) -> ResolvedQuery:
    """The rows that a query refers to. An image name takes precedence over a caption, a caption over part of one.

    The row in `caption:17` counts from 0, in the order of the data.
    """
    if row := re.fullmatch(r"(caption|image):(\d+)", text.strip()):
        return _resolve_row(text, row[1], int(row[2]), split)
    query = text.strip().casefold()
    if not query:
        raise ValueError("empty query: expected part of a caption, an image name, caption:17 or image:3")
    images = [image for image, name in enumerate(split.image_names) if query in _name_variants(name)]
    if images:
        return ResolvedQuery(text, "i2t", images)
    texts = [caption.casefold() for caption in split.texts]
    captions = [row for row, caption in enumerate(texts) if caption.strip() == query]
    captions = captions or [row for row, caption in enumerate(texts) if query in caption]
    if not captions:
        raise ValueError(_no_match(text, split))
    return ResolvedQuery(text, "t2i", captions[:MAX_CAPTIONS], max(0, len(captions) - MAX_CAPTIONS))


def _resolve_row(text: str, kind: str, row: int, split: Split) -> ResolvedQuery:
    count = len(split.texts) if kind == "caption" else len(split.image_names)
    if row >= count:
        raise ValueError(f"{text}: there are {count:,} {kind}s, {kind}:0 to {kind}:{count - 1}")
    return ResolvedQuery(text, "t2i" if kind == "caption" else "i2t", [row])


def _name_variants(name: str) -> set[str]:
    """With and without its folder and its extension."""
    path = PurePath(name)
    return {variant.casefold() for variant in (name, path.name, path.stem)}


def _no_match(text: str, split: Split) -> str:
    names = get_close_matches(text, split.image_names, n=MAX_SUGGESTIONS, cutoff=0.7)
    similar = [*names, *(repr(caption) for caption in _similar_captions(text, split.texts))][:MAX_SUGGESTIONS]
    hint = (
        f"; similar: {', '.join(similar)}"
        if similar
        else "; expected part of a caption, an image name, caption:17 or image:3"
    )
    return f"no held-out caption contains {text!r} and no held-out image has this name{hint}"


def _similar_captions(text: str, captions: Iterable[str]) -> list[str]:
    """Captions that share most words with the text, after its words were replaced by the closest known ones."""
    words = {caption: set(_words(caption)) for caption in captions}
    known = sorted(set().union(*words.values()))
    query = {near for word in _words(text) for near in get_close_matches(word, known, n=1, cutoff=0.6)}
    shared = {caption: len(query & caption_words) for caption, caption_words in words.items()}
    best = sorted(
        (caption for caption in shared if shared[caption]),
        key=lambda caption: (-shared[caption], len(words[caption])),
    )
    return best[:MAX_SUGGESTIONS]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _most_informative(
    ranks: Int[np.ndarray, "run query"], names: Sequence[str], shown: int
) -> list[tuple[str, Int[np.ndarray, " _"]]]:
    """Groups of queries, each with the most informative first."""
    if len(names) == 1:
        missed = f"Positive just below the top {shown}" if shown > 1 else "Positive ranked second"
        return [
            ("Positive far down the ranking", _ordered(-ranks[0], ranks[0] > shown)),
            (missed, _ordered(ranks[0], ranks[0] > shown)),
            ("Positive ranked first", _ordered(ranks[0], ranks[0] == 1)),
        ]
    ratio = np.log(
        np.maximum(ranks[1], 1) / np.maximum(ranks[0], 1)
    )  # a ratio: from 1 to 20 counts as much as from 10 to 200
    return [
        (f"{names[0]} is ahead", _ordered(-ratio, ratio > 0)),
        (f"{names[1]} is ahead", _ordered(ratio, ratio < 0)),
        (f"Both fail: not among the first {shown}", _ordered(-ranks.min(axis=0), ranks.min(axis=0) > shown)),
    ]


def _ordered(key: np.ndarray, mask: Bool[np.ndarray, " query"]) -> Int[np.ndarray, " _"]:
    """The queries in the mask, by ascending key."""
    order = np.argsort(key, kind="stable")
    return order[mask[order]]


def _also_true(direction: Direction, query: int, run: LoadedRun, split: Split) -> Bool[np.ndarray, " candidate"]:
    """Candidates known to match: by the dataset's ground truth, or because the image has a caption with equal text."""
    texts = np.array(split.texts, dtype=object)
    if direction == "t2i":
        pairs = split.pairs()
        equal = np.isin(np.arange(len(split.image_names)), pairs[texts[pairs[:, 1]] == split.texts[query], 0])
    else:
        own = set(texts[split.captions_of(query)])
        equal = np.array([text in own for text in split.texts])
    truth = run.held_out.truth
    if truth is None:
        return equal
    images = torch.tensor([query]) if direction == "i2t" else torch.arange(len(split.image_names))
    captions = torch.tensor([query]) if direction == "t2i" else torch.arange(len(split.texts))
    return np.asarray(equal | truth(images, captions).flatten().numpy())


def _lead(ranks: dict[Direction, np.ndarray], names: Sequence[str], sides: Sides) -> str:
    kinds: dict[Direction, str] = {"t2i": sides.captions, "i2t": sides.images}
    clauses = []
    for direction, kind in kinds.items():
        by_run = ranks[direction][:, ranks[direction][0] > 0]
        if len(names) == 1:
            first = (by_run[0] == 1).sum()
            clauses.append(f"{names[0]} ranks a positive first for {first:,} of {by_run.shape[1]:,} {kind}")
        else:
            better = ((by_run[0] < by_run[1]).sum(), (by_run[1] < by_run[0]).sum())
            clauses.append(
                f"of {by_run.shape[1]:,} {kind}, {names[0]} ranks the positive better for {better[0]:,}, {names[1]} "
                f"for {better[1]:,}"
            )
    text = "; ".join(clauses) + "."
    return text if len(names) == 1 else text[0].upper() + text[1:]


def _page(report: ExamplesReport, out: Path) -> str:
    """The HTML page; writes the files of its figure to `out`."""
    figure = None if report.cross_ranks is None else report.cross_ranks.figure()
    if figure is not None:
        runs.write_artifact(out, f"figures/{figure.name}.png", figure.png)
        runs.write_artifact(out, f"figures/{figure.name}.svg", figure.file_svg)
    groups = {
        direction: [
            {
                "why": group.why,
                "examples": [page_example(each, report.split, similarities=True) for each in group.examples],
            }
            for group in report.groups
            if group.direction == direction
        ]
        for direction in DIRECTIONS
    }
    return render_page(
        "examples.html", report=report, sides=report.split.sides, groups=groups, cross_ranks_figure=figure
    )


def _example_document(example: Example, why: str, split: Split) -> dict[str, Any]:
    is_caption = example.direction == "t2i"
    return {
        "direction": example.direction,
        "why": why,
        "query": _caption_document(example.query, split) if is_caption else _image_document(example.query, split),
        "answers": [
            {
                "run": answer.name,
                "rank": answer.rank,
                "nearest_own": _result_document(answer.nearest, example.direction, split),
                "results": [_result_document(result, example.direction, split) for result in answer.top],
            }
            for answer in example.answers
        ],
    }


def _result_document(result: RetrievedItem, direction: Direction, split: Split) -> dict[str, Any]:
    item = _image_document(result.item, split) if direction == "t2i" else _caption_document(result.item, split)
    return item | {"similarity": result.similarity, "own": result.own, "also_true": result.also_true}


def _image_document(image: int, split: Split) -> dict[str, Any]:
    return {"image": image, "name": split.image_names[image]}


def _caption_document(caption: int, split: Split) -> dict[str, Any]:
    return {"caption": caption, "text": split.texts[caption]} | _image_document(int(split.owners[caption]), split)
