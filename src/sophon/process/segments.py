"""Unnamed shared memory: nothing is left behind if a process dies, and the size of /dev/shm does not matter.

A segment is an anonymous file that two processes map. Its creator sends the descriptor through a socket; once
both have mapped it, the descriptor is closed. Docker gives /dev/shm 64 MiB, which is why other loaders die of SIGBUS in
containers; `memfd_create` counts only against the container's memory limit.

A forked child may keep an array in a segment: memory that was on loan when the child was forked is never written to
again.

Concurrency: `Segments` may be used by several threads; arrays may be freed in any thread, even by the garbage
collector.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.process.renewal import renew_after_fork

Bytes = NDArray[np.uint8]

_PAGE = mmap.PAGESIZE
_MOST_FILES = 128  # files open at once; most systems allow 1,024 per process, and users may keep more batches than that


_FAILED = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Forks:
    """Counts how often this process was forked."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(before=self._add)

    def _add(self) -> None:
        self.count += 1


_FORKS = _Forks()


def make_file(size_bytes: int) -> int:
    """Return the descriptor of an anonymous file of the given size."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("sophon", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as nameless:
            file = os.dup(nameless.fileno())
    try:
        os.ftruncate(file, max(size_bytes, 1))
    except BaseException:
        os.close(file)
        raise
    return file


def map_file(file: int, size_bytes: int) -> Bytes:
    """Return the bytes of an anonymous file; they stay mapped as long as the array or a view of it lives."""
    return np.asarray(_Mapping(file, max(size_bytes, 1)))[:size_bytes]


class _Mapping:
    """Mapped memory, freed with this object.

    Not `mmap.mmap`: before Python 3.13 it keeps a descriptor open, and users may hold more batches than they may have
    files open.

    Args:
        file: Descriptor of the file to map.
        size_bytes: How many bytes of it to map.
    """

    def __init__(self, file: int, size_bytes: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _LIBC.mmap(None, size_bytes, access, mmap.MAP_SHARED, file, 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot map {size_bytes:,} bytes of shared memory: {os.strerror(error)}")
        self._address, self._size_bytes = address, size_bytes
        self.__array_interface__ = {"shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(
        self, unmap: Callable[[int, int], int] = _LIBC.munmap
    ) -> None:  # the name may be gone when Python exits
        if hasattr(self, "_address"):
            unmap(self._address, self._size_bytes)


class Segment:
    """A piece of shared memory, as seen by the process that created it.

    Args:
        number: Identifies the segment.
        size_bytes: Size of the segment.
    """

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = max(-(-size_bytes // _PAGE), 1) * _PAGE
        self.file: int | None = make_file(self.size_bytes)
        try:
            self._memory = _Mapping(self.file, self.size_bytes)
        except OSError:
            self.close()
            raise

    def lend(self) -> Bytes:
        """Return the memory as an array; every view of it keeps the memory alive."""
        self._lent_after = _FORKS.count
        return np.asarray(self._memory)

    @property
    def is_elsewhere(self) -> bool:
        """Whether a child that was forked after the memory was lent might still use it."""
        return self._lent_after != _FORKS.count

    def close(self) -> None:
        """Close the file; no other process can map it after that. The memory is freed once no array uses it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


class Segments:
    """Segments that are reused once the arrays in them are gone: fresh memory costs a page fault every 4 KiB.

    Args:
        most_bytes: Upper bound on the bytes kept for later.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._numbers = 0
        self._files = 0
        self._free: list[Segment] = []
        self._gone: list[int] = []
        self._owner = os.getpid()
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.RLock()  # reentrant: the garbage collector may free an array while we hold it

    def take(self, size_bytes: int) -> tuple[Segment, Bytes]:
        """Return a segment of that size or more, and an array of its bytes; the segment is reused once that is gone."""
        with self._lock:
            fitting = [segment for segment in self._free if size_bytes <= segment.size_bytes <= 2 * size_bytes + _PAGE]
            segment = min(fitting, key=lambda one: one.size_bytes, default=None)
            if segment is not None:
                self._free.remove(segment)
            else:
                self._numbers += 1
                segment = Segment(self._numbers, size_bytes)
                self._files += 1
        whole = segment.lend()
        weakref.finalize(whole, self._give_back, segment).atexit = False
        return segment, whole[:size_bytes]

    def _give_back(self, segment: Segment) -> None:
        if os.getpid() != self._owner:
            return  # a copy in a forked child, whose parent still uses the memory
        with self._lock:
            kept_bytes = sum(one.size_bytes for one in self._free)
            is_whole = segment.file is not None and not segment.is_elsewhere and not self._is_closed
            if is_whole and kept_bytes + segment.size_bytes <= self._most_bytes:
                self._free.append(segment)
                return
            self._gone.append(segment.number)
            self._close(segment)

    def handed_out(self, segment: Segment) -> None:
        """Record that no other process needs to map a segment any more, and that users may keep it for a long time."""
        with self._lock:
            if self._files > _MOST_FILES:
                self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._files -= segment.file is not None
        segment.close()

    def take_gone(self) -> list[int]:
        """Return the numbers of the segments given up since the last call, so that others can unmap them."""
        with self._lock:
            gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        """Stop keeping memory for reuse."""
        with self._lock:
            self._is_closed = True
            for segment in self._free:
                self._close(segment)
            self._free.clear()


def array_in(memory: Bytes, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of the given shape at the start of a piece of memory."""
    wanted = np.dtype(dtype)
    size_bytes = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
    found: NDArray[Any] = memory[:size_bytes].view(wanted).reshape(shape)
    return found
