"""Words or a picture -> the nearest pictures of an index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from tercet.retriever import Retriever, load
from tercet.search.index import Index, open_index
from tercet.search.items import Item

LONGEST = 1000  # characters of a query
MOST = 1000  # results


@dataclass(frozen=True)
class Hit:
    rank: int
    """From 1."""
    similarity: float
    item: Item

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

    def words(self, text: str, k: int = 10) -> list[Hit]:
        if len(text) > LONGEST:
            raise ValueError(f"a query of {len(text):,} characters: at most {LONGEST:,} are read")
        return self.nearest(self.retriever.embed_texts([text]), k)[0]

    def picture(self, picture: str | Path | Image.Image, k: int = 10) -> list[Hit]:
        return self.nearest(self.retriever.embed_pictures([picture]), k)[0]

    def nearest(self, vectors: Tensor, k: int) -> list[list[Hit]]:
        if not 1 <= k <= MOST:
            raise ValueError(f"from 1 to {MOST:,} results can be asked for, got {k}")
        similarity, numbers = self.index.store.search(vectors.float().cpu().numpy(), k)
        return [self._hits(*row) for row in zip(similarity, numbers, strict=True)]

    def _hits(self, similarity: Float[np.ndarray, " k"], numbers: Int[np.ndarray, " k"]) -> list[Hit]:
        there = [(s, n) for s, n in zip(similarity.tolist(), numbers.tolist(), strict=True) if n >= 0]
        return [Hit(rank, s, self.index.items[n]) for rank, (s, n) in enumerate(there, start=1)]
