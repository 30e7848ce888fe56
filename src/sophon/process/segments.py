"""Shared memory without names: nothing is left behind, whoever dies, and no mount of /dev/shm bounds it.

A segment is an anonymous file that two processes map. The one that makes it sends its descriptor through a socket; once
both have mapped it, the descriptor is closed. Docker gives /dev/shm 64 MiB, which is why other loaders die of SIGBUS in
containers; memory of `memfd_create` counts against the memory of the container and nothing else.

An array in a segment may outlive a fork, in the child alone: what was lent at that moment is never written to again.

Concurrency: `Segments` may be used by several threads; arrays may be freed in any thread, also by the garbage
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
_MOST_FILES = 128  # open at once; most systems allow a process 1,024, and users may keep more batches than that


_FAILED = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Forks:
    """How often this process was forked."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(before=self._add)

    def _add(self) -> None:
        self.count += 1


_FORKS = _Forks()


def make_file(size_bytes: int) -> int:
    """Return the descriptor of an anonymous file of that size."""
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
    """Return the bytes of an anonymous file; they stay mapped for as long as the array, or a part of it, lives."""
    return np.asarray(_Mapping(file, max(size_bytes, 1)))[:size_bytes]


class _Mapping:
    """Mapped memory, freed with this object.

    Not `mmap.mmap`: before Python 3.13 it keeps a descriptor open, and users may hold more batches than they may have
    files open.

    Args:
        file: Descriptor of what is mapped.
        size_bytes: How much of it.
    """

    def __init__(self, file: int, size_bytes: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _LIBC.mmap(None, size_bytes, access, mmap.MAP_SHARED, file, 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot map {size_bytes:,} bytes of shared memory: {os.strerror(error)}")
        self._address, self._size_bytes = address, size_bytes
        self.__array_interface__ = {"shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self, unmap: Callable[[int, int], int] = _LIBC.munmap) -> None:  # its name is gone when Python ends
        if hasattr(self, "_address"):
            unmap(self._address, self._size_bytes)


class Segment:
    """A piece of shared memory of the process that made it.

    Args:
        number: Tells it from the others.
        size_bytes: Its size.
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
        """Return the memory as an array, which every part of it and every view keeps alive."""
        self._lent_after = _FORKS.count
        return np.asarray(self._memory)

    @property
    def is_elsewhere(self) -> bool:
        """Whether a child that was forked since it was lent may still look at it, which nobody here can know."""
        return self._lent_after != _FORKS.count

    def close(self) -> None:
        """Close the file, after which nobody else can map it. The memory is freed once no array of it is left."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


class Segments:
    """Segments that are used again once the arrays in them are gone: fresh memory costs a page fault every 4 KiB.

    Args:
        most_bytes: Bound on the bytes that are kept for later.
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
        """Return a segment of at least that size and an array of its bytes; it comes back when the array is gone."""
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
            return  # the copy of a forked child, whose parent still uses the memory
        with self._lock:
            kept_bytes = sum(one.size_bytes for one in self._free)
            is_whole = segment.file is not None and not segment.is_elsewhere and not self._is_closed
            if is_whole and kept_bytes + segment.size_bytes <= self._most_bytes:
                self._free.append(segment)
                return
            self._gone.append(segment.number)
            self._close(segment)

    def handed_out(self, segment: Segment) -> None:
        """Take note that nobody else has to map a segment any more, and that users may keep it for long."""
        with self._lock:
            if self._files > _MOST_FILES:
                self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._files -= segment.file is not None
        segment.close()

    def take_gone(self) -> list[int]:
        """Return the numbers of segments that were given up since the last call: others may unmap them."""
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
    """Return an array of some shape at the beginning of a piece of memory."""
    wanted = np.dtype(dtype)
    size_bytes = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
    found: NDArray[Any] = memory[:size_bytes].view(wanted).reshape(shape)
    return found
