"""Memory that an epoch has used and freed, given back to the system.

The C library keeps what threads free in arenas, eight per core, and each of them grows to the most that any of its
threads has ever used at once. In ten minutes of `sophon bench soak` a third of the process's memory was such: free, and
kept. A training of weeks would creep towards it, and be taken for one that leaks.

Limits: glibc only; elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

_LEAST_S = 10.0  # between two times
_SHARE = 0.001  # of the time that this may take: it grows with the heap, which may be large and not ours


class _Keeper:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_s = 0.0
        try:
            self._trim: Any = ctypes.CDLL(None).malloc_trim
        except (AttributeError, OSError, TypeError):  # another C library, or another system
            self._trim = None

    def give_back(self) -> None:
        """Give free memory back, unless that was done a moment ago."""
        if self._trim is None or not self._lock.acquire(blocking=False):
            return
        try:
            start_s = time.monotonic()
            if start_s >= self._next_s:
                self._trim(0)
                end_s = time.monotonic()
                self._next_s = end_s + max(_LEAST_S, (end_s - start_s) / _SHARE)
        finally:
            self._lock.release()


give_back = _Keeper().give_back
"""Called at the end of every whole epoch."""
