"""The web application: the HTTP API, described at /openapi.json, and the page."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware

import tercet
from tercet.search.searcher import MAX_QUERY_CHARS, MAX_RESULTS
from tercet.serve.compare_routes import compare_routes
from tercet.serve.limits import MAX_UPLOAD_BYTES
from tercet.serve.middleware import AccessMiddleware, SecurityHeadersMiddleware
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


def application(
    indexes: list[Path], runs: Path | None, *, hosts: Collection[str] | None = None, token: str | None = None
) -> FastAPI:
    state = AppState(indexes, runs)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.indexes.open()
        yield
        state.indexes.close()

    # No /docs and /redoc: these pages load scripts from other sites.
    app = FastAPI(
        title="Tercet",
        version=tercet.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=[
            Middleware(SecurityHeadersMiddleware),
            Middleware(AccessMiddleware, hosts=hosts, token=token),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
        responses={status: {"model": ErrorBody} for status in (400, 401, 403, 404, 408, 410, 413, 421, 422, 429, 503)},
    )

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
        raise HTTPException(404, "no such file")
    media_type = MEDIA_TYPES[Path(name).suffix]
    return Response(file.read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})


async def _http_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)


async def _value_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 422)


async def _validation_error(_: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)


async def _internal_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": f"internal server error: {type(error).__name__}"}, 500)


EXCEPTION_HANDLERS: dict[Any, Any] = {
    StarletteHTTPException: _http_error,
    RequestValidationError: _validation_error,
    ValueError: _value_error,  # as everywhere in tercet: a mistake of the caller
    UnicodeError: _internal_error,  # a subclass of ValueError, but not a mistake of the caller
    PydanticSerializationError: _internal_error,
    Exception: _internal_error,
}
