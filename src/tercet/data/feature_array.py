"""Memory-mapped feature arrays: only the requested rows are read, into reused buffers."""

import hashlib
import math
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK_BYTES = 32 << 20
MIN_POOLED_BYTES = 1 << 20  # smaller tensors are allocated fast enough without the pool
MAX_HASHED_BYTES = 64 << 20  # the checksum of a larger array reads HASHED_ROWS evenly spaced rows
HASHED_ROWS = 256
MAX_BUFFERS = 6  # that the pool keeps; further ones are freed by the garbage collector
MAX_BUFFER_BYTES = 512 << 20  # of all buffers that the pool keeps
FLOATS = (np.float16, np.float32, np.float64)  # in native byte order

with warnings.catch_warnings():
    # Trigger and suppress torch's one-time warning about read-only memory: these tensors are never written to.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"0", dtype=np.uint8))


@dataclass(frozen=True)
class FeatureArray:
    """Item i is row `index[i]` of the concatenated arrays, or row i without an index."""

    arrays: tuple[np.ndarray, ...]
    location: str
    """Where the features come from, for messages."""
    index: Int[np.ndarray, " item"] | None = None
    lengths: Int[np.ndarray, " item"] | None = None
    """Number of valid (not padded) regions per item; None if all are valid."""
    copies: Int[np.ndarray, " item"] | None = None
    """Number of equal rows starting at `index[i]`, if the file repeats rows; None if it does not."""

    def __len__(self) -> int:
        return sum(map(len, self.arrays)) if self.index is None else len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.arrays[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.arrays[0].dtype

    def take(self, items: Int[Tensor, " item"]) -> tuple[Float[Tensor, "item *rest"], Int[Tensor, " item"] | None]:
        """These items as float32, copied once, and their lengths."""
        index = items if self.index is None else torch.from_numpy(self.index)[items]
        stored = self._gather(index)
        taken = stored
        if stored.dtype != torch.float32:
            taken = _BUFFERS.borrow(tuple(stored.shape), torch.float32).copy_(stored)
        # One sum detects NaN and infinity; the row is searched for only if there are any.
        if not math.isfinite(taken.sum().item()):
            self._raise_if_not_finite(taken, items, index)
        return taken, None if self.lengths is None else torch.from_numpy(self.lengths)[items]

    def raw(self, items: Int[np.ndarray, " item"]) -> np.ndarray:
        """These items in their stored dtype."""
        index = torch.from_numpy(items if self.index is None else self.index[items])
        return self._gather(index).numpy()

    def blocks(self, items: Int[np.ndarray, " item"]) -> Iterator[tuple[int, np.ndarray]]:
        """The same in blocks of bounded size, each with the position of its first item."""
        step = max(1, BLOCK_BYTES // max(1, int(np.prod(self.shape[1:])) * self.dtype.itemsize))
        for start in range(0, len(items), step):
            yield start, self.raw(items[start : start + step])

    def _gather(self, index: Int[Tensor, " item"]) -> Tensor:
        if len(self.arrays) == 1:
            return _select(torch.from_numpy(self.arrays[0]), index)
        taken = _BUFFERS.borrow((len(index), *self.shape[1:]), torch.from_numpy(self.arrays[0][:0]).dtype)
        start = 0
        for array in self.arrays:
            here = ((index >= start) & (index < start + len(array))).nonzero().flatten()
            taken.index_copy_(0, here, _select(torch.from_numpy(array), index[here] - start))
            start += len(array)
        return taken

    def _raise_if_not_finite(self, taken: Tensor, items: Tensor, index: Tensor) -> None:
        bad = (~taken.isfinite()).flatten(1).any(dim=1).nonzero().flatten()
        if len(bad):
            first = bad[0]
            raise ValueError(f"{self.location}, row {int(index[first])} (item {int(items[first])}): NaN or infinity")

    def row(self, item: int) -> int:
        """The row of this item in the file."""
        return item if self.index is None else int(self.index[item])

    def nonfinite_items(self) -> Iterator[int]:
        """Items with NaN or infinity. Reads all rows."""
        for start, block in self.blocks(np.arange(len(self))):
            yield from (start + np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))).tolist()

    def subset(self, items: Int[np.ndarray, " kept"]) -> "FeatureArray":
        index = items if self.index is None else self.index[items]
        lengths, copies = (None if rows is None else rows[items] for rows in (self.lengths, self.copies))
        return FeatureArray(self.arrays, self.location, index, lengths, copies)

    def checksum(self, *, whole: bool = False) -> str:
        """Checksum of shape, dtype and rows. Of large arrays only evenly spaced rows are hashed, unless `whole`."""
        digest = hashlib.sha256(repr((self.shape, str(self.dtype))).encode())
        if whole:
            for _, block in self.blocks(np.arange(len(self))):
                digest.update(np.ascontiguousarray(block).tobytes())
            return digest.hexdigest()
        for array in self.arrays:
            small = array.nbytes <= MAX_HASHED_BYTES
            rows = array if small else array[np.linspace(0, len(array) - 1, HASHED_ROWS).astype(np.int64)]
            digest.update(np.ascontiguousarray(rows).tobytes())
        for positions in (self.index, self.lengths):
            digest.update(b"-" if positions is None else positions.astype(np.int64).tobytes())
        return digest.hexdigest()

    @staticmethod
    def concatenate(features: "Sequence[FeatureArray]") -> "FeatureArray":
        shapes = {each.shape[1:] for each in features}
        if len(shapes) > 1 or len({each.dtype for each in features}) > 1:
            described = ", ".join(f"{each.location} {each.shape} {each.dtype}" for each in features)
            raise ValueError(f"features of the joined splits differ in shape or dtype: {described}")
        starts = np.cumsum([0, *(sum(map(len, each.arrays)) for each in features)])
        indices = [np.arange(len(each)) if each.index is None else each.index for each in features]
        lengths = None
        if any(each.lengths is not None for each in features):
            regions = features[0].shape[1]
            lengths = np.concatenate(
                [np.full(len(each), regions) if each.lengths is None else each.lengths for each in features]
            )
        return FeatureArray(
            arrays=tuple(array for each in features for array in each.arrays),
            location=" + ".join(each.location for each in features),
            index=np.concatenate([index + start for index, start in zip(indices, starts[:-1], strict=True)]),
            lengths=lengths,
        )


def _select(rows: Tensor, index: Int[Tensor, " item"]) -> Tensor:
    shape = (len(index), *rows.shape[1:])
    if math.prod(shape) * rows.itemsize < MIN_POOLED_BYTES:
        return rows.index_select(0, index)
    return torch.index_select(rows, 0, index, out=_BUFFERS.borrow(shape, rows.dtype))


def numpy_error(error: Exception) -> str:
    """What numpy says of a file, without its advice to execute what is in it."""
    return "it contains pickled objects, which are not loaded" if "pickle" in str(error) else str(error)


def map_array(file: Path, shapes: Sequence[str], dtypes: Sequence[type[np.generic]] = FLOATS) -> np.ndarray:
    """Memory-map a `.npy` file of one of these dtypes and shapes, a shape given by its axes, as in "row dim"."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{file}: no such file") from None
    except Exception as error:  # numpy raises exceptions of many kinds for damaged headers
        raise ValueError(f"{file}: not a readable .npy array: {numpy_error(error)}") from error
    is_array = isinstance(array, np.ndarray)
    if not is_array or array.dtype not in dtypes or array.ndim not in [len(shape.split()) for shape in shapes]:
        allowed = f"{' or '.join(each.__name__ for each in dtypes)} of shape {' or '.join(f'({s})' for s in shapes)}"
        actual = f"{array.dtype} of shape {array.shape}" if is_array else "a file that is not a single array"
        raise ValueError(f"{file}: expected {allowed}, got {actual}")
    return array


class BufferPool:
    """Reuses the memory of batches. A buffer is free again when no tensor or view references it.

    A fresh 40 MB tensor (a batch of regions) has to be page-faulted in by the system, which takes several times as long
    as filling it.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def borrow(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor.

        A tensor made from an array references it, and so do all its views: an array without other references is free.
        """
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            array = self._free(size)
            if array is None:
                array = np.empty(size, dtype=np.uint8)
                self._arrays = [*self._arrays[-MAX_BUFFERS + 1 :], array]
                while sum(map(len, self._arrays)) > MAX_BUFFER_BYTES:
                    self._arrays = self._arrays[1:]
            return torch.from_numpy(array)[:size].view(dtype).view(shape)

    def _free(self, size: int) -> np.ndarray | None:
        for index, count in enumerate(_reference_counts(self._arrays)):
            if count == _UNREFERENCED and size <= len(self._arrays[index]) <= 2 * size:
                return self._arrays[index]
        return None


def _reference_counts(arrays: list[np.ndarray]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


# The count of an array without outside references. Measured, because it differs between Python versions.
_UNREFERENCED = _reference_counts([np.empty(1)])[0]

_BUFFERS = BufferPool()
