"""Routes of the search tab: search by text or image, image details, thumbnails, attention."""

from dataclasses import dataclass

from fastapi import APIRouter, HTTPException, Request, Response

from tercet.console import printable
from tercet.data.image_io import ImageBytes, open_image
from tercet.search.metadata import Item
from tercet.search.searcher import Hit, WordsOverRegions, check_k, has_attention, words_over_regions
from tercet.serve.limits import MAX_UPLOAD_PIXELS
from tercet.serve.middleware import network_of_client
from tercet.serve.params import IndexName, ItemNumber, K, QueryText, check_query_text, read_upload
from tercet.serve.state import IMAGE_SIZES, AppState, ImageSize

CACHE_FOREVER = "private, max-age=31536000, immutable"
IMAGE_BODY = {
    "requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
}


@dataclass(frozen=True)
class SearchHit:
    """A search result."""

    number: int
    rank: int
    similarity: float
    name: str
    checksum: str
    """Checksum of the image; browsers may cache an image URL that contains it for good."""
    captions: list[str]
    first_rank: int | None = None
    """Rank by the one-vector similarity of stage 1, if the results were re-ranked."""
    ranks: list[int | None] | None = None
    """Comparisons: rank under every model; null if the image is not in that index or was not re-ranked."""
    text: str | None = None
    """Of a passage, which has no image."""


@dataclass(frozen=True)
class SearchResponse:
    index: str
    results: list[SearchHit]
    images: str = "images"
    """What the results are called: images, or passages."""


@dataclass(frozen=True)
class ItemDetails:
    number: int
    name: str
    captions: list[str]
    bytes: int
    checksum: str
    attention: bool
    """Whether the model has attention of words over regions."""
    neighbours: list[SearchHit]
    sides: dict[str, str]
    """What the index and its queries hold: image, images, caption; or passage, passages, query."""


def to_search_hit(hit: Hit, ranks: list[int | None] | None = None) -> SearchHit:
    """Convert a hit for the API: file names only, paths of this machine are not sent."""
    item = hit.item
    image = (file_name(item), item.checksum, list(map(printable, item.captions)))
    text = None if item.text is None else printable(item.text)
    return SearchHit(hit.number, hit.rank, round(hit.similarity, 6), *image, hit.first_rank, ranks, text)


def file_name(item: Item) -> str:
    return printable(item.name)


def search_routes(state: AppState) -> APIRouter:
    routes = APIRouter()

    @routes.get("/api/search")
    async def search(q: QueryText, index: IndexName = None, k: K = 24) -> SearchResponse:
        """Search images by text, most similar first."""
        check_query_text(q)
        check_k(k)
        loaded_index = state.indexes.get(index)
        hits = await loaded_index.search(q, k)
        images = loaded_index.searcher.sides.images
        return SearchResponse(loaded_index.name, [to_search_hit(hit) for hit in hits], images)

    @routes.post("/api/search/image", openapi_extra=IMAGE_BODY)
    async def search_by_image(request: Request, index: IndexName = None, k: K = 24) -> SearchResponse:
        """Search images by an image: the request body is the image file, at most 20 MB and 50 million pixels."""
        check_k(k)
        loaded_index = state.indexes.get(index)
        searcher = loaded_index.searcher
        async with state.uploads.slot(network_of_client(request)):
            content = await read_upload(request)
            hits = await state.upload_workers.run(
                lambda: searcher.search_image(open_image(ImageBytes(content), MAX_UPLOAD_PIXELS), k)
            )
        return SearchResponse(loaded_index.name, [to_search_hit(hit) for hit in hits])

    @routes.get("/api/items/{number}")
    async def item_details(number: ItemNumber, index: IndexName = None, k: K = 12) -> ItemDetails:
        """An image of the index and its k nearest images."""
        check_k(k)
        searcher = state.index_with_item(number, index).searcher
        item, neighbours = searcher.index.items[number], await state.workers.run(searcher.neighbours, number, k)
        about = (number, file_name(item), list(item.captions), item.size, item.checksum)
        sides = {side: getattr(searcher.sides, side) for side in ("image", "images", "caption", "captions")}
        return ItemDetails(*about, has_attention(searcher), [to_search_hit(hit) for hit in neighbours], sides)

    @routes.get("/api/items/{number}/image", response_class=Response)
    async def image(
        number: ItemNumber,
        index: IndexName = None,
        size: ImageSize = "small",
        checksum: str | None = None,
    ) -> Response:
        """The image as JPEG, at most 320 (small) or 1280 (large) pixels on its longer side.

        With `checksum`, 404 unless the image has this checksum.
        """
        loaded_index = state.index_with_item(number, index)
        item = loaded_index.searcher.index.items[number]
        if checksum not in (None, item.checksum):
            raise HTTPException(404, f"image {number} has another checksum: the index has changed")
        if item.text is not None:
            raise HTTPException(404, f"item {number} is a text and has no image")
        jpeg = await state.image_workers.run(state.thumbnails.get, item, loaded_index.source, IMAGE_SIZES[size])
        cache_control = CACHE_FOREVER if checksum else "no-cache"
        return Response(jpeg, media_type="image/jpeg", headers={"cache-control": cache_control})

    @routes.get("/api/items/{number}/attention")
    async def attention(number: ItemNumber, q: QueryText, index: IndexName = None) -> WordsOverRegions:
        """Attention of every query word over the image's regions, for models with cross attention."""
        check_query_text(q)
        searcher = state.index_with_item(number, index).searcher
        return await state.workers.run(words_over_regions, searcher, q, number)

    return routes
