"""Vectors by number, and the nearest of them: a small interface, so that a database can stand beside faiss."""

from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

Kind = Literal["flat", "hnsw"]
NEIGHBOURS = 32  # of a node of HNSW
BUILT_WITH, SEARCHED_WITH = 200, 128  # candidates looked at, while building and while searching
SAMPLE = 200  # queries on which the recall of HNSW is measured


@runtime_checkable
class Store(Protocol):
    """Numbers are rows of the vectors that it was made of. Similarity is the dot product, larger is closer."""

    def __len__(self) -> int: ...

    def search(
        self, queries: Float[np.ndarray, "query dim"], k: int
    ) -> tuple[Float[np.ndarray, "query k"], Int[np.ndarray, "query k"]]:
        """(similarities, numbers), the most similar first; fewer than k where there are fewer."""
        ...

    def save(self, folder: Path) -> None: ...


class FaissStore:
    """Exact (flat), or a graph that misses a few (hnsw)."""

    FILE = "index.faiss"

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "item dim"], kind: Kind = "flat") -> "FaissStore":
        faiss = _faiss()
        dim = vectors.shape[1]
        if kind == "flat":
            index = faiss.IndexFlatIP(dim)
        else:
            index = faiss.IndexHNSWFlat(dim, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction, index.hnsw.efSearch = BUILT_WITH, SEARCHED_WITH
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        return cls(index)

    @classmethod
    def load(cls, folder: Path) -> "FaissStore":
        try:
            return cls(_faiss().read_index(str(folder / cls.FILE)))
        except RuntimeError as error:
            raise ValueError(f"{folder / cls.FILE}: not an index of faiss: {str(error).splitlines()[0]}") from error

    def save(self, folder: Path) -> None:
        _faiss().write_index(self.index, str(folder / self.FILE))

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def search(
        self, queries: Float[np.ndarray, "query dim"], k: int
    ) -> tuple[Float[np.ndarray, "query k"], Int[np.ndarray, "query k"]]:
        k = min(k, len(self))
        if not k or not len(queries):
            return np.zeros((len(queries), 0), dtype=np.float32), np.zeros((len(queries), 0), dtype=np.int64)
        found: tuple[np.ndarray, np.ndarray] = self.index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return found


def recall_of(store: Store, vectors: Float[np.ndarray, "item dim"], k: int = 10) -> float:
    """Share of the exact k nearest that the store finds, for some of its own vectors as queries."""
    chosen = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    exact = FaissStore.of(vectors).search(vectors[chosen], k)[1]
    found = store.search(vectors[chosen], k)[1]
    if not exact.size:
        return 1.0
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ValueError("an index needs faiss: pip install faiss-cpu") from error
    return faiss
