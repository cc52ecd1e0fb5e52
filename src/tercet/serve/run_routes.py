"""Routes of the runs tab: runs, learning curves, comparisons and their reports."""

from fastapi import APIRouter, Response

from tercet.serve.run_listing import ComparisonInfo, Curves, RunInfo
from tercet.serve.state import AppState


def run_routes(state: AppState) -> APIRouter:
    routes = APIRouter()

    @routes.get("/api/runs")
    async def all_runs() -> list[RunInfo]:
        """Finished and unfinished runs, most recent first."""
        return await state.workers.run(state.runs.all)

    @routes.get("/api/runs/{name}")
    async def one_run(name: str) -> Curves:
        """Validation metrics per epoch and contributing samples per counted step."""
        return await state.workers.run(state.runs.curves, name)

    @routes.get("/api/comparisons")
    async def comparisons() -> list[ComparisonInfo]:
        """Results of `tercet compare`, most recent first."""
        return await state.workers.run(state.runs.comparisons)

    @routes.get("/comparisons/{name}/{path:path}", include_in_schema=False)
    async def report(name: str, path: str) -> Response:
        content, media_type = await state.workers.run(state.runs.report_file, name, path)
        return Response(content, media_type=media_type)

    return routes
