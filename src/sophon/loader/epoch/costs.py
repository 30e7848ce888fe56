"""How long finishing each sample takes, so that slow ones can be started early.

Concurrency: the engine calls this under its lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_EARLY = 2.0  # times the lead: a late sample keeps all others waiting, an early one only takes up memory
_WEIGHT = 0.5  # of a sample's newest time: random crops differ, the picture's size does not
_MEAN_WEIGHT = 0.02  # the mean covers about the last fifty samples


class Costs:
    """Seconds that finishing takes, by sample: as seen in earlier epochs, or as a profile predicts.

    Args:
        count: Number of samples in the data set.
    """

    def __init__(self, count: int) -> None:
        self._seconds = np.zeros(count, np.float32)  # 0 where nothing is known
        self._mean_s = 0.0

    def expect(self, seconds: NDArray[Any]) -> None:
        """Use predictions for all samples."""
        self._seconds[:] = seconds
        self._mean_s = float(seconds.mean()) if len(seconds) else 0.0

    def saw(self, sample: int, seconds: float) -> None:
        """Record how long a sample took."""
        before = float(self._seconds[sample])
        self._seconds[sample] = before + _WEIGHT * (seconds - before) if before else seconds
        self._mean_s += (_MEAN_WEIGHT if self._mean_s else 1.0) * (seconds - self._mean_s)

    def lead(self, sample: int, workers: int) -> float:
        """Return how many positions ahead of its turn a sample should be started.

        While one worker spends t seconds on the sample, all workers finish t · workers / (mean seconds) samples.
        """
        return _EARLY * float(self._seconds[sample]) * workers / self._mean_s if self._mean_s else 0.0
