"""Compare: the same query under two or three models."""

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter

from tercet.search.server.asked import IndexNames, K, Words, check_k, check_words
from tercet.search.server.differences import Difference, columns_of, differences
from tercet.search.server.search_routes import Found, found_of
from tercet.search.server.served import Served


@dataclass(frozen=True)
class Columns:
    indexes: list[str]
    columns: list[list[Found]]


def compare_routes(served: Served) -> APIRouter:
    routes = APIRouter()
    known: dict[tuple[str, ...], asyncio.Task[list[Difference]]] = {}

    @routes.get("/api/compare")
    async def compare(q: Words, index: IndexNames, k: K = 10) -> Columns:
        """What each model finds; every result with its rank under all of them."""
        check_words(q)
        check_k(k)
        asked = served.several(index)
        columns = await served.work.run(columns_of, [shelf.searcher for shelf in asked], q, k)
        found = [[found_of(hit, ranks) for hit, ranks in column] for column in columns]
        return Columns([shelf.name for shelf in asked], found)

    @routes.get("/api/compare/differences")
    async def differ(index: IndexNames) -> list[Difference]:
        """Captions of the pictures as queries: those first whose picture moves most from model to model."""
        asked = served.several(index)
        names = tuple(shelf.name for shelf in asked)
        searchers = [shelf.searcher for shelf in asked]
        if names not in known or (known[names].done() and known[names].exception() is not None):
            known[names] = asyncio.create_task(served.slow.run(differences, searchers))  # one for all who ask
        return await asyncio.shield(known[names])

    return routes
