"""Waiting for events: as long as it takes on a busy machine, and not for ever where nothing comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# No test says with this how fast something is: it tells what hangs from what is slow, on any machine.
HANG_S = 120.0
_LOOK_S = 0.01


def wait_until(condition: Callable[[], Any], what: str = "what was waited for has not happened") -> None:
    """Return when a condition holds; fail if it never does."""
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(_LOOK_S)
