"""State shared by the routes: the loaded indexes, thumbnails, the run listing and the worker pools."""

import io
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import anyio
from cachetools import LRUCache
from fastapi import HTTPException

from tercet.console import print_lines
from tercet.data.image_io import ImageBytes, open_image
from tercet.search.metadata import IndexedImages, Item, checksum_of
from tercet.search.searcher import Hit, Searcher
from tercet.search.two_stage import needs_rerank
from tercet.serve.batching import MicroBatcher, WorkerPool
from tercet.serve.limits import (
    MAX_COMPARED_INDEXES,
    MAX_CONCURRENT_UPLOAD_DECODINGS,
    MAX_CONCURRENT_UPLOADS,
    MAX_THUMBNAIL_CACHE_BYTES,
    MAX_UPLOADS_PER_NETWORK,
    MAX_WAITING_UPLOADS_PER_NETWORK,
    SHUTDOWN_TIMEOUT_SECONDS,
)
from tercet.serve.params import unavailable
from tercet.serve.run_listing import RunListing

ImageSize = Literal["small", "large"]
IMAGE_SIZES: dict[ImageSize, int] = {"small": 320, "large": 1280}  # pixels of the longer side

TextQuery = tuple[str, int]
"""Query text and k."""


class AppState:
    def __init__(self, indexes: list[Path], runs: Path | None) -> None:
        self._shared_images: dict[tuple[tuple[str, int], ...], int] = {}
        self.indexes, self.thumbnails = LoadedIndexes(indexes), Thumbnails()
        self.image_workers = WorkerPool(2, 256)
        self.workers = WorkerPool(2, 32)
        self.slow_workers = WorkerPool(1, 4)
        self.upload_workers = WorkerPool(MAX_CONCURRENT_UPLOAD_DECODINGS, MAX_CONCURRENT_UPLOADS)
        self.uploads = UploadLimit()
        self._runs = None if runs is None else RunListing(runs)

    @property
    def has_runs(self) -> bool:
        return self._runs is not None

    @property
    def runs(self) -> RunListing:
        if self._runs is None:
            raise HTTPException(404, "no runs folder is served: tercet serve --runs FOLDER")
        return self._runs

    def index_with_item(self, number: int, name: str | None) -> "LoadedIndex":
        """Return the index of this name, or the first one; 404 if it has no image of this number."""
        index = self.indexes.get(name)
        index.check_item(number)
        return index

    def indexes_to_compare(self, names: list[str]) -> list["LoadedIndex"]:
        indexes = [self.indexes.get(name) for name in dict.fromkeys(names)]
        if not 2 <= len(indexes) <= MAX_COMPARED_INDEXES:
            raise HTTPException(422, f"a comparison takes from 2 to {MAX_COMPARED_INDEXES} indexes, got {len(indexes)}")
        if not self.shared_images(indexes):
            listed = " and ".join(index.name for index in indexes)
            raise HTTPException(422, f"{listed} have no image in common: make both indexes of the same images")
        return indexes

    def shared_images(self, indexes: Sequence["LoadedIndex"]) -> int:
        """Number of images that are in all of these indexes."""
        numbers = [index.searcher.numbers for index in indexes]
        key = tuple((index.name, len(paths)) for index, paths in zip(indexes, numbers, strict=True))
        if key not in self._shared_images:
            self._shared_images[key] = len(set(numbers[0]).intersection(*numbers[1:]))
        return self._shared_images[key]


class UploadLimit:
    """Limits the uploads that are read or decoded at a time: of all clients, and of one network."""

    def __init__(self) -> None:
        self._all = anyio.CapacityLimiter(MAX_CONCURRENT_UPLOADS)
        self._by_network: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, network: str) -> AsyncIterator[None]:
        """Wait for a slot; 503 if too many of this network wait."""
        own = self._by_network.setdefault(network, anyio.CapacityLimiter(MAX_UPLOADS_PER_NETWORK))
        if own.statistics().tasks_waiting >= MAX_WAITING_UPLOADS_PER_NETWORK:
            raise unavailable("too many uploads")
        async with own, self._all:
            yield


class LoadedIndexes:
    """The served indexes by name, loaded one after the other in the background: the page does not wait for a model."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._indexes = {name: LoadedIndex(name, folder) for name, folder in _unique_names(folders).items()}
        self._loader = threading.Thread(target=self._open_all, name="index loader", daemon=True)
        self._closing = threading.Event()

    def open(self) -> None:
        self._loader.start()

    def _open_all(self) -> None:
        for index in self:
            if not self._closing.is_set():
                index.open()

    def get(self, name: str | None) -> "LoadedIndex":
        """Return the index of this name, or the first one."""
        if name is None:
            if not self._indexes:
                raise HTTPException(404, "no index is served: tercet serve INDEX")
            return next(iter(self))
        if name not in self._indexes:
            raise HTTPException(404, f"no index {name[:80]!r}; served: {', '.join(self._indexes)}")
        return self._indexes[name]

    def __iter__(self) -> Iterator["LoadedIndex"]:
        return iter(self._indexes.values())

    def close(self) -> None:
        """Wait for the index being opened: a thread inside torch or faiss aborts the process when Python exits."""
        self._closing.set()
        if self._loader.ident is not None:
            self._loader.join(SHUTDOWN_TIMEOUT_SECONDS)
        for index in self:
            index.close()


class LoadedIndex:
    """One index with its model, or the error that prevented loading it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._searcher: Searcher | None = None
        self._source: IndexedImages | None = None
        self._error: str | None = None
        self._queries: MicroBatcher[TextQuery, list[Hit]] = MicroBatcher(self._search_batch, f"queries of {name}")

    def open(self) -> None:
        try:
            searcher = Searcher.open(self.folder)
            searcher.search_texts(["a photo"], 1)  # warm up: the first query loads the encoders
            self._source = IndexedImages(searcher.index.manifest.get("source"))
            self._searcher = searcher
        except Exception as error:  # the other indexes are served all the same
            print_lines(f"{self.name}: {error or type(error).__name__}", to_stderr=True)
            # The error itself may contain paths of this machine.
            self._error = "could not be opened; the terminal of the server shows the error"

    @property
    def searcher(self) -> Searcher:
        if self._error is not None:
            raise HTTPException(500, f"{self.name}: {self._error}")
        if self._searcher is None:
            raise unavailable(f"the index {self.name} is loading")
        return self._searcher

    @property
    def source(self) -> IndexedImages:
        assert self._source is not None
        return self._source

    async def search(self, text: str, k: int) -> list[Hit]:
        """Search by text, in a batch with concurrent queries."""
        _ = self.searcher  # raises if the index is not loaded
        return await self._queries.submit((text, k))

    def info(self) -> dict[str, Any]:
        state = "failed" if self._error else "opening" if self._searcher is None else "ready"
        info: dict[str, Any] = {"name": self.name, "state": state, "error": self._error}
        if self._searcher is None:
            return info | {"items": 0, "system": None, "captions": False, "reranks": False, "images": "images"}
        index, retriever = self._searcher.index, self._searcher.retriever
        return info | {
            "items": len(index.items),
            "system": retriever.system,
            "captions": any(item.captions for item in index.items),
            "reranks": needs_rerank(retriever),
            "images": retriever.sides.images,
        }

    def check_item(self, number: int) -> None:
        count = len(self.searcher.index.items)
        if not 0 <= number < count:
            raise HTTPException(404, f"{self.name} has no image {number}: numbers are from 0 to {count - 1}")

    def close(self) -> None:
        self._queries.close()

    def _search_batch(self, queries: Sequence[TextQuery]) -> list[list[Hit]]:
        results = self.searcher.search_texts([text for text, _ in queries], max(k for _, k in queries))
        return [hits[:k] for hits, (_, k) in zip(results, queries, strict=True)]


class Thumbnails:
    """Images of an index as small JPEGs: re-encoded, never the file itself, and only the file that was indexed."""

    def __init__(self) -> None:
        self._cache: LRUCache[tuple[str, int], bytes] = LRUCache(MAX_THUMBNAIL_CACHE_BYTES, getsizeof=len)
        self._lock = threading.Lock()

    def get(self, item: Item, source: IndexedImages, size: int) -> bytes:
        """Return a JPEG whose longer side has at most `size` pixels."""
        key = item.checksum, size
        with self._lock:
            cached = self._cache.get(key)
        if cached is not None:
            return cached
        jpeg = _reencode(_read_image(item, source), size)
        with self._lock:
            self._cache[key] = jpeg
        return jpeg


def _read_image(item: Item, source: IndexedImages) -> bytes:
    """Read an indexed image. A file that was changed or replaced since, such as by a link, is not part of the index."""
    try:
        content = source.image_file(item).content()
    except ValueError as error:
        raise HTTPException(410, "the image can no longer be read; update the index with `tercet index`") from error
    if checksum_of(content) != item.checksum:
        raise HTTPException(410, "the image has changed since it was indexed; update the index with `tercet index`")
    return content


def _reencode(content: bytes, size: int) -> bytes:
    try:
        image = open_image(ImageBytes(content))
    except ValueError as error:
        raise HTTPException(410, "the image can no longer be decoded") from error
    image.thumbnail((size, size))
    encoded = io.BytesIO()
    image.save(encoded, format="JPEG", quality=85)
    return encoded.getvalue()


def _unique_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return folders by name, with a number appended to repeated names."""
    named: dict[str, Path] = {}
    for folder in folders:
        name, count = folder.resolve().name, 2
        while name in named:
            name, count = f"{folder.resolve().name} ({count})", count + 1
        named[name] = folder
    return named
