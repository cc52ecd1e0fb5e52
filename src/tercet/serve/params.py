"""Request parameters and their checks, the upload body, and the error response."""

import asyncio
from typing import Annotated

from fastapi import Query, Request
from starlette.requests import ClientDisconnect

from tercet.data.textio import caption_error
from tercet.search.searcher import MAX_QUERY_CHARS, MAX_RESULTS, check_query
from tercet.serve.limits import MAX_UPLOAD_BYTES, MAX_UPLOAD_READ_BYTES, UPLOAD_TIMEOUT_SECONDS

QueryText = Annotated[str, Query(description=f"Query text, at most {MAX_QUERY_CHARS:,} characters")]
IndexName = Annotated[str | None, Query(description="Index name; default: the first index")]
IndexNames = Annotated[list[str], Query(description="Names of two or three indexes")]
K = Annotated[int, Query(description=f"Number of results, at most {MAX_RESULTS:,}")]


class HTTPError(Exception):
    """HTTP status and a one-line message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def server_busy() -> HTTPError:
    return HTTPError(503, "too many requests; retry in a moment")


def check_query_text(text: str) -> None:
    check_query(text)
    error = caption_error(text)
    if error:
        raise HTTPError(422, error.replace("caption", "query"))


async def read_upload(request: Request) -> bytes:
    """Return the request body, within the limits of size and time.

    A body that is too large is read up to MAX_UPLOAD_READ_BYTES, so that its sender gets the 413 and not a broken
    connection.
    """
    too_large = HTTPError(413, f"image too large: at most {MAX_UPLOAD_BYTES >> 20} MB")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > MAX_UPLOAD_READ_BYTES:
        raise too_large
    try:
        content, length = await asyncio.wait_for(_read_body(request), UPLOAD_TIMEOUT_SECONDS)
    except asyncio.TimeoutError as error:
        raise HTTPError(408, f"the upload took longer than {UPLOAD_TIMEOUT_SECONDS} seconds") from error
    except ClientDisconnect as error:
        raise HTTPError(400, "the client disconnected") from error
    if length > MAX_UPLOAD_BYTES:
        raise too_large
    if not content:
        raise HTTPError(422, "no image in the request body: send the image file as the body")
    return content


async def _read_body(request: Request) -> tuple[bytes, int]:
    """Return the body up to MAX_UPLOAD_BYTES, and the bytes received."""
    content, length = bytearray(), 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= MAX_UPLOAD_BYTES:
            content += chunk
        elif length > MAX_UPLOAD_READ_BYTES:
            break
    return bytes(content), length
