"""Memory of this process for large arrays, used again once nobody looks at them any more.

malloc maps fresh pages for an array of some megabytes and gives them back when it is freed; the kernel fills them with
zeros and takes a page fault for every 4 KiB. For batches of floats that was a twentieth of a loader's CPU time.

A fork copies what is written to, so an array may outlive it on both sides.

Concurrency: any number of threads may take; arrays may be freed in any thread, also by the garbage collector, so there
is no lock: a list is changed by one thread at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_ALIGNED = 64  # bytes, as torch's own memory is: a cache line


class Blocks:
    """Blocks of one size, the largest that was wanted: the batches of a loader are alike, but for the last of an epoch.

    Args:
        most_bytes: Bound on the bytes that are kept for later.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self._free: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """Return an array of that many bytes; its memory comes back when every part of it is gone."""
        if size_bytes > self._size_bytes:
            self._size_bytes, self._free = size_bytes, []
        elif 2 * size_bytes < self._size_bytes:
            return _aligned(size_bytes)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _aligned(self._size_bytes)
        if len(memory) < size_bytes:  # another thread has asked for more just now
            memory = _aligned(size_bytes)
        return np.asarray(_Loan(self, memory))[:size_bytes]

    def give_back(self, memory: Bytes) -> None:
        """Keep memory that is no longer in use, if it may be used again."""
        if len(memory) == self._size_bytes and (len(self._free) + 1) * len(memory) <= self._most_bytes:
            self._free.append(memory)


class _Loan:
    """Memory that is lent.

    NumPy follows the arrays below an array to the one that owns the memory, but not through what is no array: whatever
    is made of an array of this keeps the loan alive.
    """

    def __init__(self, blocks: Blocks, memory: Bytes) -> None:
        self._blocks, self._memory = blocks, memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._blocks.give_back(self._memory)


def _aligned(size_bytes: int) -> Bytes:
    memory = np.empty(size_bytes + _ALIGNED, np.uint8)
    begin = -memory.__array_interface__["data"][0] % _ALIGNED
    return memory[begin : begin + size_bytes]
