"""What visitors may ask with, and how much of it."""

import asyncio
from typing import Annotated

from fastapi import Query, Request
from starlette.requests import ClientDisconnect

from tercet.data.lines import no_caption
from tercet.search.query import LONGEST, MOST, check_query
from tercet.search.server.refused import Refused

LARGEST_UPLOAD = 20 << 20  # bytes
READ_TO_ITS_END = 4 * LARGEST_UPLOAD
UPLOAD_SECONDS = 60
MOST_PIXELS = 50_000_000  # of a picture that is sent

Words = Annotated[str, Query(description=f"What to look for, at most {LONGEST:,} characters")]
IndexName = Annotated[str | None, Query(description="Which index; the first where none is named")]
IndexNames = Annotated[list[str], Query(description="Two or three indexes")]
K = Annotated[int, Query(description=f"How many results, at most {MOST:,}")]


def check_words(text: str) -> None:
    try:
        check_query(text)
    except ValueError as error:
        raise Refused(422, str(error)) from error
    why = no_caption(text)
    if why:
        raise Refused(422, why.replace("caption", "query"))


def check_k(k: int) -> None:
    if not 1 <= k <= MOST:
        raise Refused(422, f"from 1 to {MOST:,} results can be asked for, got {k}")


async def body_of(request: Request) -> bytes:
    """As much as is allowed, in a given time. What is somewhat too large is read to its end, so that its sender hears
    why and not that the line broke.
    """
    too_large = Refused(413, f"a picture may have at most {LARGEST_UPLOAD >> 20} MB")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > READ_TO_ITS_END:
        raise too_large
    try:
        content, length = await asyncio.wait_for(_received(request), UPLOAD_SECONDS)
    except asyncio.TimeoutError as error:
        raise Refused(408, f"the picture did not come within {UPLOAD_SECONDS} seconds") from error
    except ClientDisconnect as error:
        raise Refused(400, "the sender has gone") from error
    if length > LARGEST_UPLOAD:
        raise too_large
    if not content:
        raise Refused(422, "there is no picture in the request: send the image file as its body")
    return content


async def _received(request: Request) -> tuple[bytes, int]:
    """What may be kept, and how much there was."""
    content, length = bytearray(), 0
    async for part in request.stream():
        length += len(part)
        if length <= LARGEST_UPLOAD:
            content += part
        elif length > READ_TO_ITS_END:
            break
    return bytes(content), length
