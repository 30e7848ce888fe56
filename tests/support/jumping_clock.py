"""A wall clock that jumps while a program runs; tests.support.jumped_server installs it in a server.

`time.time` and what Python makes of it are moved; the monotonic clock is not, as on a machine whose date is set.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FLAG = "SOPHON_TEST_CLOCK"  # path of a file that holds the seconds to jump by, once there is one

_time, _time_ns = time.time, time.time_ns


def _jump_s() -> float:
    flag = Path(os.environ[FLAG])
    return float(flag.read_text()) if flag.exists() else 0.0


def install() -> None:
    """Make the clock jump as soon as the file is there."""
    time.time = lambda: _time() + _jump_s()
    time.time_ns = lambda: _time_ns() + int(_jump_s() * 1e9)


def remove() -> None:
    """Put the real clock back."""
    time.time, time.time_ns = _time, _time_ns
