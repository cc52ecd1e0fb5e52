"""Memory-mapped .npy files of the lists of one direction while they are being filled."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from tercet.storage import allocated_array

FILES = ("", np.int32), ("_similarity", np.float32)  # suffix of the file name and dtype: candidates, similarities


class ListStore:
    """Candidates and similarities per anchor. `created` is False if complete files existed and can be resumed."""

    def __init__(self, folder: Path, direction: str, anchors: int, k: int) -> None:
        if k < 1:
            raise ValueError("--filter-skip-top removes every entry of the lists: there are too few candidates")
        self.k = k
        files = [(folder / f"{direction}{suffix}.npy", dtype) for suffix, dtype in FILES]
        self.created = not all(_is_complete(file, (anchors, k), dtype) for file, dtype in files)
        self.arrays = [
            allocated_array(file, dtype, (anchors, k))
            if self.created
            else np.lib.format.open_memmap(file, mode="r+", dtype=dtype, shape=(anchors, k))
            for file, dtype in files
        ]
        self._digests = [hashlib.sha256() for _ in self.arrays]

    def resume(self, done: int, checksums: Sequence[str]) -> bool:
        """Whether the lists of the first `done` anchors are those that were written; if not, they are made again."""
        self._digests = [hashlib.sha256(np.ascontiguousarray(array[:done]).data) for array in self.arrays]
        intact = 0 <= done <= len(self.arrays[0]) and self.checksums() == list(checksums)
        if not intact:
            self._digests = [hashlib.sha256() for _ in self.arrays]
        return intact

    def checksums(self) -> list[str]:
        """SHA-256 of the candidates and of the similarities that were written so far."""
        return [digest.hexdigest() for digest in self._digests]

    def write(
        self, rows: slice, candidate: Int[Tensor, "anchor k"], similarity: Float[Tensor, "anchor k"], *, skip: int
    ) -> int:
        """Write the lists that follow those written before, without their first `skip` ranks.

        Return how many entries that excluded.
        """
        for array, digest, values in zip(self.arrays, self._digests, (candidate, similarity), strict=True):
            array[rows] = values[:, skip : skip + self.k].numpy()
            digest.update(np.ascontiguousarray(array[rows]).data)
        return int((candidate[:, :skip] >= 0).sum())

    def flush(self) -> None:
        for array in self.arrays:
            array.flush()


def fill_empty_lists(
    folder: Path,
    direction: str,
    candidate: Int[np.ndarray, "anchor k"],
    similarity: Float[np.ndarray, "anchor k"] | None,
) -> None:
    """Fill the lists of anchors without candidates from a previous table, with its similarities."""
    arrays = [np.load(folder / f"{direction}{suffix}.npy", mmap_mode="r+") for suffix, _ in FILES]
    empty = np.flatnonzero(arrays[0][:, 0] < 0)
    k = min(arrays[0].shape[1], candidate.shape[1])
    for array, previous in zip(arrays, (candidate, similarity), strict=True):
        if previous is not None:
            array[empty, :k] = previous[empty, :k]
        array.flush()


def _is_complete(file: Path, shape: tuple[int, int], dtype: type) -> bool:
    try:
        array = np.load(file, mmap_mode="r")  # read only: opened for writing, numpy would pad a short file with zeros
    except Exception:  # numpy raises exceptions of many kinds for damaged headers
        return False
    return bool(array.shape == shape and array.dtype == dtype)
