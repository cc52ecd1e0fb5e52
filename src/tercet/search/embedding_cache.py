"""Embeddings by image checksum: those of the existing index and those of an interrupted update."""

import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float

from tercet.search.indexed_regions import IndexedRegions, RegionWriter
from tercet.search.two_stage import IndexedVectors
from tercet.storage import atomic_path


class EmbeddingCache:
    """Cache of embeddings in a folder, one file per batch. Vectors are in memory; regions, which are many times larger,
    are memory-mapped.
    """

    def __init__(self, folder: Path, weights: str) -> None:
        self.folder, self.weights = folder, weights
        self._vectors: dict[str, np.ndarray] = {}
        self._regions: dict[str, tuple[np.ndarray | IndexedRegions, int]] = {}
        """Checksum -> (memory-mapped array, row)."""
        self._batches = 0
        for file in sorted(folder.glob("batch_*.npz")):
            self._batches = int(file.stem.split("_")[1]) + 1
            # The images of a damaged batch, whatever numpy raises for it, are embedded again.
            with suppress(Exception):
                self._load(file)

    def _load(self, file: Path) -> None:
        with np.load(file) as batch:
            if str(batch["weights"]) == self.weights:
                regions = _regions_file(file)
                stored = np.load(regions, mmap_mode="r") if regions.exists() else None
                if stored is not None and zlib.crc32(np.ascontiguousarray(stored).data) != int(batch["regions_crc32"]):
                    raise ValueError(f"{regions}: checksum mismatch")
                self.add(batch["checksums"].tolist(), batch["vectors"], stored)

    def __contains__(self, checksum: str) -> bool:
        return checksum in self._vectors

    def add(
        self,
        checksums: Sequence[str],
        vectors: Float[np.ndarray, "item dim"],
        regions: np.ndarray | IndexedRegions | None,
    ) -> None:
        """Add embeddings in memory only."""
        self._vectors.update(zip(checksums, vectors, strict=True))
        if regions is not None:
            self._regions.update((checksum, (regions, row)) for row, checksum in enumerate(checksums))

    def save(self, checksums: Sequence[str], embedded: IndexedVectors) -> None:
        """Write a batch to disk, then add it. The vectors are written last: a batch without them is incomplete."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"batch_{self._batches:06d}.npz"
        regions = embedded.regions
        content = {"checksums": np.array(checksums), "vectors": embedded.vectors, "weights": np.array(self.weights)}
        if regions is not None:
            with atomic_path(_regions_file(file)) as temporary, temporary.open("wb") as stream:
                np.save(stream, regions)
            content["regions_crc32"] = np.array(zlib.crc32(np.ascontiguousarray(regions).data))
            regions = np.load(_regions_file(file), mmap_mode="r")
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **content)  # type: ignore[arg-type]
        self._batches += 1
        self.add(checksums, embedded.vectors, regions)

    def vectors(self, checksums: Sequence[str]) -> Float[np.ndarray, "item dim"]:
        return np.stack([self._vectors[checksum] for checksum in checksums]).astype(np.float32)

    def write_regions(self, generation: Path, checksums: Sequence[str]) -> None:
        """Write the regions row by row, never holding all in memory. Writes no file if the model has no regions."""
        if not self._regions:
            return
        region_count, dim = self._row(checksums[0]).shape
        writer = RegionWriter(generation, (len(checksums), region_count, dim))
        for item, checksum in enumerate(checksums):
            writer.write(item, self._row(checksum))
        writer.close()

    def _row(self, checksum: str) -> Float[np.ndarray, "region region_dim"]:
        regions, row = self._regions[checksum]
        return regions.take([row])[0] if isinstance(regions, IndexedRegions) else regions[row]

    def delete_files(self) -> None:
        """Delete the batches, and the folder if nothing else is in it."""
        for file in self.folder.glob("batch_*"):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def _regions_file(batch: Path) -> Path:
    return batch.with_name(f"{batch.stem}_parts.npy")
