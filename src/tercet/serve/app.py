"""The web application: the HTTP API, described at /openapi.json, and the page."""

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
from tercet.search.searcher import MAX_QUERY_CHARS, MAX_RESULTS
from tercet.serve.compare_routes import compare_routes
from tercet.serve.limits import MAX_UPLOAD_BYTES
from tercet.serve.params import HTTPError
from tercet.serve.playground_routes import playground_routes
from tercet.serve.run_routes import run_routes
from tercet.serve.search_routes import search_routes
from tercet.serve.state import AppState

MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE_FILES = (
    *("index.html", "app.css", "main.js", "api.js", "charts.js", "results.js"),
    *("search.js", "compare.js", "runs.js", "playground.js"),
)


@dataclass(frozen=True)
class ServerInfo:
    version: str
    indexes: list[dict[str, Any]]
    runs: bool
    max_query_chars: int
    max_results: int
    max_upload_bytes: int


@dataclass(frozen=True)
class ErrorBody:
    """Body of every error response: one line."""

    error: str


def application(indexes: list[Path], runs: Path | None) -> FastAPI:
    state = AppState(indexes, runs)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.indexes.open()
        yield
        state.close()

    # No /docs and /redoc: these pages load scripts from other sites.
    app = FastAPI(
        title="Tercet",
        version=tercet.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={status: {"model": ErrorBody} for status in (400, 401, 404, 408, 410, 413, 421, 422, 503)},
    )
    for error_type, handler in EXCEPTION_HANDLERS.items():
        app.add_exception_handler(error_type, handler)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def front() -> Response:
        return _page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        return _page_file(name)

    @app.get("/api/about")
    async def about() -> ServerInfo:
        """Version, served indexes and their state (opening, ready or failed), and request limits."""
        indexes = [index.info() for index in state.indexes]
        return ServerInfo(tercet.__version__, indexes, state.has_runs, MAX_QUERY_CHARS, MAX_RESULTS, MAX_UPLOAD_BYTES)

    for routes in (search_routes, compare_routes, run_routes, playground_routes):
        app.include_router(routes(state))
    return app


def _page_file(name: str) -> Response:
    if name == "page.css":  # base style, shared with the reports
        file = files("tercet.reporting") / name
    elif name in PAGE_FILES:
        file = files("tercet.serve") / "page" / name
    else:
        raise HTTPError(404, "no such file")
    media_type = MEDIA_TYPES[Path(name).suffix]
    return Response(file.read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})


def _error_response(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers={"retry-after": "1"} if status == 503 else None)


async def _http_error(_: Request, error: Any) -> JSONResponse:
    return _error_response(error.status, error.message)


async def _value_error(_: Request, error: Any) -> JSONResponse:
    return _error_response(422, str(error))


async def _internal_error(_: Request, error: Any) -> JSONResponse:
    return _error_response(500, f"internal server error: {type(error).__name__}")


async def _validation_error(_: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    return _error_response(422, f"{first['loc'][-1]}: {first['msg']}")


async def _framework_error(_: Request, error: Any) -> JSONResponse:
    return _error_response(error.status_code, str(error.detail))


EXCEPTION_HANDLERS: dict[Any, Any] = {
    HTTPError: _http_error,
    ValueError: _value_error,  # as everywhere in tercet: a mistake of the caller
    UnicodeError: _internal_error,  # a subclass of ValueError, but not a mistake of the caller
    PydanticSerializationError: _internal_error,
    RequestValidationError: _validation_error,
    HTTPException: _framework_error,
}
