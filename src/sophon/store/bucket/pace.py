"""Limits concurrent requests, and lowers the limit when an object store asks for fewer.

The limit is halved on a 503 SlowDown (at most once a second, since all running requests may get one), and grows by one
after as many answers as its current value, as in TCP.

Concurrency: a thread waits in `enter` until it may make its request.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

MOST_GETS: Final = 256  # of one process, over all its data sets: four data sets with 64 reads each
MOST_BYTES: Final = 512 << 20
_HALVE_S: Final = 1.0


class Pace:
    """The requests of one process.

    Args:
        most: Highest number of concurrent requests.
        most_bytes: Highest number of bytes that they may request together; one request is always allowed.
    """

    def __init__(self, most: int = MOST_GETS, most_bytes: int = MOST_BYTES) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.renew()

    def renew(self) -> None:
        """Start over in a forked child."""
        self._free = threading.Condition(threading.Lock())
        self._limit = float(self.most)
        self._halved_s = 0.0
        self.under_way = 0
        self.under_way_bytes = 0
        self.peak = 0
        self.peak_bytes = 0

    @property
    def limit(self) -> float:
        """How many concurrent requests are allowed now."""
        return self._limit

    def enter(self, size_bytes: int) -> None:
        """Wait until one more request may be made; call `leave` afterwards, whatever the result."""
        with self._free:
            while not self._may(size_bytes):
                self._free.wait()
            self.under_way += 1
            self.under_way_bytes += size_bytes
            self.peak = max(self.peak, self.under_way)
            self.peak_bytes = max(self.peak_bytes, self.under_way_bytes)

    def leave(self, size_bytes: int, is_answered: bool) -> None:
        """Count a request that has ended; one that was answered lets the limit grow again."""
        with self._free:
            self.under_way -= 1
            self.under_way_bytes -= size_bytes
            if is_answered and self._limit < self.most:
                self._limit = min(self._limit + 1 / self._limit, self.most)
            self._free.notify()

    def _may(self, size_bytes: int) -> bool:
        if not self.under_way:
            return True
        return self.under_way < self._limit and self.under_way_bytes + size_bytes <= self.most_bytes

    def slow_down(self) -> None:
        """Record that an object store asked for fewer requests."""
        with self._free:
            now_s = time.monotonic()
            if now_s - self._halved_s >= _HALVE_S:
                self._halved_s = now_s
                self._limit = max(min(self._limit, self.under_way + 1) / 2, 1.0)


PACE = Pace()
"""The pace of this process."""
os.register_at_fork(after_in_child=PACE.renew)
