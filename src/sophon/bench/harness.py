"""Times contestants against each other: interleaved, in CPU time.

Machines are shared and noisy. Contestants therefore take turns on every item of every round, so that a slow moment hits
all of them; the thread's CPU time is measured, not wall time; and the reported figure is the median of the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
OnStep = Callable[[str, int, int], None]
"""Called with the name of the next step, its number and the number of steps."""


def nothing(name: str, number: int, count: int) -> None:
    """Ignore progress."""


_MIN_ROUNDS = 3


def race_ms(
    contestants: Mapping[str, Callable[[Item], object]], items: Sequence[Item], seconds: float
) -> dict[str, float]:
    """Return the CPU milliseconds that each contestant needs per item.

    Args:
        contestants: Functions to time, by name; each is called with an item.
        items: Inputs for the contestants.
        seconds: Time to spend; at least three rounds.
    """
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    for item in items[:2]:  # caches, allocators and lazy imports settle before anything counts
        for run in contestants.values():
            run(item)
    end = time.monotonic() + seconds
    while len(next(iter(rounds.values()))) < _MIN_ROUNDS or time.monotonic() < end:
        spent_ns = dict.fromkeys(contestants, 0)
        for turn, item in enumerate(items):
            for name in _rotated(list(contestants), turn):
                start_ns = time.thread_time_ns()
                contestants[name](item)
                spent_ns[name] += time.thread_time_ns() - start_ns
        for name, total_ns in spent_ns.items():
            rounds[name].append(total_ns / len(items) / 1e6)
    return {name: statistics.median(values) for name, values in rounds.items()}


def _rotated(names: list[str], turn: int) -> list[str]:
    """Return the names in a changing order, so that no contestant always benefits from a warm cache."""
    at = turn % len(names)
    return names[at:] + names[:at]


@contextmanager
def one_torch_thread(torch: Any) -> Iterator[None]:
    """Keep torch on one core while it is timed; None if torch is not installed."""
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
