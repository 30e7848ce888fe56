"""Which sample gets which place in relaxed order."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Placing = tuple[int, int]  # a position and the place that its sample gets


class Placement:
    """Which sample gets which place: first come, first served, except for samples that have waited long enough.

    A sample is *due* when the batch being filled is the last one that it may be in. Batches are filled one after the
    other and no more samples become due in one than it has places, so it suffices that no batch is left with fewer free
    places than samples that are due: then the same is true of every later batch.

    Args:
        count: Samples in the epoch.
        batch_size: Samples in a batch.
        max_delay: How many batches late a sample may come.
        latest: For every position, the last batch that its sample may be in; ascending, never before the sample's
            batch in strict order, and the same for at most `batch_size` positions. By default `max_delay` batches after
            its own.
    """

    def __init__(self, count: int, batch_size: int, max_delay: int, latest: NDArray[np.int64] | None = None) -> None:
        self.position_at = np.full(count, -1, np.int64)
        self._batch_size = batch_size
        self._next = 0
        self._parked: list[int] = []  # finished, without a place
        batches = -(-count // batch_size)
        if latest is None:
            latest = np.arange(count) // batch_size + min(max_delay, batches)
        self._latest = np.minimum(latest, batches).astype(np.int32)  # one past the last batch: the sample may be in any
        self._unplaced: list[int] = np.bincount(self._latest, minlength=batches).tolist()

    def add(self, position: int) -> list[Placing]:
        """Record a finished sample; return which positions get which places now."""
        heapq.heappush(self._parked, position)
        placed: list[Placing] = []
        while self._parked and self._may_have_next(self._parked[0]):
            position = heapq.heappop(self._parked)
            self.position_at[self._next] = position
            self._unplaced[self._latest[position]] -= 1
            placed.append((position, self._next))
            self._next += 1
        return placed

    def _may_have_next(self, position: int) -> bool:
        filling = self._next // self._batch_size
        free = (filling + 1) * self._batch_size - self._next
        # Samples that were due earlier already have their places.
        return bool(self._latest[position] <= filling) or self._unplaced[filling] < free
