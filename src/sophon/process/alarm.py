"""A flag that any thread may set, for a thread that waits for it together with something that the kernel knows.

Concurrency: `set` by any thread; `wait` and `clear` by one. What was set before `clear` is not told again, so whoever
clears an alarm looks afterwards.
"""

from __future__ import annotations

import os
import select
import threading
import weakref


class Alarm:
    """A flag with a descriptor that can be read while the flag is set."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._is_set = False
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._reading, self._writing)

    @property
    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._reading

    def set(self) -> None:
        """Set the flag; costs nothing if it is set already."""
        if self._is_set:
            return
        with self._lock:
            if not self._is_set:
                os.write(self._writing, b"!")
                self._is_set = True

    def clear(self) -> None:
        """Take the flag back."""
        with self._lock:
            if self._is_set:
                os.read(self._reading, 1)
                self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set, or until the time is up; return whether it is set."""
        if not self._is_set:
            waiting = select.poll()
            waiting.register(self._reading, select.POLLIN)
            waiting.poll(1000 * seconds)
        return self._is_set


def _close(*numbers: int) -> None:
    for number in numbers:
        os.close(number)
