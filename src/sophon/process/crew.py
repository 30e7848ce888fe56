"""Threads that do the same work, and come and go while it is under way.

Concurrency: whoever owns a crew calls `staff` and `is_done` with the lock held that its threads take for their work.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable


class Crew:
    """As many threads as are wanted at the moment.

    Args:
        name: Name of the threads, which are numbered.
        work: What each of them does. It asks `is_done` between two pieces of work.
        wanted: Returns how many there are to be.
        on_crash: Told of the error that ended a thread.
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
            except BaseException:  # there are no more threads to be had
                self._at_work.discard(thread)
                raise
            self._threads.add(thread)  # one that could not be started cannot be waited for

    def is_done(self) -> bool:
        """Return whether the calling thread is to end; if so, it no longer counts."""
        if not self._is_stopped and len(self._at_work) <= self._wanted():
            return False
        self._at_work.discard(threading.current_thread())
        return True

    def stop(self) -> None:
        """Have all threads end when they next ask; whoever owns the crew wakes them.

        What they did is let go of, so that its owner is freed at once and not by the garbage collector.
        """
        self._is_stopped = True
        self._wanted = _none
        self._work = self._on_crash = _nothing

    def has(self, thread: threading.Thread) -> bool:
        """Return whether a thread belongs to the crew."""
        return thread in self._threads

    def join(self, end_s: float) -> None:
        """Wait for the threads to end, until a time of the monotonic clock."""
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
