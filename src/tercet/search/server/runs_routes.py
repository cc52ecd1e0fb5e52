"""Runs: what was trained, what is being trained, and how it compares."""

from fastapi import APIRouter, Response

from tercet.search.server.runs_shown import ComparisonShown, Curves, RunShown
from tercet.search.server.served import Served


def runs_routes(served: Served) -> APIRouter:
    routes = APIRouter()

    @routes.get("/api/runs")
    async def all_runs() -> list[RunShown]:
        """Trained and in training, the latest first."""
        return await served.work.run(served.runs.all)

    @routes.get("/api/runs/{name}")
    async def one_run(name: str) -> Curves:
        """Validation of every epoch, and contributing samples while it trained."""
        return await served.work.run(served.runs.curves, name)

    @routes.get("/api/comparisons")
    async def comparisons() -> list[ComparisonShown]:
        """What `tercet compare` answered, the latest first."""
        return await served.work.run(served.runs.comparisons)

    @routes.get("/comparisons/{name}/{place:path}", include_in_schema=False)
    async def report(name: str, place: str) -> Response:
        content, kind = await served.work.run(served.runs.report_file, name, place)
        return Response(content, media_type=kind)

    return routes
