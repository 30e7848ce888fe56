"""A suspension that grows while what caused it repeats, and what had no space for its results."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from cachetools import LRUCache

IN_A_ROW = 3  # of one pipeline and cut: after these it rests
_FIRST_S = 1.0
_LONGEST_S = 60.0
_PIPELINES = 64  # remembered of each tenant


@dataclass
class Rest:
    """How often something went wrong, and when its suspension ends.

    Args:
        in_a_row: How often it went wrong.
        rest_s: How long the next suspension lasts.
        until_s: When the last one ends.
    """

    in_a_row: int = 0
    rest_s: float = _FIRST_S
    until_s: float = -1.0

    def fell(self, now_s: float, bound: int) -> None:
        """Record that it went wrong once more; suspend it if that was too often."""
        self.in_a_row += 1
        if self.in_a_row >= bound:
            self.until_s = now_s + self.rest_s
            self.rest_s = min(3 * self.rest_s, _LONGEST_S)


class Crowding:
    """Remembers which pipelines and cuts of which tenants give results that there is no space for.

    Such a result is made and thrown away, and its file is sent instead. A tenant that leaves its streams unread could
    keep the cores busy with that, so after a few in a row, or after one if there are other tenants, files are sent at
    once, for a while.

    Concurrency: used by all threads of the budget.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        is_shared: Whether there are other tenants, who wait meanwhile.
    """

    is_shared = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rests: defaultdict[int, LRUCache[Hashable, Rest]] = defaultdict(lambda: LRUCache(_PIPELINES))

    def expected(self, tenant: int, work: Hashable) -> bool:
        """Return whether there would probably be no space for a result.

        Args:
            tenant: Tenant whose work it is.
            work: Pipeline and cut.
        """
        if not self._rests:
            return False
        with self._lock:
            rest = self._rests[tenant].get(work)
            return rest is not None and self._clock() < rest.until_s

    def refused(self, tenant: int, work: Hashable) -> None:
        """Record that there was no space for a result."""
        with self._lock:
            now_s = self._clock()
            rest = self._rests[tenant].setdefault(work, Rest())
            if now_s >= rest.until_s:  # others were under way when it was suspended
                rest.fell(now_s, 1 if self.is_shared else IN_A_ROW)

    def fitted(self, tenant: int, work: Hashable) -> None:
        """Record that there was space for a result."""
        if self._rests:
            with self._lock:
                self._rests[tenant].pop(work, None)
