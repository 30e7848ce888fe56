"""Memory for large arrays, reused once nothing refers to the previous array any more.

malloc maps fresh pages for an array of a few megabytes and returns them when the array is freed; the kernel zeroes them
and takes a page fault for every 4 KiB. For batches of floats that was a twentieth of a loader's CPU time.

After a fork each process gets its own copy of any page that is written to, so arrays stay valid in both.

Concurrency: any number of threads may take blocks. Arrays may be freed in any thread, even by the garbage collector, so
there is no lock: list operations are atomic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_ALIGNED = 64  # bytes, the same as torch's own memory: a cache line


class Blocks:
    """Blocks of one size, the largest asked for: a loader's batches are all alike, except the last of an epoch.

    Args:
        most_bytes: Upper bound on the bytes kept for later.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self._free: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """Return an array of that many bytes; its memory is reused once the array and all views of it are gone."""
        if size_bytes > self._size_bytes:
            self._size_bytes, self._free = size_bytes, []
        elif 2 * size_bytes < self._size_bytes:
            return _aligned(size_bytes)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _aligned(self._size_bytes)
        if len(memory) < size_bytes:  # another thread has just asked for more
            memory = _aligned(size_bytes)
        return np.asarray(_Loan(self, memory))[:size_bytes]

    def give_back(self, memory: Bytes) -> None:
        """Keep memory that is no longer in use, if it can be reused."""
        if len(memory) == self._size_bytes and (len(self._free) + 1) * len(memory) <= self._most_bytes:
            self._free.append(memory)


class _Loan:
    """Memory that is on loan.

    NumPy follows an array's bases down to the one that owns the memory, but stops at anything that is not an array. So
    whatever is made from an array over this object keeps the loan alive.
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
