"""The wall-clock time, which may be changed while the program runs: for display and messages, never for waiting."""

from __future__ import annotations

import time


def date_s() -> float:
    """Return the seconds since 1970, by this machine's clock."""
    return time.time()
