"""A deadline shared by several calls.

Each call has its own timeout. An operation that takes many calls, such as opening a data set at a hundred nodes, also
has an overall deadline, and a call made shortly before it may not take longer than the time left.

Concurrency: a deadline applies to the thread that sets it; a thread started from there has to set it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST_S = 0.05  # for a call made at the very end: to Flight, 0 means no limit at all
_END_S: ContextVar[float] = ContextVar("sophon-deadline", default=math.inf)


@contextmanager
def until(end_s: float) -> Iterator[None]:
    """Make all calls inside the block end by a time on the monotonic clock, or by an enclosing block's earlier one."""
    token = _END_S.set(min(end_s, _END_S.get()))
    try:
        yield
    finally:
        _END_S.reset(token)


def within(timeout_s: float) -> float:
    """Return how long a call may take: its own timeout, or the time left if that is less."""
    return min(timeout_s, max(_END_S.get() - time.monotonic(), _LEAST_S))
