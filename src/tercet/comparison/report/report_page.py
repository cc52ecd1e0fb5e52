"""The HTML report of a comparison: one file with tables, figures, and the queries on which variants disagree most."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tercet import runs
from tercet.comparison.compare import Comparison
from tercet.comparison.family import pairs_table
from tercet.comparison.report import figures
from tercet.comparison.results import cost_table, equal_budget_table
from tercet.comparison.tuning import tuning_table
from tercet.data.dataset import Split
from tercet.evaluation import RankTable
from tercet.reporting.output_formats import PageItem, Table, candidate_item, query_item, render_page
from tercet.reporting.svg_figure import Figure
from tercet.training.eval_loop import EmbeddedSplit

MAX_LINES = 8  # variants in line plots; more are hard to distinguish
EXAMPLE_COLUMNS = 3  # variants side by side in examples


def write_report(comparison: Comparison) -> Path:
    """Write report.html, and each figure as PNG and SVG; return the path of the page."""
    embedded = _embedded(comparison)
    drawn = _figures(comparison, embedded)
    for figure in drawn:
        runs.write_artifact(comparison.folder, f"figures/{figure.name}.png", figure.png)
        runs.write_artifact(comparison.folder, f"figures/{figure.name}.svg", figure.file_svg)
    machine, settings = _first_run(comparison)
    best_run, command = comparison.next_step()
    content = render_page(
        "report.html",
        comparison=comparison,
        sides=comparison.results.sides,
        pairs=_pairs(comparison),
        cost_tables=_cost_tables(comparison),
        figures=drawn,
        variants=len(comparison.significance.order),
        max_lines=MAX_LINES,
        examples=_examples(comparison, embedded),
        failures=comparison.results.failures,
        best_run=best_run,
        next_command=command,
        machine=machine,
        settings_json=json.dumps(settings, indent=2, sort_keys=True),
    )
    runs.write_artifact(comparison.folder, "report.html", content)
    return comparison.folder / "report.html"


def _embedded(comparison: Comparison) -> dict[str, EmbeddedSplit]:
    """The evaluated split, embedded once by each run that figures and examples show; by variant."""
    order, seed = list(comparison.significance.order), _shared_seed(comparison)
    if seed is None:
        return {}
    names = [
        name for name in dict.fromkeys([*order[:MAX_LINES], *_shown(order)]) if seed in comparison.results.runs[name]
    ]
    return {name: comparison.embedded.of(name, comparison.results.runs[name][seed]) for name in names}


def _shown(order: Sequence[str]) -> list[str]:
    """The best, the second and the last variant."""
    return list(dict.fromkeys([*order[: EXAMPLE_COLUMNS - 1], *order[-1:]]))


def _figures(comparison: Comparison, embedded: Mapping[str, EmbeddedSplit]) -> list[Figure]:
    results, order = comparison.results, list(comparison.significance.order)
    if not order:
        return []
    names, seed = order[:MAX_LINES], _shared_seed(comparison)
    histograms = {name: figures.similarities(embedded[name]) for name in names if name in embedded}
    drawn = [
        figures.recalls(results, order, comparison.settings.metric),
        figures.rank_changes(results, order[0], order[1], seed) if seed is not None and len(order) > 1 else None,
        figures.learning_curves(results, names),
        figures.contributing_negatives(results, names),
        figures.similarity_histograms(histograms, results.sides) if histograms else None,
        figures.cross_ranks(results, order),
        figures.costs(results, order),
    ]
    return [figure for figure in drawn if figure is not None]


def _shared_seed(comparison: Comparison) -> int | None:
    """The first seed that all variants in the figures have."""
    names = comparison.significance.order[:MAX_LINES]
    if not names:
        return None
    shared = set.intersection(*(set(comparison.results.runs[name]) for name in names))
    return min(shared, default=None)


def _examples(comparison: Comparison, embedded: Mapping[str, EmbeddedSplit]) -> dict[str, Any] | None:
    """The best, the second and the last variant side by side, per direction; None if they cannot be shown."""
    order = list(comparison.significance.order)
    seed = _shared_seed(comparison)
    if len(order) < 2 or seed is None:
        return None
    shown = [embedded[name] for name in _shown(order) if name in embedded]
    tables = [comparison.results.runs[each.name][seed].ranks for each in shown]
    prepared = next(iter(comparison.prepared_datasets.values()))
    split = prepared.held_out.split
    if split is None:
        return None
    split = replace(split, image_files=split.images())
    directions: tuple[Direction, ...] = ("t2i", "i2t")
    return {"seed": seed} | {
        direction: [page_example(each, split) for each in disagreements(shown, tables, direction)]
        for direction in directions
    }


def _pairs(comparison: Comparison) -> dict[str, Table] | None:
    """All pairs, and those with the best variant; None if there are no pairs."""
    if not comparison.significance.pairs:
        return None
    significance = comparison.significance
    every = pairs_table(significance, comparison.settings.metric)
    with_best = {
        f"{pair.first} - {pair.second}" for pair in significance.of(significance.baseline or significance.order[0])
    }
    return {"all": every, "with_best": replace(every, rows=[row for row in every.rows if row[0] in with_best])}


def _cost_tables(comparison: Comparison) -> list[Table]:
    order = list(comparison.significance.order)
    tables = [cost_table(comparison.results, order)] if order else []
    equal = equal_budget_table(comparison.results, order)
    tables += [] if equal is None else [equal]
    if order and comparison.tuned:
        tables.append(tuning_table(comparison.tuned))
    return tables


def _first_run(comparison: Comparison) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Machine and settings of the first run; None and no settings if every run failed."""
    names = comparison.results.names()
    if not names:
        return None, {}
    first = min(comparison.results.runs[names[0]].items())[1]  # not the first that finished, which differs
    return first.machine, runs.read_settings(first.folder)


TOP_K = 3  # retrieved items per variant
QUERIES = 5  # per direction

Direction = Literal["t2i", "i2t"]


class RetrievedItem(NamedTuple):
    """A candidate retrieved for a query."""

    item: int
    similarity: float
    own: bool
    also_true: bool = False
    """Known to match, but not a positive of the query."""


@dataclass(frozen=True)
class RankedResults:
    """Results of one model: the top items, and the query's most similar positive with its rank."""

    name: str
    rank: int
    nearest: RetrievedItem
    top: Sequence[RetrievedItem]


@dataclass(frozen=True)
class Example:
    """A caption query (t2i) or an image query (i2t) with the results of each model."""

    direction: Direction
    query: int
    answers: Sequence[RankedResults]


class PageResult(NamedTuple):
    """A retrieved item, as a page shows it."""

    item: PageItem
    rank: int
    similarity: float
    own: bool
    also_true: bool


class PageAnswer(NamedTuple):
    """The results of one model, as a page shows them."""

    heading: str
    results: Sequence[PageResult]


class PageExample(NamedTuple):
    """An example, as the macro `example` of the templates shows it."""

    direction: Direction
    query: PageItem
    answers: Sequence[PageAnswer]
    similarities: bool
    """Whether ranks and similarities of the items are shown."""


def disagreements(
    embedded: Sequence[EmbeddedSplit], tables: Sequence[RankTable], direction: Direction
) -> list[Example]:
    """Queries with the largest ratio of worst to best rank between models; at most one per image."""
    ranks = np.stack([table.best(direction) for table in tables])
    answered = np.flatnonzero(np.isfinite(ranks[0]))  # queries that have a positive
    ranks = ranks[:, answered]
    order = answered[np.argsort(-(np.log(ranks.max(axis=0)) - np.log(ranks.min(axis=0))), kind="stable")]
    queries = one_per_image(order, embedded[0], direction, QUERIES)
    return [example(embedded, direction, query, TOP_K) for query in queries]


def one_per_image(order: Int[np.ndarray, " _"], embedded: EmbeddedSplit, direction: Direction, limit: int) -> list[int]:
    """The first `limit` queries of `order` that belong to different images."""
    chosen: dict[int, int] = {}
    for query in order.tolist():
        if len(chosen) == limit:
            break
        chosen.setdefault(embedded.owner(query) if direction == "t2i" else query, query)
    return list(chosen.values())


def example(
    embedded: Sequence[EmbeddedSplit],
    direction: Direction,
    query: int,
    top_k: int,
    also_true: Bool[np.ndarray, " candidate"] | None = None,
) -> Example:
    """Results of each model for one query. `also_true`: candidates known to match besides the positives."""
    own = embedded[0].own(direction, query)
    others = np.zeros_like(own) if also_true is None else also_true & ~own
    return Example(direction, query, [_answer(each, direction, query, top_k, own, others) for each in embedded])


def page_example(example: Example, split: Split, *, similarities: bool = False) -> PageExample:
    """An example for a page; `similarities` adds ranks and similarities of the items, and captions if images lack."""
    query = query_item(split, example.direction, example.query, caption_fallback=similarities)
    answers = [_page_answer(example.direction, answer, split, similarities) for answer in example.answers]
    return PageExample(example.direction, query, answers, similarities)


def _answer(
    embedded: EmbeddedSplit,
    direction: Direction,
    query: int,
    top_k: int,
    own: Bool[np.ndarray, " candidate"],
    also_true: Bool[np.ndarray, " candidate"],
) -> RankedResults:
    """Items and rank from the same similarities; ties count against the positives in both."""
    S: Float[np.ndarray, " candidate"] = (
        embedded.images_for(query) if direction == "t2i" else embedded.captions_for(query)
    )
    order = np.lexsort((own, -S))
    top = [RetrievedItem(int(item), float(S[item]), bool(own[item]), bool(also_true[item])) for item in order[:top_k]]
    position = int(np.argmax(own[order]))
    nearest = int(order[position])
    return RankedResults(embedded.name, position + 1, RetrievedItem(nearest, float(S[nearest]), own=True), top)


def _page_answer(direction: Direction, answer: RankedResults, split: Split, similarities: bool) -> PageAnswer:
    heading, ranked = f"{answer.name}: rank {answer.rank:,}", list(enumerate(answer.top, 1))
    if similarities:
        heading += f", similarity {answer.nearest.similarity:.3f}"
        if direction == "i2t" and answer.rank > len(ranked):  # for t2i the query already shows its image
            ranked.append((answer.rank, answer.nearest))
    results = [
        PageResult(
            candidate_item(split, direction, each.item, caption_fallback=similarities),
            rank,
            each.similarity,
            each.own,
            each.also_true,
        )
        for rank, each in ranked
    ]
    return PageAnswer(heading, results)
