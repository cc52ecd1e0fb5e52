"""Rows of numbers by item, memory-mapped: what is not asked for is not read."""

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.data.buffers import Buffers

BLOCK_BYTES = 32 << 20
WORTH_LENDING = 1 << 20  # bytes; what is smaller is found quickly
HASHED_WHOLE = 64 << 20  # bytes; of larger arrays a checksum reads evenly spaced rows only
HASHED_ROWS = 256
FLOATS = (np.float16, np.float32, np.float64)  # of this machine's byte order

_BUFFERS = Buffers()

with warnings.catch_warnings():
    # torch warns once that a tensor of read-only memory could be written to. Ours are only read from.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"0", dtype=np.uint8))


@dataclass(frozen=True)
class Rows:
    """Item i is row `index[i]` of the arrays laid end to end (row i without an index)."""

    arrays: tuple[np.ndarray, ...]
    place: str
    """Where the numbers are, for messages."""
    index: Int[np.ndarray, " item"] | None = None
    lengths: Int[np.ndarray, " item"] | None = None
    """How many regions of each item are real; None where all are."""
    copies: Int[np.ndarray, " item"] | None = None
    """How many rows, from `index[i]` on, should be equal because the file repeats them; None where it does not."""

    def __len__(self) -> int:
        return sum(map(len, self.arrays)) if self.index is None else len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all items."""
        return (len(self), *self.arrays[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.arrays[0].dtype

    def take(self, items: Int[Tensor, " item"]) -> tuple[Float[Tensor, "item *rest"], Int[Tensor, " item"] | None]:
        """These items as float32, and their lengths. One copy, in one call, however many items."""
        index = items if self.index is None else torch.from_numpy(self.index)[items]
        stored = self._gather(index)
        taken = stored
        if stored.dtype != torch.float32:
            taken = _BUFFERS.lend(tuple(stored.shape), torch.float32).copy_(stored)
        # One sum says whether all is well; the search for the place is only paid for by bad data.
        if not math.isfinite(taken.sum().item()):
            self._complain(taken, items, index)
        return taken, None if self.lengths is None else torch.from_numpy(self.lengths)[items]

    def raw(self, items: Int[np.ndarray, " item"]) -> np.ndarray:
        """These items as they are stored."""
        index = torch.from_numpy(items if self.index is None else self.index[items])
        return self._gather(index).numpy()

    def blocks(self, items: Int[np.ndarray, " item"]) -> Iterator[tuple[int, np.ndarray]]:
        """The same, a bounded piece at a time, each with its place among the items."""
        step = max(1, BLOCK_BYTES // max(1, int(np.prod(self.shape[1:])) * self.dtype.itemsize))
        for start in range(0, len(items), step):
            yield start, self.raw(items[start : start + step])

    def _gather(self, index: Int[Tensor, " item"]) -> Tensor:
        if len(self.arrays) == 1:
            return _select(torch.from_numpy(self.arrays[0]), index)
        taken = _BUFFERS.lend((len(index), *self.shape[1:]), torch.from_numpy(self.arrays[0][:0]).dtype)
        start = 0
        for array in self.arrays:
            here = ((index >= start) & (index < start + len(array))).nonzero().flatten()
            taken.index_copy_(0, here, _select(torch.from_numpy(array), index[here] - start))
            start += len(array)
        return taken

    def _complain(self, taken: Tensor, items: Tensor, index: Tensor) -> None:
        bad = (~taken.isfinite()).flatten(1).any(dim=1).nonzero().flatten()
        if len(bad):
            first = bad[0]
            raise ValueError(f"{self.place}, row {int(index[first])} (item {int(items[first])}): NaN or infinity")

    def row(self, item: int) -> int:
        """Its row in the file."""
        return item if self.index is None else int(self.index[item])

    def bad_items(self) -> Iterator[int]:
        """Items with NaN or infinity. Reads everything."""
        for start, block in self.blocks(np.arange(len(self))):
            yield from (start + np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))).tolist()

    def only(self, items: Int[np.ndarray, " kept"]) -> "Rows":
        index = items if self.index is None else self.index[items]
        lengths, copies = (None if part is None else part[items] for part in (self.lengths, self.copies))
        return Rows(self.arrays, self.place, index, lengths, copies)

    def checksum(self, *, whole: bool = False) -> str:
        """Of the numbers as items see them; of a large array, of evenly spaced rows unless the whole is wanted."""
        digest = hashlib.sha256(repr((self.shape, str(self.dtype))).encode())
        if whole:
            for _, block in self.blocks(np.arange(len(self))):
                digest.update(np.ascontiguousarray(block).tobytes())
            return digest.hexdigest()
        for array in self.arrays:
            small = array.nbytes <= HASHED_WHOLE
            rows = array if small else array[np.linspace(0, len(array) - 1, HASHED_ROWS).astype(np.int64)]
            digest.update(np.ascontiguousarray(rows).tobytes())
        for positions in (self.index, self.lengths):
            digest.update(b"-" if positions is None else positions.astype(np.int64).tobytes())
        return digest.hexdigest()

    @staticmethod
    def joined(parts: "Sequence[Rows]") -> "Rows":
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1 or len({part.dtype for part in parts}) > 1:
            raise ValueError(
                f"features of the splits differ: {', '.join(f'{p.place} {p.shape} {p.dtype}' for p in parts)}"
            )
        starts = np.cumsum([0, *(sum(map(len, part.arrays)) for part in parts)])
        indices = [np.arange(len(part)) if part.index is None else part.index for part in parts]
        lengths = None
        if any(part.lengths is not None for part in parts):
            full = parts[0].shape[1]
            lengths = np.concatenate([np.full(len(p), full) if p.lengths is None else p.lengths for p in parts])
        return Rows(
            arrays=tuple(array for part in parts for array in part.arrays),
            place=" + ".join(part.place for part in parts),
            index=np.concatenate([index + start for index, start in zip(indices, starts[:-1], strict=True)]),
            lengths=lengths,
        )


def _select(rows: Tensor, index: Int[Tensor, " item"]) -> Tensor:
    shape = (len(index), *rows.shape[1:])
    if math.prod(shape) * rows.itemsize < WORTH_LENDING:
        return rows.index_select(0, index)
    return torch.index_select(rows, 0, index, out=_BUFFERS.lend(shape, rows.dtype))


def map_array(file: Path, axes: tuple[int, ...]) -> np.ndarray:
    """A `.npy` file of floats with one of these numbers of axes, mapped and not read."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file}: not a readable .npy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype not in FLOATS:
        raise ValueError(f"{file}: expected float16, float32 or float64, got {getattr(array, 'dtype', 'no array')}")
    if array.ndim not in axes:
        wanted = " or ".join({2: "(row dim)", 3: "(row region dim)"}[count] for count in axes)
        raise ValueError(f"{file}: expected {wanted}, got the shape {array.shape}")
    return array
