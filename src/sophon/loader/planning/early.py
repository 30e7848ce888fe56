"""Decides when to plan in an epoch that started without a plan. The time is passed in, so that this can be tested.

A first plan is made as soon as every cut has been tried a few times, and a better one each time the number of samples
has doubled: cost rules improve with the square root of the number of samples behind them. Planning takes one of the
trainer's cores, so with many samples the next plan waits until planning takes only a small part of the time.

Concurrency: the caller makes sure that only one thread at a time uses this.
"""

from __future__ import annotations

_REST = 5.0  # times the duration of a plan: the pause before the next one


class Early:
    """Counts samples of an epoch.

    Args:
        first: Number of samples after which the first plan is made.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._next = first
        self._seen = 0
        self._not_before_s = 0.0

    def saw(self) -> None:
        """Record that a sample has passed."""
        self._seen += 1

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for a plan."""
        return self._seen >= self._next and now_s >= self._not_before_s

    def planned(self, took_s: float, now_s: float) -> None:
        """Record that a plan was made."""
        self._next = 2 * self._seen
        self._not_before_s = now_s + _REST * took_s
