"""Threads that do the same work and whose number can change while they run.

Concurrency: the owner of a crew calls `staff` and `is_done` while it holds the lock that the threads take for their
work.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable


class Crew:
    """A changing number of threads that do the same work.

    Args:
        name: Name of the threads; a number is appended.
        work: What each thread runs. It calls `is_done` between pieces of work.
        wanted: Returns how many threads there should be.
        on_crash: Called with the error that ended a thread.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        wanted: Callable[[], int],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._work = work
        self._wanted = wanted
        self._on_crash = on_crash
        self._names = itertools.count()
        self._at_work: set[threading.Thread] = set()
        self._threads: set[threading.Thread] = set()
        self._is_stopped = False

    def staff(self) -> None:
        """Start the threads that are missing."""
        while len(self._at_work) < self._wanted() and not self._is_stopped:
            name = f"{self._name}-{next(self._names)}"
            thread = threading.Thread(target=self._run, args=(self._work, self._on_crash), name=name, daemon=True)
            self._at_work.add(thread)
            try:
                thread.start()
            except BaseException:  # the system allows no more threads
                self._at_work.discard(thread)
                raise
            self._threads.add(thread)  # a thread that was never started cannot be joined

    def is_done(self) -> bool:
        """Return whether the calling thread should end; if so, it is no longer counted."""
        if not self._is_stopped and len(self._at_work) <= self._wanted():
            return False
        self._at_work.discard(threading.current_thread())
        return True

    def stop(self) -> None:
        """Make every thread end when it next calls `is_done`; the owner of the crew wakes them.

        The reference to their work is dropped, so that its owner is freed at once and not by the garbage collector.
        """
        self._is_stopped = True
        self._wanted = _none
        self._work = self._on_crash = _nothing

    def has(self, thread: threading.Thread) -> bool:
        """Return whether a thread belongs to the crew."""
        return thread in self._threads

    def join(self, end_s: float) -> None:
        """Wait for the threads to end, at most until a given time of the monotonic clock."""
        for thread in list(self._threads):
            thread.join(max(0.0, end_s - time.monotonic()))

    def _run(self, work: Callable[[], None], on_crash: Callable[[BaseException], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread that dies silently would hang the training
            on_crash(error)
        finally:
            self._at_work.discard(threading.current_thread())


def _nothing(*_: object) -> None:
    return None


def _none() -> int:
    return 0
