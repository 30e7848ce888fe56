"""Who gets which place in relaxed order."""

from __future__ import annotations

import heapq

import numpy as np

Placing = tuple[int, int]  # a position and the place that its sample gets


class Placement:
    """Who gets which place in relaxed order: first come, first served, but for those who have waited long enough.

    A sample is *due* when the batch being filled is the last one that it may come in. Batches are filled one after the
    other and samples become due in whole batches, so it suffices that no batch is left with fewer free places than
    samples that are due: then no later batch can be either.
    """

    def __init__(self, count: int, batch_size: int, max_delay: int) -> None:
        self.position_at = np.full(count, -1, np.int64)
        self._batch_size = batch_size
        self._max_delay = max_delay
        self._next = 0
        self._parked: list[int] = []  # finished, without a place
        self._unplaced = [min(batch_size, count - start) for start in range(0, count, batch_size)]

    def add(self, position: int) -> list[Placing]:
        """Take note of a finished sample; return who gets which place now."""
        heapq.heappush(self._parked, position)
        placed: list[Placing] = []
        while self._parked and self._may_have_next(self._parked[0]):
            position = heapq.heappop(self._parked)
            self.position_at[self._next] = position
            self._unplaced[position // self._batch_size] -= 1
            placed.append((position, self._next))
            self._next += 1
        return placed

    def _may_have_next(self, position: int) -> bool:
        filling = self._next // self._batch_size
        due_batch = filling - self._max_delay
        if position // self._batch_size <= due_batch or due_batch < 0:
            return True
        free = (filling + 1) * self._batch_size - self._next
        # Samples of earlier batches were due earlier, and have their places.
        return self._unplaced[due_batch] < free
