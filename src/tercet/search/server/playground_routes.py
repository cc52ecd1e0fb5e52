"""Playground: objectives with any settings, their diagrams and their gradient on one batch."""

from fastapi import APIRouter, Request

from tercet.search.server import playground
from tercet.search.server.asked import IndexName
from tercet.search.server.refused import Refused
from tercet.search.server.served import Served


def playground_routes(served: Served) -> APIRouter:
    routes = APIRouter()
    batches: dict[str, playground.Batch] = {}

    @routes.get("/api/objectives")
    async def objectives() -> playground.Catalogue:
        """The catalogue with its settings."""
        return playground.catalogue()

    @routes.get("/api/diagram")
    async def diagram(request: Request, objective: str) -> playground.Diagram:
        """Over the plane of triplets; settings of the objective as further parameters, by their names."""
        named, of_plane = _settings(request)
        return await served.work.run(lambda: playground.diagram(playground.made_of(objective, named), **of_plane))

    @routes.get("/api/gradient")
    async def gradient(request: Request, objective: str, index: IndexName = None) -> playground.BatchGradient:
        """On one batch of the index's own pictures and captions, always the same."""
        named, of_plane = _settings(request)
        shelf = served.shelves.get(index)
        searcher = shelf.searcher

        def compute() -> playground.BatchGradient:
            made = playground.made_of(objective, named)
            if shelf.name not in batches:
                batches[shelf.name] = playground.Batch(shelf.name, searcher)
            return batches[shelf.name].gradient(made, of_plane["mined"])

        return await served.work.run(compute)

    return routes


def _settings(request: Request) -> tuple[dict[str, str], dict[str, float]]:
    """Those of the objective, and those of the diagram."""
    given = {name: value for name, value in request.query_params.items() if name not in ("objective", "index", "token")}
    of_plane = {}
    for name, default in playground.OF_THE_DIAGRAM.items():
        try:
            of_plane[name] = float(given.pop(name, default))
        except ValueError as error:
            raise Refused(422, f"{name} must be a number") from error
        if not -10 <= of_plane[name] <= 10:
            raise Refused(422, f"{name} must be from -10 to 10")
    return given, of_plane
