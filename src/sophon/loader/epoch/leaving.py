"""Epochs that their consumer does not close: dropped ones, and those running when the interpreter exits.

Dropped epochs are closed by the garbage collector, which may run at any allocation, even in a thread that holds a lock
that the epoch's threads need, such as the lock of the loader's counts. So an epoch closed by the collector tells its
threads to end, and does not wait for them.

At exit the interpreter stops threads wherever they are. A thread stopped while it holds a lock never releases it, and
freeing the iterator would wait for that lock. So running epochs are closed earlier (`tests/loader/epoch/test_exit.py`).
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable

running: dict[object, Callable[[], None]] = {}
"""Objects with threads, and how to close them at exit."""
_exiting = threading.Event()


class _Collector:
    """Knows in which thread the garbage collector is running."""

    def __init__(self) -> None:
        self._thread: int | None = None
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        self._thread = threading.get_ident() if phase == "start" else None

    def is_here(self) -> bool:
        return self._thread == threading.get_ident()


by_collector = _Collector().is_here
"""Whether the garbage collector is running in this thread."""


def without_a_word() -> bool:
    """Return whether errors in this thread no longer matter because the interpreter is exiting."""
    return _exiting.is_set() and threading.current_thread().daemon


def _close_all() -> None:
    _exiting.set()
    for close in list(running.values()):
        close()


atexit.register(_close_all)
