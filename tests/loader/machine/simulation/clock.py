"""Virtual time: what is to happen, in the order of when."""

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A queue of things to do, and the time of the one being done."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Do something later; of two things at one time the one that was said first."""
        self._number += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._number, action, args))

    @property
    def next_s(self) -> float:
        """When something happens next."""
        return self._queue[0][0] if self._queue else float("inf")

    def step(self) -> None:
        """Do what comes next."""
        self.now_s, _, action, args = heapq.heappop(self._queue)
        self.steps += 1
        action(*args)
