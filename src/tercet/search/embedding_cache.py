"""Embeddings by image checksum: those of the existing index and those of an interrupted update."""

import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float

from tercet.search.two_stage import IndexedVectors
from tercet.storage import atomic_path


class EmbeddingCache:
    """Cache of embeddings in a folder, one file per batch. Vectors are in memory; regions, which are many times larger,
    are memory-mapped.
    """

    def __init__(self, folder: Path, weights: str) -> None:
        self.folder, self.weights = folder, weights
        self._vectors: dict[str, np.ndarray] = {}
        self._regions: dict[str, tuple[np.ndarray, int]] = {}
        """Checksum -> (memory-mapped array, row)."""
        self._batches = 0
        for file in sorted(folder.glob("batch_*.npz")):
            self._batches = int(file.stem.split("_")[1]) + 1
            # The images of a damaged batch are embedded again.
            with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                self._load(file)

    def _load(self, file: Path) -> None:
        with np.load(file) as batch:
            if str(batch["weights"]) == self.weights:
                regions = _regions_file(file)
                loaded = IndexedVectors(batch["vectors"], np.load(regions, mmap_mode="r") if regions.exists() else None)
                self.add(batch["checksums"].tolist(), loaded)

    def __contains__(self, checksum: str) -> bool:
        return checksum in self._vectors

    def add(self, checksums: Sequence[str], embedded: IndexedVectors) -> None:
        """Add embeddings in memory only."""
        self._vectors.update(zip(checksums, embedded.vectors, strict=True))
        if embedded.regions is not None:
            self._regions.update((checksum, (embedded.regions, row)) for row, checksum in enumerate(checksums))

    def save(self, checksums: Sequence[str], embedded: IndexedVectors) -> None:
        """Write a batch to disk, then add it. The vectors are written last: a batch without them is incomplete."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"batch_{self._batches:06d}.npz"
        if embedded.regions is not None:
            with atomic_path(_regions_file(file)) as temporary, temporary.open("wb") as stream:
                np.save(stream, embedded.regions)
            embedded = IndexedVectors(embedded.vectors, np.load(_regions_file(file), mmap_mode="r"))
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, checksums=np.array(checksums), vectors=embedded.vectors, weights=np.array(self.weights))
        self._batches += 1
        self.add(checksums, embedded)

    def vectors(self, checksums: Sequence[str]) -> Float[np.ndarray, "item dim"]:
        return np.stack([self._vectors[checksum] for checksum in checksums]).astype(np.float32)

    def write_regions(self, file: Path, checksums: Sequence[str]) -> None:
        """Write the regions row by row, never holding all in memory. Writes no file if the model has no regions."""
        if not self._regions:
            return
        first, _ = self._regions[checksums[0]]
        target = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(len(checksums), *first.shape[1:]))
        for target_row, checksum in enumerate(checksums):
            regions, row = self._regions[checksum]
            target[target_row] = regions[row]
        target.flush()

    def delete_files(self) -> None:
        """Delete the batches, and the folder if nothing else is in it."""
        for file in self.folder.glob("batch_*"):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def _regions_file(batch: Path) -> Path:
    return batch.with_name(f"{batch.stem}_parts.npy")
