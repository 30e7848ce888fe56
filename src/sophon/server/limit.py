"""A limit on bytes per second, for links that should not be filled and for tests without a shaped link."""

from __future__ import annotations

import threading
import time

_BURST_S = 0.02  # of the rate that may go out at once; small, so that short transfers see the rate too


class RateLimit:
    """A token bucket that makes its callers wait.

    Args:
        bytes_per_s: The rate.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def take(self, size_bytes: int) -> None:
        """Return when that many bytes may be sent; senders are served in the order they ask."""
        with self._lock:
            now_s = time.monotonic()
            start_s = max(self._free_at_s, now_s - _BURST_S)
            self._free_at_s = start_s + size_bytes / self._bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)
