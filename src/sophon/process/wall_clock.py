"""The date, which may be set while everything runs: for people and messages, never to wait by."""

from __future__ import annotations

import time


def date_s() -> float:
    """Return seconds since 1970, as this machine has them."""
    return time.time()
