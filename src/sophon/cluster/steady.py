"""When relays are started again for other nodes: at once, but the less often, the more often nodes come and go.

Every change restarts all relays of a registry. A node that keeps leaving and coming back, by fault or on purpose, would
otherwise keep all of them from working; trainers ask the nodes themselves in the meantime.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_PAUSES_S = (0.0, 1.0, 3.0, 9.0, 30.0, 60.0)  # between two changes: a relay is ready a second or two after its start
_CALM_S = 120.0  # without a change until the next is taken over at once
T = TypeVar("T")


class Steady(Generic[T]):
    """Follows a value that changes, not too often.

    Args:
        value: The value at the start.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._since_s = 0.0
        self._changes = 0

    def look(self, found: T, now_s: float) -> T:
        """Return the value to use, given the current one."""
        if found != self.value:
            if self._changes and now_s - self._since_s > _CALM_S:
                self._changes = 0
            if not self._changes or now_s - self._since_s >= _PAUSES_S[min(self._changes, len(_PAUSES_S)) - 1]:
                self.value, self._since_s = found, now_s
                self._changes += 1
        return self.value
