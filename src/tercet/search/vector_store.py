"""Nearest-neighbour search over vectors: the interface of a store, its faiss implementation, and stores by name."""

from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from tercet.plugins import find

Kind = Literal["flat", "hnsw"]
HNSW_NEIGHBORS = 32  # links per node (M)
HNSW_EF_CONSTRUCTION, HNSW_EF_SEARCH = 200, 128  # candidates visited while building and while searching
FAISS_KINDS = (b"IxFI", b"IHNf")  # first bytes of the file: IndexFlatIP, IndexHNSWFlat
RECALL_SAMPLE = 200  # queries on which the recall of HNSW is measured


@runtime_checkable
class VectorStore(Protocol):
    """Nearest-neighbour search by dot product, larger is closer. Vectors are identified by their row."""

    def __len__(self) -> int: ...

    def search(
        self, queries: Float[np.ndarray, "query dim"], k: int
    ) -> tuple[Float[np.ndarray, "query k"], Int[np.ndarray, "query k"]]:
        """Return (similarities, rows), most similar first; fewer than k if the store is smaller."""
        ...

    def save(self, folder: Path) -> None:
        """Write what `load` needs into the folder of the index."""
        ...


@runtime_checkable
class VectorStoreType(Protocol):
    """What is registered under a name: builds a store from vectors, or loads one that was saved."""

    def of(self, vectors: Float[np.ndarray, "item dim"], kind: Kind = "flat") -> VectorStore: ...

    def load(self, folder: Path) -> VectorStore: ...


class FaissStore:
    """faiss index: exact (flat) or approximate (hnsw)."""

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
            index = faiss.IndexHNSWFlat(dim, HNSW_NEIGHBORS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction, index.hnsw.efSearch = HNSW_EF_CONSTRUCTION, HNSW_EF_SEARCH
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        return cls(index)

    @classmethod
    def load(cls, folder: Path) -> "FaissStore":
        with (folder / cls.FILE).open("rb") as stream:
            kind = stream.read(4)
        if kind not in FAISS_KINDS:  # others may name further files to read
            raise ValueError(f"{folder / cls.FILE}: not a faiss index of kind flat or hnsw")
        try:
            return cls(_faiss().read_index(str(folder / cls.FILE)))
        except RuntimeError as error:
            raise ValueError(f"{folder / cls.FILE}: not a faiss index: {str(error).splitlines()[0]}") from error

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
        nearest: tuple[np.ndarray, np.ndarray] = self.index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return nearest


STORES: dict[str, VectorStoreType] = {"faiss": FaissStore}
ENTRY_POINTS = "tercet.stores"


def store_type(name: str) -> VectorStoreType:
    """The store of this name: Tercet's own, or of an installed package."""
    return find("vector store", name, STORES, ENTRY_POINTS)


def measure_recall(store: VectorStore, vectors: Float[np.ndarray, "item dim"], k: int = 10) -> float:
    """Return the share of the exact k nearest that the store finds, with a sample of its own vectors as queries."""
    sample = np.linspace(0, len(vectors) - 1, min(RECALL_SAMPLE, len(vectors))).astype(np.int64)
    exact = FaissStore.of(vectors).search(vectors[sample], k)[1]
    approximate = store.search(vectors[sample], k)[1]
    if not exact.size:
        return 1.0
    return float(
        np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(exact.tolist(), approximate.tolist(), strict=True)])
    )


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ValueError("a search index needs faiss: pip install faiss-cpu") from error
    return faiss
