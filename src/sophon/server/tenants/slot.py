"""Where a task of the CPU budget runs, and how it is suspended while others have their turn."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Slot:
    """The place of one task.

    Concurrency: used by the task's thread and by the budget's other threads.

    Args:
        number: Number of the thread, from 0.

    Attributes:
        elsewhere_s: CPU seconds that other processes spent on the task; the task adds to this.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.elsewhere_s = 0.0
        self._lock = threading.Lock()
        self._hold: Callable[[bool], None] | None = None
        self._used_s: Callable[[], float] | None = None
        self._is_held = False

    @contextlib.contextmanager
    def holdable(self, hold: Callable[[bool], None], used_s: Callable[[], float] | None = None) -> Iterator[None]:
        """Let the budget suspend the task while the block runs.

        Args:
            hold: Suspends the work on the task when called with True, and resumes it when called with False.
            used_s: Returns the CPU seconds that the work has taken so far; None if they are not known.
        """
        with self._lock:
            self._hold, self._used_s = hold, used_s
        try:
            yield
        finally:
            with self._lock:
                if self._is_held:
                    hold(False)
                self._hold, self._used_s, self._is_held = None, None, False

    def hold(self) -> bool:
        """Suspend the task if possible; return whether it was suspended."""
        with self._lock:
            if self._hold is None:
                return False
            self._hold(True)
            self._is_held = True
            return True

    def used_s(self, most_s: float) -> float:
        """Return the CPU seconds that the task has taken elsewhere so far; `most_s` if not known, and never more."""
        with self._lock:
            return most_s if self._used_s is None else min(self._used_s(), most_s)

    def go_on(self) -> None:
        """Resume a suspended task."""
        with self._lock:
            if self._is_held and self._hold is not None:
                self._hold(False)
            self._is_held = False
