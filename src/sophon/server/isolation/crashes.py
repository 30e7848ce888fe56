"""Remembers what made child processes crash, so that it is not tried again in every epoch.

A sample that crashed a child is not worked on again, and the ops of a tenant whose work repeatedly crashes children are
suspended for a while, three times as long each time. In both cases smaller cuts are sent instead, so children rarely
have to be restarted. Other tenants are not affected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache

from sophon.server.tenants.rest import IN_A_ROW, Rest

_SAMPLES = 10_000  # remembered per tenant: 3 MB if there are that many
_PIPELINES = 64  # remembered per tenant
_ALONE, _SHARED = 8, 1  # crashes of one tenant within `_LONG_S`, after which all its work is suspended
_LONG_S = 60.0


class _OfTenant:
    def __init__(self) -> None:
        self.samples: LRUCache[Hashable, None] = LRUCache(_SAMPLES)
        self.rests: LRUCache[Hashable, Rest] = LRUCache(_PIPELINES)
        self.own = Rest()
        self.last_s = 0.0


class Crashes:
    """Remembers which samples and pipelines of which tenants crashed a child process.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        is_shared: Whether there are other tenants, who wait while a child is restarted.
    """

    is_shared = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tenants: dict[int, _OfTenant] = {}

    def expected(self, tenant: int, work: Hashable, sample: Hashable) -> bool:
        """Return whether a child would probably crash.

        Args:
            tenant: Tenant whose work it is.
            work: Pipeline and cut.
            sample: Data set and sample.
        """
        of = self._tenants.get(tenant)
        if of is None:
            return False
        with self._lock:
            now_s = self._clock()
            rest = of.rests.get(work)
            resting = now_s < of.own.until_s or (rest is not None and now_s < rest.until_s)
            return resting or (work, sample) in of.samples

    def fell(self, tenant: int, work: Hashable, sample: Hashable) -> None:
        """Record that a child crashed."""
        with self._lock:
            of = self._tenants.setdefault(tenant, _OfTenant())
            now_s = self._clock()
            if now_s > of.last_s + _LONG_S + of.own.rest_s:
                of.own = Rest()
            of.last_s = now_s
            of.samples[work, sample] = None
            rest = of.rests.setdefault(work, Rest())
            rest.fell(now_s, IN_A_ROW)
            of.own.fell(now_s, _SHARED if self.is_shared else _ALONE)

    def stood(self, tenant: int, work: Hashable) -> None:
        """Record that a child completed its work."""
        of = self._tenants.get(tenant)
        if of is not None:
            with self._lock:
                of.rests.pop(work, None)
