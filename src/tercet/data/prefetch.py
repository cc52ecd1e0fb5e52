"""Ordered thread-pool prefetch, and a pool of reusable batch buffers."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BUFFERS = 6  # that the pool keeps; further ones are freed by the garbage collector
MAX_BUFFER_BYTES = 512 << 20  # of all buffers that the pool keeps


def prefetch(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`map(function, items)` with worker threads. Threads suffice: reading rows and decoding images release the GIL."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also when the consumer closes the iterator early
        pool.shutdown(wait=True, cancel_futures=True)


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
        size = prod(shape) * dtype.itemsize
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
