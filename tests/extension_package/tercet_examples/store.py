"""A vector store: exact search with NumPy."""

import numpy as np


class NumpyStore:
    """Exact search with NumPy."""

    def __init__(self, vectors):
        self.vectors = vectors

    @classmethod
    def of(cls, vectors, kind="flat"):
        return cls(np.asarray(vectors))

    @classmethod
    def load(cls, folder):
        return cls(np.load(folder / "store.npy"))

    def save(self, folder):
        np.save(folder / "store.npy", self.vectors)

    def __len__(self):
        return len(self.vectors)

    def search(self, queries, k):
        similarity = queries @ self.vectors.T
        rows = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(similarity, rows, axis=1), rows
