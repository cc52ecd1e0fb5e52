"""Search an index by text or by image; attention of query words over image regions, for models that have it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image

from tercet.inference import Retriever, checksum_of_model, load
from tercet.interfaces import AttentionMap
from tercet.search.index import Index, open_index
from tercet.search.metadata import Item
from tercet.search.two_stage import EncodedQuery, encode_for_index, encode_queries, needs_rerank, rerank_similarity
from tercet.types import Sides

MAX_QUERY_CHARS = 1000
MAX_RESULTS = 1000
MIN_SHORTLIST = 200  # images that are re-ranked, at least


@dataclass(frozen=True)
class Hit:
    """A search result."""

    rank: int
    """1-based."""
    similarity: float
    item: Item
    number: int
    """Row of the item in the index."""
    first_rank: int | None = None
    """Rank in stage 1, if the results were re-ranked."""

    def content(self) -> dict[str, Any]:
        """Return the hit as JSON-serializable values."""
        return {
            "rank": self.rank,
            "similarity": round(self.similarity, 6),
            "path": self.item.path,
            "captions": list(self.item.captions),
        } | ({} if self.item.text is None else {"text": self.item.text})


class Searcher:
    """An index with its model.

    >>> Searcher.open("photos_index").search_text("two dogs in snow")  # doctest: +SKIP
    """

    def __init__(self, index: Index, retriever: Retriever) -> None:
        if needs_rerank(retriever) and index.regions is None:
            raise ValueError(f"{index.folder} has no regions, which {retriever.system} needs to re-rank: rebuild it")
        self.index, self.retriever = index, retriever

    @classmethod
    def open(cls, folder: str | Path, model: str | Path | None = None) -> "Searcher":
        """Open an index and load its model. `model` is its path if it was moved; any other model is rejected."""
        index = open_index(folder)
        path = Path(model or index.manifest["model"]["path"])
        retriever = load(path)
        if checksum_of_model(path, retriever) != index.manifest["model"]["weights"]:
            raise ValueError(f"{path} is not the model that {folder} was built with; give that model with --model")
        return cls(index, retriever)

    @property
    def sides(self) -> Sides:
        """What is searched, and what it is searched with."""
        return self.retriever.sides

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Image path -> row in the index."""
        return {item.path: number for number, item in enumerate(self.index.items)}

    def search_text(self, text: str, k: int = 10) -> list[Hit]:
        return self.search_texts([text], k)[0]

    def search_texts(self, texts: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """Search by several texts, encoded in one batch; one list of hits per text."""
        for text in texts:
            check_query(text)
        check_k(k)
        queries = encode_queries(self.retriever, texts)
        if self.index.regions is None:
            return self.nearest(np.stack([_vector(query) for query in queries]), k)
        return [self._search_and_rerank(query, k) for query in queries]

    def search_image(self, image: str | Path | Image.Image, k: int = 10) -> list[Hit]:
        """Search by stage 1 only: re-ranking compares texts with images."""
        if self.sides.image_is_text:
            raise ValueError(f"{self.index.folder} holds {self.sides.images}: search it with a text, not an image")
        return self.nearest(encode_for_index(self.retriever, [image]).vectors, k)[0]

    def neighbours(self, number: int, k: int = 10) -> list[Hit]:
        """Return the images nearest to an image of the index, without itself."""
        hits = self.nearest(np.asarray(self.index.vectors[number : number + 1]), min(k + 1, MAX_RESULTS))[0]
        others = [hit for hit in hits if hit.number != number][:k]
        return [Hit(rank, hit.similarity, hit.item, hit.number) for rank, hit in enumerate(others, start=1)]

    def nearest(self, vectors: Float[np.ndarray, "query dim"], k: int) -> list[list[Hit]]:
        check_k(k)
        similarity, rows = self.index.store.search(vectors, k)
        return [self._hits(*result) for result in zip(similarity, rows, strict=True)]

    def text_ranks(self, text: str, k: int) -> tuple[list[Hit], Callable[[Sequence[int]], list[int | None]]]:
        """Return the hits, and a function that returns the rank of any images for this text, which is encoded once.

        With re-ranking, the rank of an image outside the shortlist is None.
        """
        check_query(text)
        check_k(k)
        query = encode_queries(self.retriever, [text])[0]
        if self.index.regions is not None:
            shortlist = self._search_and_rerank(query, max(k, MIN_SHORTLIST))
            reranked = {hit.number: hit.rank for hit in shortlist}
            return shortlist[:k], lambda numbers: [reranked.get(number) for number in numbers]
        hits = self.nearest(_vector(query)[None], k)[0]
        hit_ranks = {hit.number: hit.rank for hit in hits}  # ties keep the order of the hits

        def ranks(numbers: Sequence[int]) -> list[int | None]:
            similarity = np.asarray(self.index.vectors) @ _vector(query)
            return [hit_ranks.get(n, int((similarity > similarity[n]).sum()) + 1) for n in numbers]

        return hits, ranks

    def own_ranks(self, texts: Sequence[str], numbers: Sequence[int]) -> list[int | None]:
        """Return the rank of image `numbers[i]` for `texts[i]`; with re-ranking, None outside the shortlist."""
        queries = encode_queries(self.retriever, texts)
        if self.index.regions is not None:
            hits = [self._search_and_rerank(query, MIN_SHORTLIST) for query in queries]
            return [
                next((hit.rank for hit in shortlist if hit.number == number), None)
                for shortlist, number in zip(hits, numbers, strict=True)
            ]
        similarity = np.stack([_vector(query) for query in queries]) @ np.asarray(self.index.vectors).T
        own = similarity[np.arange(len(numbers)), list(numbers)]
        return [int(rank) for rank in (similarity > own[:, None]).sum(axis=1) + 1]

    def _search_and_rerank(self, query: EncodedQuery, k: int) -> list[Hit]:
        assert self.index.regions is not None
        shortlist = self.nearest(_vector(query)[None], min(max(k, MIN_SHORTLIST), MAX_RESULTS))[0]
        regions = self.index.regions.take([hit.number for hit in shortlist])
        similarity = rerank_similarity(self.retriever, query, regions)
        order = np.argsort(-similarity, kind="stable")[:k]
        return [
            Hit(rank, float(similarity[n]), shortlist[n].item, shortlist[n].number, shortlist[n].rank)
            for rank, n in enumerate(order.tolist(), start=1)
        ]

    def _hits(self, similarity: Float[np.ndarray, " k"], rows: Int[np.ndarray, " k"]) -> list[Hit]:
        # faiss pads with row -1
        found = [(s, row) for s, row in zip(similarity.tolist(), rows.tolist(), strict=True) if row >= 0]
        return [Hit(rank, s, self.index.items[row], row) for rank, (s, row) in enumerate(found, start=1)]


def check_query(text: str) -> None:
    if len(text) > MAX_QUERY_CHARS:
        raise ValueError(f"query too long: {len(text):,} characters, at most {MAX_QUERY_CHARS:,}")


def check_k(k: int) -> None:
    if not 1 <= k <= MAX_RESULTS:
        raise ValueError(f"k must be from 1 to {MAX_RESULTS:,}, got {k}")


def _vector(query: EncodedQuery) -> Float[np.ndarray, " dim"]:
    return query.vector.float().cpu().numpy()


@dataclass(frozen=True)
class WordsOverRegions:
    """Attention of the words of a query over the regions of an image."""

    words: list[str]
    """Tokens, with the start and end token."""
    attention: list[list[float]]
    """One row per word, one column per region."""
    side: int | None
    """Rows and columns of the square grid of regions over the image; None if the regions are not a square grid."""


def has_attention(searcher: Searcher) -> bool:
    return searcher.index.regions is not None and isinstance(searcher.retriever.model, AttentionMap)


@torch.inference_mode()
def words_over_regions(searcher: Searcher, text: str, number: int) -> WordsOverRegions:
    """Return the attention of the words of `text` over the regions of image `number`."""
    check_query(text)
    retriever, all_regions = searcher.retriever, searcher.index.regions
    model = retriever.model
    if not has_attention(searcher) or not isinstance(model, AttentionMap):
        raise ValueError(f"{retriever.system} has no cross attention of words over regions")
    assert all_regions is not None
    query = encode_queries(retriever, [text])[0]
    assert query.words is not None
    regions = torch.from_numpy(all_regions.take([number])[0]).to(query.words)
    regions = regions[regions.abs().amax(dim=1) > 0]  # without padding
    attention = model.attention_map(regions, query.words)
    root = math.isqrt(attention.shape[1])
    side = root if root * root == attention.shape[1] else None
    rounded = [[round(weight, 5) for weight in row] for row in attention.tolist()]
    return WordsOverRegions(_tokens(retriever, text), rounded, side)


def _tokens(retriever: Retriever, text: str) -> list[str]:
    ids = retriever.tokenize([text])[0][0].tolist()
    vocabulary = retriever.preprocessor.vocabulary
    return [str(token_id) if vocabulary is None else vocabulary.words[token_id] for token_id in ids]
