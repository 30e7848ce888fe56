"""Measures the workers and the consumer over a stretch of time, for the tuner; callers pass the time."""

from __future__ import annotations

import math

from sophon.loader.machine.tuner import STRETCH_S, STRETCH_SAMPLES, Seen


class Gauge:
    """Sums over a stretch of time.

    Time is counted while it passes, not when something has ended: a sample that takes longer than the stretch still
    keeps its worker busy.

    Args:
        now_s: The time at the start.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = self._last_s = now_s
        self._busy = 0
        self._waits = False
        self._cpu_share = 1.0
        self._clear()

    def _clear(self) -> None:
        self._samples = 0
        self._busy_s = self._waited_s = 0.0
        self._cpu_s = self._wall_s = 0.0
        self._fetching = True
        self._spare_bytes = math.inf

    def _pass(self, now_s: float) -> None:
        passed_s = now_s - self._last_s
        self._last_s = now_s
        self._busy_s += passed_s * self._busy
        self._waited_s += passed_s * self._waits

    def began(self, now_s: float) -> None:
        """Record that a worker has started a sample."""
        self._pass(now_s)
        self._busy += 1

    def ended(self, cpu_s: float, wall_s: float, fetching: bool, now_s: float) -> None:
        """Record a finished sample; `fetching` says whether there was more to ask for, and room for it."""
        self._pass(now_s)
        self._busy -= 1
        self._samples += 1
        self._cpu_s += cpu_s
        self._wall_s += wall_s
        self._fetching = self._fetching and fetching

    def waits(self, waits: bool, now_s: float) -> None:
        """Record that the consumer has started or stopped waiting."""
        self._pass(now_s)
        self._waits = waits

    def took(self, spare_bytes: float) -> None:
        """Record that the consumer has taken a batch, and how many bytes of later batches are ready."""
        self._spare_bytes = min(self._spare_bytes, spare_bytes)

    def look(self, now_s: float) -> Seen | None:
        """Return the measurements if a stretch is over, and begin the next."""
        if now_s - self._since_s < STRETCH_S or self._samples < STRETCH_SAMPLES:
            return None
        self._pass(now_s)
        if self._wall_s > 0:
            self._cpu_share = self._cpu_s / self._wall_s
        seen = Seen(
            seconds=now_s - self._since_s,
            samples=self._samples,
            waited_s=self._waited_s,
            busy_s=self._busy_s,
            cpu_s=self._busy_s * self._cpu_share,
            fetching=self._fetching,
            spare_bytes=0.0 if self._spare_bytes == math.inf else self._spare_bytes,
        )
        self._since_s = now_s
        self._clear()
        return seen
