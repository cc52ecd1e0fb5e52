"""Memory for batches that is lent out and comes back by itself.

A fresh tensor of a batch of regions is 40 MB that the system must find and clear page by page, which takes several
times as long as filling it. Here the same few arrays serve again, but never while anybody still holds one.
"""

import sys
import threading
from math import prod

import numpy as np
import torch
from torch import Tensor

KEPT = 6  # arrays, and no more than KEPT_BYTES of them; what is lent out beyond that is forgotten when it comes back
KEPT_BYTES = 512 << 20


class Buffers:
    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor. A tensor made from an array holds on to it, and so do all its views: an array that
        is referred to by nobody else is free.
        """
        size = prod(shape) * dtype.itemsize
        with self._lock:
            array = self._free(size)
            if array is None:
                array = np.empty(size, dtype=np.uint8)
                self._arrays = [*self._arrays[-KEPT + 1 :], array]
                while sum(map(len, self._arrays)) > KEPT_BYTES:
                    self._arrays = self._arrays[1:]
            return torch.from_numpy(array)[:size].view(dtype).view(shape)

    def _free(self, size: int) -> np.ndarray | None:
        for number, held in enumerate(_references(self._arrays)):
            if held == _HELD_BY_NOBODY and size <= len(self._arrays[number]) <= 2 * size:
                return self._arrays[number]
        return None


def _references(arrays: list[np.ndarray]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


# What counting itself adds differs between versions of Python: it is seen on an array that nobody else has.
_HELD_BY_NOBODY = _references([np.empty(1)])[0]
