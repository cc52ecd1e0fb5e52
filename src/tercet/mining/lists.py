"""The lists of one direction while they are filled: candidates and similarities, as .npy files."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor


class Lists:
    def __init__(self, folder: Path, which: str, anchors: int, k: int) -> None:
        if k < 1:
            raise ValueError("--guard-skip leaves nothing of the lists: there are not so many candidates")
        self.k = k
        self.parts = [
            _opened(folder / f"{which}{tail}.npy", (anchors, k), dtype)
            for tail, dtype in (("", np.int32), ("_similarity", np.float32))
        ]

    def write(
        self, rows: slice, candidate: Int[Tensor, "anchor k"], similarity: Float[Tensor, "anchor k"], *, skip: int
    ) -> int:
        """Without the first `skip` ranks; how many entries that left out."""
        for part, found in zip(self.parts, (candidate, similarity), strict=True):
            part[rows] = found[:, skip : skip + self.k].numpy()
        return int((candidate[:, :skip] >= 0).sum())

    def flush(self) -> None:
        for part in self.parts:
            part.flush()


def _opened(file: Path, shape: tuple[int, int], dtype: type) -> np.memmap:
    """What is there already of the same shape is gone on with."""
    there = file.is_file() and file.stat().st_size >= np.prod(shape) * np.dtype(dtype).itemsize
    return np.lib.format.open_memmap(file, mode="r+" if there else "w+", dtype=dtype, shape=shape)
