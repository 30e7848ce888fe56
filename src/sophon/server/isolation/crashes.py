"""What made child processes crash, so that it is not tried again in every epoch.

A sample that crashed a child is not worked on again, and a pipeline that does so repeatedly is left alone for a while.
Both get smaller cuts meanwhile, so that children have to be restarted only now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache

_SAMPLES = 100_000  # remembered: 30 MB when there are that many
_PIPELINES = 256
_IN_A_ROW = 8
_REST_S = 60.0


class Crashes:
    """Remembers which samples and pipelines crashed a child process.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: LRUCache[Hashable, None] = LRUCache(_SAMPLES)
        self._in_a_row: LRUCache[Hashable, int] = LRUCache(_PIPELINES)
        self._rests_until_s: LRUCache[Hashable, float] = LRUCache(_PIPELINES)

    def expected(self, work: Hashable, sample: Hashable) -> bool:
        """Return whether a child would probably crash.

        Args:
            work: Pipeline and cut.
            sample: Data set and sample.
        """
        with self._lock:
            return (work, sample) in self._samples or self._clock() < self._rests_until_s.get(work, -1.0)

    def fell(self, work: Hashable, sample: Hashable) -> None:
        """Note that a child crashed."""
        with self._lock:
            self._samples[work, sample] = None
            count = self._in_a_row.get(work, 0) + 1
            self._in_a_row[work] = count
            if count >= _IN_A_ROW:
                self._rests_until_s[work] = self._clock() + _REST_S

    def stood(self, work: Hashable) -> None:
        """Note that a child did its work."""
        if self._in_a_row:
            with self._lock:
                self._in_a_row.pop(work, None)
