"""Epochs that their consumer does not end: dropped ones, and those under way when the interpreter ends.

Dropped ones are closed by the garbage collector. It may run at any allocation, even while its thread holds a lock that
the epoch's threads need: the loader's counts, say. So an epoch that is closed by it tells its threads to end, and does
not wait until they have.

At its end the interpreter stops threads wherever they are. One that holds a lock then would hold it forever, and
whatever frees the iterator would wait for it. So all that runs is closed before (`tests/loader/epoch/test_exit.py`).
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable

running: dict[object, Callable[[], None]] = {}
"""What has threads, and how to close it at the end."""
_exiting = threading.Event()


class _Collector:
    """Knows where the garbage collector is at work."""

    def __init__(self) -> None:
        self._thread: int | None = None
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        self._thread = threading.get_ident() if phase == "start" else None

    def is_here(self) -> bool:
        return self._thread == threading.get_ident()


by_collector = _Collector().is_here
"""Whether it is the garbage collector that has interrupted this thread."""


def without_a_word() -> bool:
    """Return whether this thread is one that nobody listens to any more: the interpreter ends, and it with it."""
    return _exiting.is_set() and threading.current_thread().daemon


def _close_all() -> None:
    _exiting.set()
    for close in list(running.values()):
        close()


atexit.register(_close_all)
