"""Children that are forked by tests, which end or do not."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.support.waiting import HANG_S


def ends_well(child: Callable[[], Any]) -> bool:
    """Return whether what runs in a forked child comes to its end, without an error."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        try:
            child()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent is told by the exit code
            traceback.print_exc()
        finally:
            os._exit(1)
    end_s = time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False
