"""The moment by which several calls have to be over together.

Each call has a timeout of its own. What takes many calls, such as opening a data set at a hundred nodes, also has an
end, and a call that is made shortly before it may not take longer than what is left.

Concurrency: an end applies to the thread that sets it; threads started from there set it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST_S = 0.05  # of a call that is made at the very end: Flight takes 0 for no limit at all
_END_S: ContextVar[float] = ContextVar("sophon-deadline", default=math.inf)


@contextmanager
def until(end_s: float) -> Iterator[None]:
    """Make all calls inside the block end by a moment of the monotonic clock, or by an earlier one set outside."""
    token = _END_S.set(min(end_s, _END_S.get()))
    try:
        yield
    finally:
        _END_S.reset(token)


def within(timeout_s: float) -> float:
    """Return how long a call may take: its own timeout, or what is left if that is less."""
    return min(timeout_s, max(_END_S.get() - time.monotonic(), _LEAST_S))
