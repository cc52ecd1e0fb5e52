"""Checksum of a picture -> what was made of it: by the index as it was, and by an update that was stopped."""

import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float

from tercet.search.looks import Kept


class Known:
    """A folder to which batches are added. Vectors are in memory, parts, which are many times as large, on disk."""

    def __init__(self, folder: Path, weights: str) -> None:
        self.folder, self.weights = folder, weights
        self._vectors: dict[str, np.ndarray] = {}
        self._parts: dict[str, tuple[np.ndarray, int]] = {}
        """The memory-mapped file that holds them, and the row."""
        self._batches = 0
        for file in sorted(folder.glob("batch_*.npz")):
            self._batches = int(file.stem.split("_")[1]) + 1
            with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # a damaged one is made again
                self._read(file)

    def _read(self, file: Path) -> None:
        with np.load(file) as batch:
            if str(batch["weights"]) == self.weights:
                parts = _parts_beside(file)
                kept = Kept(batch["vectors"], np.load(parts, mmap_mode="r") if parts.exists() else None)
                self.add(batch["checksums"].tolist(), kept)

    def __contains__(self, checksum: str) -> bool:
        return checksum in self._vectors

    def add(self, checksums: Sequence[str], kept: Kept) -> None:
        self._vectors.update(zip(checksums, kept.vectors, strict=True))
        if kept.parts is not None:
            self._parts.update((checksum, (kept.parts, row)) for row, checksum in enumerate(checksums))

    def keep(self, checksums: Sequence[str], kept: Kept) -> None:
        """On disk before anything else happens. The vectors come last: without them a batch was not kept."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"batch_{self._batches:06d}.npz"
        if kept.parts is not None:
            with _parts_beside(file).open("wb") as opened:
                np.save(opened, kept.parts)
                _to_disk(opened)
            kept = Kept(kept.vectors, np.load(_parts_beside(file), mmap_mode="r"))
        beside = file.with_suffix(".new")
        with beside.open("wb") as opened:
            np.savez(opened, checksums=np.array(checksums), vectors=kept.vectors, weights=np.array(self.weights))
            _to_disk(opened)
        os.replace(beside, file)
        self._batches += 1
        self.add(checksums, kept)

    def vectors(self, checksums: Sequence[str]) -> Float[np.ndarray, "item dim"]:
        return np.stack([self._vectors[checksum] for checksum in checksums]).astype(np.float32)

    def write_parts(self, file: Path, checksums: Sequence[str]) -> None:
        """Row by row: never all in memory. Nothing is written where the model keeps none."""
        if not self._parts:
            return
        first, _ = self._parts[checksums[0]]
        whole = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(len(checksums), *first.shape[1:]))
        for row, checksum in enumerate(checksums):
            parts, place = self._parts[checksum]
            whole[row] = parts[place]
        whole.flush()

    def forget(self) -> None:
        """Its own files; the folder goes with them if nothing else is there."""
        for file in self.folder.glob("batch_*"):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def _parts_beside(file: Path) -> Path:
    return file.with_name(f"{file.stem}_parts.npy")


def _to_disk(opened: object) -> None:
    opened.flush()  # type: ignore[attr-defined]
    os.fsync(opened.fileno())  # type: ignore[attr-defined]
