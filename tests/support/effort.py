"""What work costs beside other work: ratios of CPU seconds, which tell the same on a slow or busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_ROUNDS = 7


def least_cpu_s(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of this thread that a piece of work takes in the best of some rounds."""
    found = []
    for _ in range(_ROUNDS):
        start_s = time.thread_time()
        work()
        found.append(time.thread_time() - start_s)
    return min(found)
