"""Qualitative examples: what runs retrieve for a query, side by side, and the queries they disagree on most."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tercet.comparison.report.embeddings import EmbeddedSplit
from tercet.data.dataset import Split
from tercet.evaluation import RankTable
from tercet.reporting.html import caption_fallback, image_block

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


def disagreements(
    embedded: Sequence[EmbeddedSplit], tables: Sequence[RankTable], direction: Direction
) -> list[Example]:
    """Queries with the largest ratio of worst to best rank between models; at most one per image."""
    ranks = np.stack([table.best(direction) for table in tables])
    order = np.argsort(-(np.log(ranks.max(axis=0)) - np.log(ranks.min(axis=0))), kind="stable")
    queries = one_per_image(order, embedded[0], direction, QUERIES)
    return [example(embedded, direction, query, TOP_K) for query in queries]


def one_per_image(order: Int[np.ndarray, " _"], embedded: EmbeddedSplit, direction: Direction, limit: int) -> list[int]:
    """The first `limit` queries of `order` that belong to different images."""
    chosen: dict[int, int] = {}
    for query in order.tolist():
        if len(chosen) == limit:
            break
        chosen.setdefault(int(embedded.owners[query]) if direction == "t2i" else query, query)
    return list(chosen.values())


def example(
    embedded: Sequence[EmbeddedSplit],
    direction: Direction,
    query: int,
    top_k: int,
    also_true: Bool[np.ndarray, " candidate"] | None = None,
) -> Example:
    """Results of each model for one query. `also_true`: candidates known to match besides the positives."""
    owners = embedded[0].owners.numpy()
    own = owners == query if direction == "i2t" else np.arange(len(embedded[0].images)) == owners[query]
    others = np.zeros_like(own) if also_true is None else also_true & ~own
    return Example(direction, query, [_answer(each, direction, query, top_k, own, others) for each in embedded])


def example_block(example: Example, split: Split, *, similarities: bool = False) -> str:
    """HTML of an example; `similarities` adds ranks and similarities of the items."""
    if example.direction == "t2i":
        query = f"<q>{escape(split.texts[example.query])}</q> {image_block(split, int(split.owners[example.query]))}"
    else:
        query = image_block(split, example.query) + (caption_fallback(split, example.query) if similarities else "")
    answers = "".join(_answer_block(example.direction, answer, split, similarities) for answer in example.answers)
    css = ("answers ranked" if similarities else "answers") + (" texts" if example.direction == "i2t" else "")
    return f'<div class="example"><div class="query">{query}</div><div class="{css}">{answers}</div></div>'


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


def _answer_block(direction: Direction, answer: RankedResults, split: Split, similarities: bool) -> str:
    heading, ranked = f"{escape(answer.name)}: rank {answer.rank:,}", list(enumerate(answer.top, 1))
    if similarities:
        heading += f", similarity {answer.nearest.similarity:.3f}"
        if direction == "i2t" and answer.rank > len(ranked):  # for t2i the query already shows its image
            ranked.append((answer.rank, answer.nearest))
    items = "".join(
        f"<li{' class=own' if item.own else ''}>"
        f"{_ranked_item(direction, item, split, rank) if similarities else _item(direction, item, split)}</li>"
        for rank, item in ranked
    )
    return f"<div><h4>{heading}</h4><ol>{items}</ol></div>"


def _item(direction: Direction, retrieved: RetrievedItem, split: Split) -> str:
    item = retrieved.item
    content = image_block(split, item) if direction == "t2i" else f"<q>{escape(split.texts[item])}</q>"
    return content + ("<span class=mark>✓ own</span>" if retrieved.own else "")


def _ranked_item(direction: Direction, retrieved: RetrievedItem, split: Split, rank: int) -> str:
    if direction == "t2i":
        content = image_block(split, retrieved.item) + caption_fallback(split, retrieved.item)
        return f'{content}<span class="rank">{rank:,} · {retrieved.similarity:.3f}</span>{_match_mark(retrieved)}'
    content = f'<span class="rank">{rank:,}</span> <q>{escape(split.texts[retrieved.item])}</q>'
    return f'{content} <span class="rank">{retrieved.similarity:.3f}</span>{_match_mark(retrieved)}'


def _match_mark(retrieved: RetrievedItem) -> str:
    if retrieved.own:
        return "<span class=mark>✓ own</span>"
    return "<span class=also>≈ also true</span>" if retrieved.also_true else ""
