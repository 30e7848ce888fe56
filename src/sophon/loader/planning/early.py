"""Decides when to plan in an epoch that started without a plan. The time is passed in, so that it can be tested.

A first plan is made as soon as every cut was tried a few times, and a better one each time that twice as many samples
have passed: the rules for costs become better by the square root of what they were learnt from. Planning takes a core
of the trainer's: where there are many samples it waits until it is but a small part of the time.

Concurrency: the caller sees to it that one thread at a time uses it.
"""

from __future__ import annotations

_REST = 5.0  # times what a plan took, until the next one


class Early:
    """Counts samples of an epoch.

    Args:
        first: After how many of them the first plan is made.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._next = first
        self._seen = 0
        self._not_before_s = 0.0

    def saw(self) -> None:
        """Note that a sample has passed."""
        self._seen += 1

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for a plan."""
        return self._seen >= self._next and now_s >= self._not_before_s

    def planned(self, took_s: float, now_s: float) -> None:
        """Note that a plan was made."""
        self._next = 2 * self._seen
        self._not_before_s = now_s + _REST * took_s
