"""What visitors may ask with, and how much of it."""

from typing import Annotated

from fastapi import Query, Request

from tercet.data.lines import no_caption
from tercet.search.query import LONGEST, MOST, check_query
from tercet.search.server.refused import Refused

LARGEST_UPLOAD = 20 << 20  # bytes
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
    """As much as is allowed. What is too large is read to its end, up to a bound, so that its sender hears why."""
    too_large = Refused(413, f"a picture may have at most {LARGEST_UPLOAD >> 20} MB")
    content, length = bytearray(), 0
    async for part in request.stream():
        length += len(part)
        if length <= LARGEST_UPLOAD:
            content += part
        elif length > 4 * LARGEST_UPLOAD:
            raise too_large
    if length > LARGEST_UPLOAD:
        raise too_large
    if not content:
        raise Refused(422, "there is no picture in the request: send the image file as its body")
    return bytes(content)
