"""The HTTP API and the page, as one application. /openapi.json describes it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException

import tercet
from tercet.search.query import LONGEST, MOST
from tercet.search.server.asked import LARGEST_UPLOAD
from tercet.search.server.compare_routes import compare_routes
from tercet.search.server.playground_routes import playground_routes
from tercet.search.server.refused import Refused
from tercet.search.server.runs_routes import runs_routes
from tercet.search.server.search_routes import search_routes
from tercet.search.server.served import Served

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE = (
    *("index.html", "app.css", "main.js", "ask.js", "draw.js", "results.js"),
    *("search.js", "compare.js", "runs.js", "playground.js"),
)


@dataclass(frozen=True)
class About:
    version: str
    indexes: list[dict[str, Any]]
    runs: bool
    longest_query: int
    most_results: int
    largest_upload: int


@dataclass(frozen=True)
class Told:
    """Instead of an answer."""

    error: str


def application(indexes: list[Path], runs: Path | None) -> FastAPI:
    served = Served(indexes, runs)

    @asynccontextmanager
    async def open_and_close(_: FastAPI) -> AsyncIterator[None]:
        served.shelves.open()
        yield
        served.close()

    # The usual pages of documentation load scripts from elsewhere; the description itself stays.
    app = FastAPI(
        title="Tercet",
        version=tercet.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=open_and_close,
        responses={status: {"model": Told} for status in (400, 401, 404, 408, 410, 413, 421, 422, 503)},
    )
    for handled, tell in MISTAKES.items():
        app.add_exception_handler(handled, tell)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def front() -> Response:
        return _file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        return _file(name)

    @app.get("/api/about")
    async def about() -> About:
        """What is served, and whether it is ready."""
        shown = [shelf.about() for shelf in served.shelves]
        return About(tercet.__version__, shown, served.has_runs, LONGEST, MOST, LARGEST_UPLOAD)

    for made in (search_routes, compare_routes, runs_routes, playground_routes):
        app.include_router(made(served))
    return app


def _file(name: str) -> Response:
    if name == "page.css":  # the style of reports, before the page's own
        file = files("tercet.pages") / name
    elif name in PAGE:
        file = files("tercet.search") / "page" / name
    else:
        raise Refused(404, "there is no such file of the page")
    kind = KINDS[Path(name).suffix]
    return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


def _told(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status, headers={"retry-after": "1"} if status == 503 else None)


async def _refused(_: Request, error: Any) -> JSONResponse:
    return _told(error.status, error.why)


async def _mistaken(_: Request, error: Any) -> JSONResponse:
    return _told(422, str(error))


async def _failed(_: Request, error: Any) -> JSONResponse:
    return _told(500, f"the server has a fault: {type(error).__name__}")


async def _invalid(_: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    return _told(422, f"{first['loc'][-1]}: {first['msg']}")


async def _of_http(_: Request, error: Any) -> JSONResponse:
    return _told(error.status_code, str(error.detail))


# Every kind of mistake gets one line.
MISTAKES: dict[Any, Any] = {
    Refused: _refused,
    ValueError: _mistaken,  # as everywhere: a caller's mistake, in one line
    UnicodeError: _failed,  # also called a ValueError, and no caller's
    PydanticSerializationError: _failed,
    RequestValidationError: _invalid,
    HTTPException: _of_http,
}
