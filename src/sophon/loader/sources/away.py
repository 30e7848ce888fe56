"""Sources that do not answer: since when, how often they were asked, and what is reported about it.

A line is logged when nothing has come from a source for a few seconds, again at growing intervals, and when the source
answers again. Lines go to Python's logger `sophon.nodes`, which is silent unless the program sets up logging. While a
data set is being opened training has not started and nothing else is visible, so each line is also a warning.

Concurrency: called by all threads that fetch; while a data set is being opened, a separate thread watches the clock.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sophon.errors import Error
from sophon.process.renewal import renew_after_fork
from sophon.units import counted

LOG = logging.getLogger("sophon.nodes")
FIRST_S = 3.0  # seconds without an answer before the first report; about when users start to wonder
_LOOK_S = 0.25  # between two checks of the clock while a data set is being opened


class AwayWarning(UserWarning):
    """No storage node answers while a data set is being opened; opening is retried until the deadline."""


@dataclass
class _Absence:
    since_s: float
    tries: int = 0
    last: str = ""
    next_s: float = field(default_factory=lambda: FIRST_S)  # how long it must last before the next report
    was_said: bool = False

    def line(self, name: str, now_s: float, deadline_s: float) -> str | None:
        """Return the line to report now, if any."""
        away_s = now_s - self.since_s
        if away_s < self.next_s:
            return None
        self.next_s, self.was_said = max(2 * self.next_s, away_s + FIRST_S), True
        tries = f"after {counted(self.tries, 'try', 'tries')}; the last one: {self.last}"
        why = tries if self.tries else "the first try is still running"
        return f"no answer from {name} for {away_s:.0f} s, {why}. Retrying for up to {deadline_s:g} s in total"


class Absences:
    """Keeps track of the sources that do not answer.

    Args:
        names: Name of each source for messages.
        deadline_s: Seconds without any answer before an error is raised.
        clock: Monotonic seconds.
    """

    def __init__(self, names: Sequence[str], deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = list(names)
        self._deadline_s = deadline_s
        self._clock = clock
        self._away: dict[int, _Absence] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock, in a forked child."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Absences, (self._names, self._deadline_s)  # another process has its own connections

    def replaced(self, source: int, name: str) -> None:
        """Record that another node has taken the number of a source."""
        with self._lock:
            self._names[source] = name
            self._away.pop(source, None)

    def failed(self, source: int, error: Error, since_s: float) -> None:
        """Record that a request has failed.

        Args:
            source: Number of the source that it was sent to.
            error: The error.
            since_s: When something was last received for the request, or when it was sent.
        """
        with self._lock:
            absence = self._away.setdefault(source, _Absence(since_s))
            absence.tries += 1
            absence.last = str(error).removeprefix(f"{self._names[source]}: ")
            line = absence.line(self._names[source], self._clock(), self._deadline_s)
        if line is not None:
            LOG.warning("%s", line, extra={"event": "away", "fields": {"node": self._names[source]}})

    def is_away(self, source: int) -> bool:
        """Return whether a source has failed since it last answered."""
        return source in self._away

    def answered(self, source: int) -> None:
        """Record that a reply has arrived."""
        if source not in self._away:  # nearly always; a lock for every sample would cost more
            return
        with self._lock:
            absence = self._away.pop(source, None)
        if absence is not None and absence.was_said:
            away_s = self._clock() - absence.since_s
            tries = counted(absence.tries, "try", "tries")
            text = f"{self._names[source]} answers again, after {away_s:.0f} s and {tries}"
            LOG.warning("%s", text, extra={"event": "back", "fields": {"node": self._names[source]}})

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Report absences while a data set is being opened, even during an attempt."""
        opening = _Opening(self, *_users_line())
        opening.start()
        try:
            yield
        finally:
            opening.end()
            opening.join()
        if opening.raised is not None:  # if the user has turned warnings into errors
            raise opening.raised

    def opening_line(self, since_s: float, said: _Absence) -> str | None:
        """Return the line about a data set that no source has opened yet."""
        with self._lock:
            said.since_s = since_s
            said.tries = sum(absence.tries for absence in self._away.values())
            last = [absence.last for absence in self._away.values()]
        said.last = last[-1] if last else ""
        return said.line(", ".join(filter(None, self._names)), self._clock(), self._deadline_s)

    def now_s(self) -> float:
        """Return the time."""
        return self._clock()


class _Opening(threading.Thread):
    """Watches the clock while a data set is being opened, and makes warnings point to the user's line."""

    def __init__(self, absences: Absences, file: str, line: int) -> None:
        super().__init__(name="sophon-opening", daemon=True)
        self._absences = absences
        self._place = file, line
        self._since_s = absences.now_s()
        self._said = _Absence(self._since_s)
        self._ended = threading.Event()
        self.raised: Warning | None = None

    def run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            line = self._absences.opening_line(self._since_s, self._said)
            if line is not None:
                try:
                    warnings.warn_explicit(line, AwayWarning, *self._place)
                except AwayWarning as warning:
                    self.raised = warning
                    return

    def end(self) -> None:
        """Stop reporting absences."""
        self._ended.set()


def _users_line() -> tuple[str, int]:
    """Return the file and line of the first caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in ("sophon", "contextlib"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
