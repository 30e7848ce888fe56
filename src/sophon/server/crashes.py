"""What brought workers down, so that it is not tried again with every epoch.

A sample that did is not worked on again; a pipeline that does it time after time is left alone for a while. Both are
answered with smaller cuts meanwhile, and each costs the start of a worker only now and then.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

_SAMPLES = 100_000  # remembered: a few megabytes
_PIPELINES = 256
_IN_A_ROW = 8
_REST_S = 60.0


class Crashes:
    """Remembers.

    Args:
        clock: Tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: OrderedDict[Hashable, None] = OrderedDict()
        self._in_a_row: OrderedDict[Hashable, int] = OrderedDict()
        self._rests_until_s: OrderedDict[Hashable, float] = OrderedDict()

    def expected(self, work: Hashable, sample: Hashable) -> bool:
        """Return whether a worker would likely fall.

        Args:
            work: What is done: pipeline and cut.
            sample: What it is done to.
        """
        with self._lock:
            return (work, sample) in self._samples or self._clock() < self._rests_until_s.get(work, -1.0)

    def fell(self, work: Hashable, sample: Hashable) -> None:
        """Take note that a worker fell."""
        with self._lock:
            _put(self._samples, (work, sample), None, _SAMPLES)
            count = self._in_a_row.get(work, 0) + 1
            _put(self._in_a_row, work, count, _PIPELINES)
            if count >= _IN_A_ROW:
                _put(self._rests_until_s, work, self._clock() + _REST_S, _PIPELINES)

    def stood(self, work: Hashable) -> None:
        """Take note that a worker did its work."""
        if self._in_a_row:
            with self._lock:
                self._in_a_row.pop(work, None)


def _put(table: OrderedDict[Any, Any], key: Hashable, value: object, most: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
