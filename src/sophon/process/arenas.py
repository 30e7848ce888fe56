"""Settings of glibc's malloc for processes that start and end many threads and move many large buffers.

At most one memory arena per core:

glibc lets threads allocate from separate arenas, up to eight per core. An arena grows to the most memory that any of
its threads ever needed at once, and keeps its free memory: a thread that fetches in one epoch may get the arena of a
thread that finished samples in another. In ten minutes of `sophon bench soak` that free memory came to a third of the
process, which was still growing by 7 to 10 percent. With one arena per core the process is a fifth smaller and grows by
4 percent, and no sample is delayed, since only as many threads as there are cores can allocate at the same time.

Buffers of a few megabytes are reused. A record batch is one such buffer; by default malloc maps fresh pages for each
one, which the kernel has to zero, and returns them afterwards. On loopback that was a quarter of a receiver's CPU time.

Limits: glibc only, and only if it has not fixed the number of arenas yet; elsewhere this does nothing. It also does
nothing if the user has set MALLOC_ARENA_MAX or GLIBC_TUNABLES.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

from sophon.process.cores import cores_here

_M_ARENA_MAX, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -8, -1, -3  # from malloc.h
_KEPT_BYTES = 64 << 20  # free memory kept at the end of an arena: two requests on each side of a queue
_BUFFER_BYTES = 16 << 20  # larger blocks are mapped and returned one by one: twice the largest record batch


@functools.cache
def bound_arenas() -> None:
    """Set the limit, once per process; call this before the first connection, because gRPC starts threads then."""
    if {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, cores_here())


@functools.cache
def keep_buffers() -> None:
    """Make malloc reuse freed buffers; done once per process."""
    told = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
    if told & os.environ.keys():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def use_malloc() -> None:
    """Make Arrow use malloc in this process and its children, unless the user has chosen another allocator.

    This must be called before anything imports pyarrow. Arrow's own allocator returns memory soon after it is freed.
    Flight copies every envelope into such memory, so on a slow link the kernel had to find and zero pages for each of
    them, which was a third of a node's CPU time.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
