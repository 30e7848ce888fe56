"""Determines how long a request may be silent before another source is asked too; part of the machine.

The time is given in seconds, or learned: a request is late when it has been silent several times longer than 95 % of
recent requests were, as Dean and Barroso propose in "The Tail at Scale" (2013). Second requests are limited to a tenth
of all samples, plus one request: a whole link that has become slow is not made faster by asking twice.
"""

from __future__ import annotations

import math
from collections import deque

_KEPT = 128  # how many of the latest waits are kept
_ENOUGH = 8  # waits before a limit is learned from them
_QUANTILE = 0.95
_TIMES = 3.0  # times that quantile: a request that waits longer is late
_LEAST_S = 0.05  # less is not worth a second request
_SHARE = 0.1  # share of the requested samples that may be requested twice


class Patience:
    """Decides when a request is late.

    Args:
        hedge: Seconds of silence after which a request is late; True to learn the time; False for never.
        most_s: Bound on these seconds if there is another source; infinite if there is none. After that time samples
            may be asked for twice, however often that has already happened.
    """

    def __init__(self, hedge: bool | float, most_s: float) -> None:
        self._hedge = hedge
        self.most_s = most_s
        self._waits: deque[float] = deque(maxlen=_KEPT)
        self._asked = self._twice = 0
        self._limit_s: float | None = None

    def waited(self, seconds: float) -> None:
        """Record how long a stream was silent before it continued."""
        if self._hedge is True and seconds > 1e-3:  # if less, the reply came in one message with the previous one
            self._waits.append(seconds)
            self._limit_s = None

    def asked(self, samples: int, twice: bool = False) -> None:
        """Count the samples of a request."""
        self._asked += samples
        self._twice += samples if twice else 0

    def may_ask_twice(self, samples: int) -> bool:
        """Return whether this many more samples may be requested a second time."""
        return self._twice <= _SHARE * (self._asked + samples)

    @property
    def limit_s(self) -> float:
        """How long a request may be silent; infinite if it may be silent forever."""
        if self._limit_s is None:
            self._limit_s = self._learned_s()
        return self._limit_s

    def _learned_s(self) -> float:
        if not isinstance(self._hedge, bool):
            return self._hedge
        if not self._hedge or len(self._waits) < _ENOUGH:
            return math.inf
        waits = sorted(self._waits)
        return max(_TIMES * waits[min(int(_QUANTILE * len(waits)), len(waits) - 1)], _LEAST_S)
