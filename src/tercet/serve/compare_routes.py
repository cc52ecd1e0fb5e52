"""Routes of the compare tab: one query under several models, and the captions whose image changes rank most."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, HTTPException

from tercet.search.searcher import Hit, Searcher, check_k
from tercet.serve.params import IndexNames, K, QueryText, check_query_text
from tercet.serve.search_routes import SearchHit, to_search_hit
from tercet.serve.state import AppState

SAMPLED_CAPTIONS, SAMPLED_CAPTIONS_RERANKED = 300, 40  # queries to try; fewer where re-ranking makes each slow
MAX_DIFFERENCES = 30
RANK_OUTSIDE_SHORTLIST = 1000  # assumed for sorting


@dataclass(frozen=True)
class ComparedResults:
    indexes: list[str]
    columns: list[list[SearchHit]]
    """One list of results per index."""
    images: list[int]
    """Number of images of every index."""
    shared_images: int
    """Number of images that are in all of them."""


@dataclass(frozen=True)
class Difference:
    query: str
    number: int
    """Image of the caption: its number in the first index."""
    ranks: list[int | None]
    """Rank of that image under every model; null if it was not re-ranked."""


def compare_routes(state: AppState) -> APIRouter:
    routes = APIRouter()
    tasks: dict[tuple[str, ...], asyncio.Task[list[Difference]]] = {}

    @routes.get("/api/compare")
    async def compare(q: QueryText, index: IndexNames, k: K = 10) -> ComparedResults:
        """Results of one query under every model, each with its rank under all of them."""
        check_query_text(q)
        check_k(k)
        indexes = state.indexes_to_compare(index)
        results = await state.workers.run(compare_results, [each.searcher for each in indexes], q, k)
        columns = [[to_search_hit(hit, ranks) for hit, ranks in column] for column in results]
        images = [len(each.searcher.numbers) for each in indexes]
        return ComparedResults([each.name for each in indexes], columns, images, state.shared_images(indexes))

    @routes.get("/api/compare/differences")
    async def differences(index: IndexNames) -> list[Difference]:
        """Captions as queries: those whose image changes rank most between the models, largest change first."""
        indexes = state.indexes_to_compare(index)
        names = tuple(each.name for each in indexes)
        searchers = [each.searcher for each in indexes]
        if names not in tasks or (tasks[names].done() and tasks[names].exception() is not None):
            # computed once, shared by all requests
            tasks[names] = asyncio.create_task(state.slow_workers.run(largest_differences, searchers))
        return await asyncio.shield(tasks[names])

    return routes


def compare_results(searchers: Sequence[Searcher], text: str, k: int) -> list[list[tuple[Hit, list[int | None]]]]:
    """Return the hits of every searcher, each hit with its rank under all of them."""
    results = [searcher.text_ranks(text, k) for searcher in searchers]
    paths = list(dict.fromkeys(hit.item.path for hits, _ in results for hit in hits))
    ranks: dict[str, list[int | None]] = {path: [] for path in paths}
    for searcher, (_, ranks_of) in zip(searchers, results, strict=True):
        indexed = [path for path in paths if path in searcher.numbers]
        rank_by_path = dict(zip(indexed, ranks_of([searcher.numbers[path] for path in indexed]), strict=True))
        for path in paths:
            ranks[path].append(rank_by_path.get(path))
    return [[(hit, ranks[hit.item.path]) for hit in hits] for hits, _ in results]


def largest_differences(searchers: Sequence[Searcher]) -> list[Difference]:
    """Try captions of the images as queries; return those whose image changes rank most, by the ratio of ranks."""
    first = searchers[0]
    shared = [
        (item.captions[number % len(item.captions)], item.path)
        for number, item in enumerate(first.index.items)
        if item.captions and all(item.path in searcher.numbers for searcher in searchers)
    ]
    if not shared:
        raise HTTPException(404, "these indexes share no image with a caption; captions are used as the queries")
    reranked = any(searcher.index.regions is not None for searcher in searchers)
    sample_size = SAMPLED_CAPTIONS_RERANKED if reranked else SAMPLED_CAPTIONS
    sample = shared[:: max(1, len(shared) // sample_size)][:sample_size]
    texts = [text for text, _ in sample]
    ranks_by_model = [
        searcher.own_ranks(texts, [searcher.numbers[path] for _, path in sample]) for searcher in searchers
    ]
    differences = [
        Difference(text, first.numbers[path], [ranks[n] for ranks in ranks_by_model])
        for n, (text, path) in enumerate(sample)
    ]
    changed = [difference for difference in differences if _log_rank_ratio(difference) > 0]
    return sorted(changed, key=_log_rank_ratio, reverse=True)[:MAX_DIFFERENCES]


def _log_rank_ratio(difference: Difference) -> float:
    logs = [math.log(RANK_OUTSIDE_SHORTLIST if rank is None else rank) for rank in difference.ranks]
    return max(logs) - min(logs)
