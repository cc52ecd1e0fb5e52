"""Side by side: what runs find for a query, and which queries they disagree on most."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tercet.comparison.report.evidence import Embedded
from tercet.data.dataset import Split
from tercet.pages.pictures import picture_block, stand_in

SHOWN = 3  # items that each contestant finds
QUERIES = 5  # a direction

Side = Literal["t2i", "i2t"]


class Found(NamedTuple):
    """A candidate in answer to a query."""

    item: int
    similarity: float
    own: bool
    also_true: bool = False
    """Known to match, though it is not the query's own."""


@dataclass(frozen=True)
class Answer:
    """What one model finds: the items in front, and the nearest of the query's own with its rank."""

    name: str
    rank: int
    nearest: Found
    front: Sequence[Found]


@dataclass(frozen=True)
class Example:
    """A caption that looks for its image, or an image that looks for one of its captions."""

    side: Side
    query: int
    answers: Sequence[Answer]


def disagreements(embedded: Sequence[Embedded], side: Side) -> list[Example]:
    """Queries where the ratio of the worst to the best rank is largest; one an image."""
    ranks = np.stack([ranks_of(each, side) for each in embedded])
    order = np.argsort(-(np.log(ranks.max(axis=0)) - np.log(ranks.min(axis=0))), kind="stable")
    return [example(embedded, side, query, SHOWN) for query in one_an_image(order, embedded[0], side, QUERIES)]


def ranks_of(embedded: Embedded, side: Side) -> Int[np.ndarray, " query"]:
    """Of the nearest of each query's own; ties count against it."""
    return _ranks_of_captions(embedded) if side == "t2i" else _ranks_of_images(embedded)


def one_an_image(order: Int[np.ndarray, " _"], embedded: Embedded, side: Side, most: int) -> list[int]:
    """The first queries of an order, each of another image."""
    chosen: dict[int, int] = {}
    for query in order.tolist():
        if len(chosen) == most:
            break
        chosen.setdefault(int(embedded.owners[query]) if side == "t2i" else query, query)
    return list(chosen.values())


def example(
    embedded: Sequence[Embedded],
    side: Side,
    query: int,
    shown: int,
    also_true: Bool[np.ndarray, " candidate"] | None = None,
) -> Example:
    """What each of them finds for this query."""
    owners = embedded[0].owners.numpy()
    own = owners == query if side == "i2t" else np.arange(len(embedded[0].images)) == owners[query]
    others = np.zeros_like(own) if also_true is None else also_true & ~own
    return Example(side, query, [_answer(each, side, query, shown, own, others) for each in embedded])


def _answer(
    embedded: Embedded,
    side: Side,
    query: int,
    shown: int,
    own: Bool[np.ndarray, " candidate"],
    also_true: Bool[np.ndarray, " candidate"],
) -> Answer:
    """Items and rank from the same numbers, ties against the query's own in both."""
    S: Float[np.ndarray, " candidate"] = embedded.images_for(query) if side == "t2i" else embedded.captions_for(query)
    order = np.lexsort((own, -S))
    found = [Found(int(item), float(S[item]), bool(own[item]), bool(also_true[item])) for item in order[:shown]]
    first = int(np.argmax(own[order]))
    nearest = int(order[first])
    return Answer(embedded.name, first + 1, Found(nearest, float(S[nearest]), own=True), found)


def example_block(example: Example, split: Split, *, similarities: bool = False) -> str:
    """HTML; with places and similarities where they are wanted."""
    if example.side == "t2i":
        query = f"<q>{escape(split.texts[example.query])}</q> {picture_block(split, int(split.owners[example.query]))}"
    else:
        query = picture_block(split, example.query) + (stand_in(split, example.query) if similarities else "")
    answers = "".join(_answer_block(example.side, each, split, similarities) for each in example.answers)
    kind = ("answers placed" if similarities else "answers") + (" texts" if example.side == "i2t" else "")
    return f'<div class="example"><div class="query">{query}</div><div class="{kind}">{answers}</div></div>'


def _answer_block(side: Side, answer: Answer, split: Split, similarities: bool) -> str:
    heading, placed = f"{escape(answer.name)}: rank {answer.rank:,}", list(enumerate(answer.front, 1))
    if similarities:
        heading += f", similarity {answer.nearest.similarity:.3f}"
        if side == "i2t" and answer.rank > len(placed):  # an image is already shown beside its caption
            placed.append((answer.rank, answer.nearest))
    show = _placed_item if similarities else _item
    items = "".join(
        f"<li{' class=own' if found.own else ''}>{show(side, found, split, place)}</li>" for place, found in placed
    )
    return f"<div><h4>{heading}</h4><ol>{items}</ol></div>"


def _item(side: Side, found: Found, split: Split, place: int) -> str:
    content = picture_block(split, found.item) if side == "t2i" else f"<q>{escape(split.texts[found.item])}</q>"
    return content + ("<span class=mark>its own</span>" if found.own else "")


def _placed_item(side: Side, found: Found, split: Split, place: int) -> str:
    if side == "t2i":
        content = picture_block(split, found.item) + stand_in(split, found.item)
        return f'{content}<span class="place">{place:,} · {found.similarity:.3f}</span>{_mark(found)}'
    content = f'<span class="place">{place:,}</span> <q>{escape(split.texts[found.item])}</q>'
    return f'{content} <span class="place">{found.similarity:.3f}</span>{_mark(found)}'


def _mark(found: Found) -> str:
    if found.own:
        return "<span class=mark>✓ own</span>"
    return "<span class=also>≈ also true</span>" if found.also_true else ""


def _ranks_of_captions(embedded: Embedded) -> Int[np.ndarray, " caption"]:
    owners = embedded.owners.numpy()
    captions = np.arange(len(owners))
    own = np.empty(len(owners), dtype=np.float32)
    for block, S in embedded.blocks():
        inside = (owners >= block.start) & (owners < block.stop)
        own[inside] = S[owners[inside] - block.start, captions[inside]]
    return np.sum([(own <= S).sum(axis=0) for _, S in embedded.blocks()], axis=0)


def _ranks_of_images(embedded: Embedded) -> Int[np.ndarray, " image"]:
    owners = embedded.owners.numpy()
    found = []
    for block, S in embedded.blocks():
        images = np.arange(len(embedded.images))[block]
        mine = owners[None] == images[:, None]
        best = np.where(mine, S, -np.inf).max(axis=1, keepdims=True)
        found.append(1 + ((best <= S) & ~mine).sum(axis=1))
    return np.concatenate(found)
