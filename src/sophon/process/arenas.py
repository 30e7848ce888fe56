"""How glibc's malloc is set up in processes whose threads come and go, and which move many large buffers.

One memory arena per core at most:

glibc lets threads allocate from separate arenas, up to eight per core. An arena grows to the most memory that any of
its threads ever needed at once, and keeps what is free: a thread that fetches in one epoch may get the arena of a
thread that finished samples in another. In ten minutes of `sophon bench soak` that free memory was a third of the
process, which was still growing by 7 to 10 percent. With one arena per core the process is a fifth smaller and grows by
4 percent, and no sample comes later: no more threads than there are cores can allocate at the same time.

Buffers of some megabytes are used again: a record batch is one, and by default malloc maps fresh pages for each and
gives them back, which the kernel has to fill with zeros first. On loopback that was a quarter of a receiver's CPU time.

Limits: glibc only, and only if it has not fixed the number of arenas yet; elsewhere this does nothing. It also does
nothing where MALLOC_ARENA_MAX or GLIBC_TUNABLES is set: then the user has decided.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

from sophon.process.cores import cores_here

_M_ARENA_MAX, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -8, -1, -3  # of malloc.h
_KEPT_BYTES = 64 << 20  # free memory at the end of an arena that is kept: two requests on both sides of a queue
_BUFFER_BYTES = 16 << 20  # larger ones are mapped and given back one by one: twice the largest record batch


@functools.cache
def bound_arenas() -> None:
    """Set the limit, once per process; call it before the first connection, with which gRPC starts threads."""
    if {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, cores_here())


@functools.cache
def keep_buffers() -> None:
    """Have freed buffers used again, once per process."""
    told = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
    if told & os.environ.keys():
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
