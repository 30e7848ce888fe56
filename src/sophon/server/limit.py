"""A limit on bytes per second, for links that should not be saturated and for tests without a shaped link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_BURST_S = 0.02  # how many seconds' worth may be sent at once; small, so that even short transfers keep to the rate


class RateLimit:
    """A token bucket that makes its callers wait.

    Args:
        bytes_per_s: The rate.
        clock: Returns the time in seconds.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def take(self, size_bytes: int) -> None:
        """Return once `size_bytes` may be sent; senders are served in the order in which they ask."""
        with self._lock:
            now_s = self._clock()
            start_s = max(self._free_at_s, now_s - _BURST_S)
            self._free_at_s = start_s + size_bytes / self._bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)
