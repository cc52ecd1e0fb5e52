"""Search: by words, by a picture, and what there is to see of a picture that was found."""

from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from tercet.data.pictures import PictureBytes, open_picture
from tercet.search.attention import WordsOverRegions, has_attention, words_over_regions
from tercet.search.items import Item, printable
from tercet.search.query import Hit
from tercet.search.server.asked import MOST_PIXELS, IndexName, K, Words, body_of, check_k, check_words
from tercet.search.server.refused import Refused
from tercet.search.server.served import Served
from tercet.search.server.thumbnails import SIDES

KEPT = "private, max-age=31536000, immutable"
BODY_IS_A_PICTURE = {
    "requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
}


@dataclass(frozen=True)
class Found:
    """A picture that was found."""

    number: int
    rank: int
    similarity: float
    name: str
    checksum: str
    """Of the picture; with it in the address, a browser may keep the picture for good."""
    captions: list[str]
    first_rank: int | None = None
    """By one vector a picture, where the model looked again at the first ones."""
    ranks: list[int | None] | None = None
    """Where models are compared: under each of them; None where it is not in that index or was not looked at."""


@dataclass(frozen=True)
class Answer:
    index: str
    results: list[Found]


@dataclass(frozen=True)
class ItemShown:
    number: int
    name: str
    captions: list[str]
    bytes: int
    checksum: str
    attention: bool
    """Whether its model can say which regions each word looks at."""
    neighbours: list[Found]


def found_of(hit: Hit, ranks: list[int | None] | None = None) -> Found:
    """File names only: where they lie on this machine is nobody's business."""
    item = hit.item
    about = (name_of(item), item.checksum, list(item.captions))
    return Found(hit.number, hit.rank, round(hit.similarity, 6), *about, hit.first_rank, ranks)


def name_of(item: Item) -> str:
    return printable(Path(item.path).name)


def search_routes(served: Served) -> APIRouter:
    routes = APIRouter()

    @routes.get("/api/search")
    async def search(q: Words, index: IndexName = None, k: K = 24) -> Answer:
        """Pictures by words, the most similar first."""
        check_words(q)
        check_k(k)
        shelf = served.shelves.get(index)
        return Answer(shelf.name, [found_of(hit) for hit in await shelf.ask(q, k)])

    @routes.post("/api/search/picture", openapi_extra=BODY_IS_A_PICTURE)
    async def search_by_picture(request: Request, index: IndexName = None, k: K = 24) -> Answer:
        """Pictures by a picture: the body is the image file itself."""
        check_k(k)
        shelf = served.shelves.get(index)
        searcher = shelf.searcher
        async with served.uploads:
            content = await body_of(request)
            hits = await served.work.run(lambda: searcher.picture(open_picture(PictureBytes(content), MOST_PIXELS), k))
        return Answer(shelf.name, [found_of(hit) for hit in hits])

    @routes.get("/api/items/{number}")
    async def item(number: int, index: IndexName = None, k: K = 12) -> ItemShown:
        """A picture of the index, and the pictures nearest to it."""
        check_k(k)
        shelf = served.shelf_with(number, index)
        it, near = shelf.searcher.index.items[number], await served.work.run(shelf.searcher.neighbours, number, k)
        about = (number, name_of(it), list(it.captions), it.size, it.checksum)
        return ItemShown(*about, has_attention(shelf.searcher), [found_of(hit) for hit in near])

    @routes.get("/api/items/{number}/picture", response_class=Response)
    async def picture(
        number: int, index: IndexName = None, size: str = "small", checksum: str | None = None
    ) -> Response:
        """A JPEG made of the picture, at most 320 (small) or 1280 (large) pixels on its longer side.

        With a `checksum`, only the picture that has it.
        """
        shelf = served.shelf_with(number, index)
        if size not in SIDES:
            raise Refused(422, f"size must be {' or '.join(SIDES)}")
        it = shelf.searcher.index.items[number]
        if checksum not in (None, it.checksum):
            raise Refused(404, f"picture {number} is another one now")
        content = await served.pictures.run(served.thumbnails.get, it, shelf.source, SIDES[size])
        return Response(content, media_type="image/jpeg", headers={"cache-control": KEPT if checksum else "no-cache"})

    @routes.get("/api/items/{number}/attention")
    async def attention(number: int, q: Words, index: IndexName = None) -> WordsOverRegions:
        """Which regions each word looks at, for models with cross attention."""
        check_words(q)
        shelf = served.shelf_with(number, index)
        return await served.work.run(words_over_regions, shelf.searcher, q, number)

    return routes
