"""The lists of one direction while they are filled: candidates and similarities, as .npy files."""

from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

PARTS = ("", np.int32), ("_similarity", np.float32)  # of the files' names, and what they hold


class Lists:
    """`anew`: nothing whole was there to go on with."""

    def __init__(self, folder: Path, which: str, anchors: int, k: int) -> None:
        if k < 1:
            raise ValueError("--guard-skip leaves nothing of the lists: there are not so many candidates")
        self.k = k
        wanted = [(folder / f"{which}{tail}.npy", dtype) for tail, dtype in PARTS]
        self.anew = not all(_is_whole(file, (anchors, k), dtype) for file, dtype in wanted)
        mode: Literal["w+", "r+"] = "w+" if self.anew else "r+"
        self.parts = [
            np.lib.format.open_memmap(file, mode=mode, dtype=dtype, shape=(anchors, k)) for file, dtype in wanted
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


def keep_earlier(
    folder: Path,
    which: str,
    candidate: Int[np.ndarray, "anchor k"],
    similarity: Float[np.ndarray, "anchor k"] | None,
) -> None:
    """Anchors with nothing in their lists get those of an earlier table, with the similarities of then."""
    new = [np.load(folder / f"{which}{tail}.npy", mmap_mode="r+") for tail, _ in PARTS]
    empty = np.flatnonzero(new[0][:, 0] < 0)
    k = min(new[0].shape[1], candidate.shape[1])
    for part, earlier in zip(new, (candidate, similarity), strict=True):
        if earlier is not None:
            part[empty, :k] = earlier[empty, :k]
        part.flush()


def _is_whole(file: Path, shape: tuple[int, int], dtype: type) -> bool:
    try:
        there = np.load(file, mmap_mode="r")  # to write, numpy would fill up with zeros what a short file lacks
    except (OSError, ValueError, EOFError):
        return False
    return bool(there.shape == shape and there.dtype == dtype)
