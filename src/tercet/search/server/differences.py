"""The same queries under several models: what each finds, and where they differ most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tercet.search.query import Hit, Searcher
from tercet.search.server.refused import Refused

SAMPLE, SAMPLE_OF_TWICE = 300, 40  # captions that are tried; fewer where a second look makes each slow
SHOWN = 30


@dataclass(frozen=True)
class Difference:
    query: str
    number: int
    """Of the picture it was written for, in the first index."""
    ranks: list[int | None]
    """Of that picture, under each model; None: beyond what a second look saw."""


def columns_of(searchers: Sequence[Searcher], text: str, k: int) -> list[list[tuple[Hit, list[int | None]]]]:
    """What each finds; every hit with its rank under all of them."""
    found = [searcher.words_and_ranks(text, k) for searcher in searchers]
    places = list(dict.fromkeys(hit.item.path for hits, _ in found for hit in hits))
    ranks: dict[str, list[int | None]] = {place: [] for place in places}
    for searcher, (_, ranks_of) in zip(searchers, found, strict=True):
        there = [place for place in places if place in searcher.numbers]
        known = dict(zip(there, ranks_of([searcher.numbers[place] for place in there]), strict=True))
        for place in places:
            ranks[place].append(known.get(place))
    return [[(hit, ranks[hit.item.path]) for hit in hits] for hits, _ in found]


def differences(searchers: Sequence[Searcher]) -> list[Difference]:
    """Captions of the pictures themselves as queries, those first whose picture moves most, by the ratio of ranks."""
    first = searchers[0]
    shared = [
        (item.captions[number % len(item.captions)], item.path)
        for number, item in enumerate(first.index.items)
        if item.captions and all(item.path in each.numbers for each in searchers)
    ]
    if not shared:
        raise Refused(404, "these indexes share no picture with a caption, and captions are the queries that are tried")
    most = SAMPLE_OF_TWICE if any(each.index.parts is not None for each in searchers) else SAMPLE
    step = max(1, len(shared) // most)
    tried = shared[::step][:most]
    texts = [text for text, _ in tried]
    by_model = [each.own_ranks(texts, [each.numbers[place] for _, place in tried]) for each in searchers]
    found = [
        Difference(text, first.numbers[place], [ranks[n] for ranks in by_model])
        for n, (text, place) in enumerate(tried)
    ]
    return sorted((each for each in found if _moved(each) > 0), key=_moved, reverse=True)[:SHOWN]


def _moved(difference: Difference) -> float:
    known = [math.log(rank) if rank is not None else math.log(1000) for rank in difference.ranks]
    return max(known) - min(known)
