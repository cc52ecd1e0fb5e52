"""Regions of the images of an index on disk, memory-mapped, with a checksum per row that is checked on every read.

Regions are many times larger than everything else in an index, and a query reads those of a few hundred images: a
checksum of the whole file would make every start slow.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt32

from tercet.data.feature_array import map_array
from tercet.storage import allocated_array

REGIONS, ROW_CHECKSUMS = "parts.npy", "parts_crc32.npy"


@dataclass(frozen=True)
class IndexedRegions:
    """Regions of a generation; one row per image, in the order of its items."""

    file: Path
    rows: Float[np.ndarray, "item region region_dim"]
    checksums: UInt32[np.ndarray, " item"]
    remedy: str
    """What to do about a damaged row, for messages."""

    @classmethod
    def open(cls, generation: Path, remedy: str) -> "IndexedRegions":
        file = generation / REGIONS
        try:
            rows = map_array(file, ["item region dim"], [np.float32])
            checksums = map_array(generation / ROW_CHECKSUMS, ["item"], [np.uint32])
        except ValueError as error:
            raise ValueError(f"{error}; {remedy}") from error
        if len(checksums) != len(rows):
            raise ValueError(f"{file} is damaged: {len(rows)} rows, {len(checksums)} checksums; {remedy}")
        return cls(file, rows, checksums, remedy)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, items: Sequence[int]) -> Float[np.ndarray, "item region region_dim"]:
        """A copy of the regions of these images; `ValueError` if a row is damaged."""
        taken = np.ascontiguousarray(self.rows[list(items)])
        for item, row in zip(items, taken, strict=True):
            if _crc32(row) != self.checksums[item]:
                raise ValueError(f"{self.file}, row {item}: damaged: checksum mismatch; {self.remedy}")
        return taken


def _crc32(row: Float[np.ndarray, "region region_dim"]) -> int:
    return zlib.crc32(row.data)


class RegionWriter:
    """Writes the regions of a new generation row by row."""

    def __init__(self, generation: Path, shape: tuple[int, int, int]) -> None:
        self._generation = generation
        self._rows = allocated_array(generation / REGIONS, np.float32, shape)
        self._checksums = np.zeros(shape[0], dtype=np.uint32)

    def write(self, item: int, regions: Float[np.ndarray, "region region_dim"]) -> None:
        row = np.ascontiguousarray(regions, dtype=np.float32)
        self._rows[item], self._checksums[item] = row, _crc32(row)

    def close(self) -> None:
        self._rows.flush()
        np.save(self._generation / ROW_CHECKSUMS, self._checksums)
