"""Adjusts the workers, the concurrent requests and the bytes read ahead to the measured bottleneck.

A state machine like `machine`: it gets the measurements of each stretch of time and returns the setting for the next.
It reads no clock, so that tests can set the time.

- The consumer hardly waits: there is nothing to gain, and nothing is changed.
- It waits while workers have nothing to do: fetching is the bottleneck. Twice as many requests are tried.
- It waits while workers are busy: finishing is the bottleneck. While they do not use all cores, one more worker is
  tried; if that does not help, they block each other (the GIL), and one fewer is tried.
- It waits while the buffer is full: the engine reports it immediately (`deepen`), and the bound doubles, up to
  `buffer_bytes`.
- It does not wait, and for a while more than half of the bound has always been finished and ready: half of the bound
  would have been enough, so the bound is halved, but never below its initial value. A bound that has to grow again is
  kept four times as long, so that it does not go up and down forever.

A trial that does not pay off is reverted, and not repeated until conditions have changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

STRETCH_S = 0.25  # several record batches of 50 ms; a few trials fit into the first seconds of a run
STRETCH_SAMPLES = 16  # with fewer, chance decides
_WAITS = 0.05  # share of the time that the consumer waits; if it is less, there is nothing to gain
_IDLE = 0.3  # share of the workers' time; if they are idle for longer, fetching is the bottleneck
_SATURATED = 0.85  # share of the cores in use by workers; fetching and the consumer need some too
_PAYS = 1.05  # rate of a trial, relative to the rate before, from which it pays off
_WORTH_LESS = 0.98  # rate relative to the rate before: if fewer workers do nearly as well, fewer are kept
_MOVED = 1.3  # rate relative to the settled one: conditions have changed, and trials start again
_PATIENCE = 8  # stretches in a row for which this must last
_SPARE = 0.5  # share of the bytes ahead: if it is never used, half of them are released
_KEPT_LONGER = 4  # factor on the number of stretches, each time that released memory was needed after all


@dataclass(frozen=True)
class Setting:
    """The tuned values.

    Args:
        workers: Threads that finish samples.
        requests: Requests in flight at once.
        ahead_bytes: Bound on the bytes held for samples that are asked for and not yet taken.
    """

    workers: int
    requests: int
    ahead_bytes: int


@dataclass(frozen=True)
class Seen:
    """What happened in a stretch of time.

    Args:
        seconds: Length of the stretch.
        samples: Number of samples finished.
        waited_s: Seconds that the consumer waited.
        busy_s: Seconds that workers were busy, summed.
        cpu_s: CPU seconds that workers used, summed.
        fetching: Whether there was something to ask for, and room for it, all the time.
        spare_bytes: Smallest number of bytes ready in finished batches after the consumer had taken one.
    """

    seconds: float
    samples: int
    waited_s: float
    busy_s: float
    cpu_s: float
    fetching: bool = True
    spare_bytes: float = 0.0

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


class Tuner:
    """Finds the setting for one loader, and keeps it from one epoch to the next.

    Args:
        start: Initial setting.
        most: Upper bounds; a value that equals the start is fixed.
        cores: Number of cores this process may use.
    """

    def __init__(self, start: Setting, most: Setting, cores: int) -> None:
        self.setting = start
        self.trials = 0
        self.most = most
        self._cores = cores
        self._before: tuple[Setting, float] | None = None  # the running trial: the setting to return to, and its rate
        self._settling = False
        self._failed: set[tuple[str, int]] = set()
        self._settled_rate = 0.0
        self._moved = 0
        self._least_bytes = start.ahead_bytes
        self._spared = 0
        self._spare_patience = _PATIENCE
        self._gave_back = False

    def begin(self) -> None:
        """Begin an epoch: a running trial continues, but its first stretch does not count."""
        self._settling = True

    def deepen(self) -> bool:
        """Allow twice as many bytes ahead; return whether the bound has grown."""
        ahead_bytes = min(2 * self.setting.ahead_bytes, self.most.ahead_bytes)
        if ahead_bytes == self.setting.ahead_bytes:
            return False
        self.setting = replace(self.setting, ahead_bytes=ahead_bytes)
        self._spared = 0
        if self._gave_back:
            self._gave_back, self._spare_patience = False, _KEPT_LONGER * self._spare_patience
        return True

    def _give_back(self, seen: Seen) -> None:
        """Allow half as many bytes ahead, if more than that have been unused for a while."""
        is_spare = seen.waited_s < _WAITS * seen.seconds and seen.spare_bytes > _SPARE * self.setting.ahead_bytes
        self._spared = self._spared + 1 if is_spare else 0
        ahead_bytes = max(self.setting.ahead_bytes // 2, self._least_bytes)
        if self._spared >= self._spare_patience and ahead_bytes < self.setting.ahead_bytes:
            self.setting = replace(self.setting, ahead_bytes=ahead_bytes)
            self._spared, self._gave_back = 0, True

    def look(self, seen: Seen) -> Setting:
        """Return the setting for the next stretch."""
        self._give_back(seen)
        if self._settling:  # threads were started, requests are in flight: the first stretch belongs to neither setting
            self._settling = False
        elif self._before is not None:
            self._judge(seen.rate)
        elif seen.waited_s >= _WAITS * seen.seconds:
            self._notice(seen.rate)
            self._try(seen)
        return self.setting

    def _judge(self, rate: float) -> None:
        assert self._before is not None
        (before, rate_before), self._before = self._before, None
        fewer = self.setting.workers < before.workers
        if rate < rate_before * (_WORTH_LESS if fewer else _PAYS):
            knob = "requests" if self.setting.requests != before.requests else "workers"
            self._failed.add((knob, getattr(self.setting, knob)))
            # Bytes ahead may have grown in the meantime, for a different reason.
            self.setting = replace(before, ahead_bytes=self.setting.ahead_bytes)
            self._settling = True
            rate = rate_before
        self._settled_rate = rate

    def _notice(self, rate: float) -> None:
        """Forget failed trials if the rate has changed for a while."""
        known = self._settled_rate
        moved = known > 0 and not known / _MOVED <= rate <= known * _MOVED
        self._moved = self._moved + 1 if moved else 0
        if self._moved >= _PATIENCE:
            self._failed.clear()
            self._moved, self._settled_rate = 0, rate

    def _try(self, seen: Seen) -> None:
        setting = self.setting
        trial = setting
        if seen.busy_s < (1.0 - _IDLE) * setting.workers * seen.seconds:
            if seen.fetching:
                trial = replace(setting, requests=min(2 * setting.requests, self.most.requests))
        elif seen.cpu_s < _SATURATED * self._cores * seen.seconds:
            trial = replace(setting, workers=min(setting.workers + 1, self.most.workers))
            if trial == setting or self._has_failed(trial):
                trial = replace(setting, workers=max(setting.workers - 1, 1))
        if trial != setting and not self._has_failed(trial):
            self.trials += 1
            self._before = (setting, seen.rate)
            self.setting = trial
            self._settling = True

    def _has_failed(self, trial: Setting) -> bool:
        knob = "requests" if trial.requests != self.setting.requests else "workers"
        return (knob, getattr(trial, knob)) in self._failed
