"""Large buffers that are reused.

Each record batch of a node needs a buffer of up to a few megabytes, for a moment. Fresh memory costs more than filling
it: the kernel has to find and zero every page. malloc keeps freed memory, but separately for each thread, and any
reading thread may need the next buffer. So freed buffers are kept here, and the last one to be freed is used first,
since the caches still hold it.

Concurrency: any thread may take a buffer, and the thread that drops the last reference returns it, possibly during a
garbage collection; so there is no lock, only a deque.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

_LEAST_BYTES = 1 << 16  # malloc is quick with less
_SLAB_BYTES = 9 << 20  # the largest run of raw samples with its envelope; pages that are not written to take no memory
_KEPT = 8  # a few for each stream of a few trainers

_free: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT)


def lend(size_bytes: int) -> NDArray[np.uint8]:
    """Return a buffer with arbitrary content; once nothing refers to the buffer, it is reused."""
    if not _LEAST_BYTES <= size_bytes <= _SLAB_BYTES:
        return np.empty(size_bytes, np.uint8)
    try:
        slab = _free.pop()
    except IndexError:
        slab = np.empty(_SLAB_BYTES, np.uint8)
    lent = slab[:size_bytes]
    weakref.finalize(lent, _free.append, slab).atexit = False
    return lent
