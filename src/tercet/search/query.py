"""Words or a picture -> the nearest pictures of an index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from tercet.retriever import Retriever, load
from tercet.search.index import Index, open_index
from tercet.search.items import Item
from tercet.search.looks import Asked, asked_of, kept_of, looks_again, second_look

LONGEST = 1000  # characters of a query
MOST = 1000  # results
SHORTLIST = 200  # pictures that a second look is given, at least


@dataclass(frozen=True)
class Hit:
    rank: int
    """From 1."""
    similarity: float
    item: Item
    number: int
    """Of the item in the index."""
    first_rank: int | None = None
    """By the first look, where a second one made the order."""

    def content(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "rank": self.rank,
            "similarity": round(self.similarity, 6),
            "path": self.item.path,
            "captions": list(self.item.captions),
        }


class Searcher:
    """An index with its model.

    >>> Searcher.open("photos_index").words("two dogs in snow")  # doctest: +SKIP
    """

    def __init__(self, index: Index, retriever: Retriever) -> None:
        if looks_again(retriever) and index.parts is None:
            raise ValueError(f"{index.folder} was made before its {retriever.system} looked twice: index again")
        self.index, self.retriever = index, retriever

    @classmethod
    def open(cls, folder: str | Path, model: str | Path | None = None) -> "Searcher":
        """`model` says where the model of the index lies now, if it was moved; another one is refused."""
        from tercet.training.evaluating import checksum_of_weights

        index = open_index(folder)
        path = Path(model or index.manifest["model"]["path"])
        retriever = load(path)
        if checksum_of_weights(path) != index.manifest["model"]["weights"]:
            raise ValueError(f"{path} is not the model that {folder} was made with; say where that is with --model")
        return cls(index, retriever)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Place of a picture -> its number."""
        return {item.path: number for number, item in enumerate(self.index.items)}

    def words(self, text: str, k: int = 10) -> list[Hit]:
        return self.many_words([text], k)[0]

    def many_words(self, texts: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """Read together, each answered by itself."""
        for text in texts:
            check_query(text)
        check_results(k)
        asked = asked_of(self.retriever, texts)
        if self.index.parts is None:
            return self.nearest(np.stack([_array(each) for each in asked]), k)
        return [self._looked_at_twice(each, k) for each in asked]

    def picture(self, picture: str | Path | Image.Image, k: int = 10) -> list[Hit]:
        """By the first look alone: the second compares words with pictures."""
        return self.nearest(kept_of(self.retriever, [picture]).vectors, k)[0]

    def neighbours(self, number: int, k: int = 10) -> list[Hit]:
        """Of a picture of the index, without itself."""
        hits = self.nearest(np.asarray(self.index.vectors[number : number + 1]), min(k + 1, MOST))[0]
        others = [hit for hit in hits if hit.number != number][:k]
        return [Hit(rank, hit.similarity, hit.item, hit.number) for rank, hit in enumerate(others, start=1)]

    def nearest(self, vectors: Float[np.ndarray, "query dim"], k: int) -> list[list[Hit]]:
        check_results(k)
        similarity, numbers = self.index.store.search(vectors, k)
        return [self._hits(*row) for row in zip(similarity, numbers, strict=True)]

    def words_and_ranks(self, text: str, k: int) -> tuple[list[Hit], Callable[[Sequence[int]], list[int | None]]]:
        """What is found, and a function that tells the rank of any pictures for these words, read once.

        After a second look, the rank of what it did not see is None.
        """
        check_query(text)
        check_results(k)
        asked = asked_of(self.retriever, [text])[0]
        if self.index.parts is not None:
            seen = self._looked_at_twice(asked, max(k, SHORTLIST))
            by_number = {hit.number: hit.rank for hit in seen}
            return seen[:k], lambda numbers: [by_number.get(number) for number in numbers]
        hits = self.nearest(_array(asked)[None], k)[0]
        found = {hit.number: hit.rank for hit in hits}  # of equals, in the order in which they are shown

        def ranks(numbers: Sequence[int]) -> list[int | None]:
            similarity = np.asarray(self.index.vectors) @ _array(asked)
            return [found.get(n, int((similarity > similarity[n]).sum()) + 1) for n in numbers]

        return hits, ranks

    def own_ranks(self, texts: Sequence[str], numbers: Sequence[int]) -> list[int | None]:
        """Of picture k among all, for text k; after a second look, None for what it did not see."""
        asked = asked_of(self.retriever, texts)
        if self.index.parts is not None:
            twice = [{hit.number: hit.rank for hit in self._looked_at_twice(each, SHORTLIST)} for each in asked]
            return [found.get(number) for found, number in zip(twice, numbers, strict=True)]
        similarity = np.stack([_array(each) for each in asked]) @ np.asarray(self.index.vectors).T
        own = similarity[np.arange(len(numbers)), list(numbers)]
        return [int(rank) for rank in (similarity > own[:, None]).sum(axis=1) + 1]

    def _looked_at_twice(self, asked: Asked, k: int) -> list[Hit]:
        assert self.index.parts is not None
        first = self.nearest(_array(asked)[None], min(max(k, SHORTLIST), MOST))[0]
        similarity = second_look(self.retriever, asked, self.index.parts[[hit.number for hit in first]])
        order = np.argsort(-similarity, kind="stable")[:k]
        return [
            Hit(rank, float(similarity[n]), first[n].item, first[n].number, first[n].rank)
            for rank, n in enumerate(order.tolist(), start=1)
        ]

    def _hits(self, similarity: Float[np.ndarray, " k"], numbers: Int[np.ndarray, " k"]) -> list[Hit]:
        there = [(s, n) for s, n in zip(similarity.tolist(), numbers.tolist(), strict=True) if n >= 0]
        return [Hit(rank, s, self.index.items[n], n) for rank, (s, n) in enumerate(there, start=1)]


def check_query(text: str) -> None:
    if len(text) > LONGEST:
        raise ValueError(f"a query of {len(text):,} characters: at most {LONGEST:,} are read")


def check_results(k: int) -> None:
    if not 1 <= k <= MOST:
        raise ValueError(f"from 1 to {MOST:,} results can be asked for, got {k}")


def _array(asked: Asked) -> Float[np.ndarray, " dim"]:
    return asked.vector.float().cpu().numpy()
