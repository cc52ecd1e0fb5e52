"""Request parameters and their checks, and the upload body."""

from typing import Annotated

import anyio
from fastapi import HTTPException, Path, Query, Request
from starlette.requests import ClientDisconnect

from tercet.data.textio import caption_error
from tercet.search.searcher import MAX_QUERY_CHARS, MAX_RESULTS, check_query
from tercet.serve.limits import (
    MAX_COMPARED_INDEXES,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_READ_BYTES,
    MIN_UPLOAD_BYTES_PER_SECOND,
    UPLOAD_START_SECONDS,
    UPLOAD_TIMEOUT_SECONDS,
)

# Limits are in the API's description by json_schema_extra: the checks themselves have messages of their own.
QueryText = Annotated[
    str,
    Query(description="Query text", json_schema_extra={"minLength": 1, "maxLength": MAX_QUERY_CHARS}),
]
IndexName = Annotated[str | None, Query(description="Index name; default: the first index")]
IndexNames = Annotated[
    list[str],
    Query(
        description="Names of two or three indexes", json_schema_extra={"minItems": 2, "maxItems": MAX_COMPARED_INDEXES}
    ),
]
K = Annotated[int, Query(description="Number of results", json_schema_extra={"minimum": 1, "maximum": MAX_RESULTS})]
ItemNumber = Annotated[int, Path(description="Number of an image in the index", json_schema_extra={"minimum": 0})]


def unavailable(reason: str) -> HTTPException:
    return HTTPException(503, f"{reason}; retry in a moment", headers={"Retry-After": "1"})


def check_query_text(text: str) -> None:
    check_query(text)
    error = caption_error(text)
    if error:
        raise HTTPException(422, error.replace("caption", "query"))


async def read_upload(request: Request) -> bytes:
    """Return the request body, within the limits of size and time.

    A body that is too large is read up to MAX_UPLOAD_READ_BYTES, so that its sender gets the 413 and not a broken
    connection.
    """
    too_large = HTTPException(413, f"image too large: at most {MAX_UPLOAD_BYTES >> 20} MB")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > MAX_UPLOAD_READ_BYTES:
        raise too_large
    try:
        content, length = await _read_body(request)
    except ClientDisconnect as error:
        raise HTTPException(400, "the client disconnected") from error
    if length > MAX_UPLOAD_BYTES:
        raise too_large
    if not content:
        raise HTTPException(422, "no image in the request body: send the image file as the body")
    return content


async def _read_body(request: Request) -> tuple[bytes, int]:
    """Return the body up to MAX_UPLOAD_BYTES, and the bytes received. Slow clients are not waited for."""
    content, length, start = bytearray(), 0, anyio.current_time()
    with anyio.move_on_after(UPLOAD_START_SECONDS) as timeout:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= MAX_UPLOAD_BYTES:
                content += chunk
            elif length > MAX_UPLOAD_READ_BYTES:
                break
            earned = UPLOAD_START_SECONDS + length / MIN_UPLOAD_BYTES_PER_SECOND
            timeout.deadline = start + min(earned, UPLOAD_TIMEOUT_SECONDS)
        return bytes(content), length
    rate = f"{MIN_UPLOAD_BYTES_PER_SECOND >> 10} kB per second"
    raise HTTPException(408, f"the upload took longer than {UPLOAD_TIMEOUT_SECONDS} seconds, or was slower than {rate}")
