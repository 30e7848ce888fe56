"""Detects samples that are requested repeatedly within one epoch of a data set.

A map-style data set does not know when an epoch begins unless it is told. If it is not, every pass has the random
parameters of the first one, and nothing looks wrong. So the samples of an epoch are ticked off, in memory that torch's
worker processes share; when most of them have been requested a second time, the user is warned.

Concurrency: used by all of torch's worker processes at once. Some ticks may be lost, which only delays the warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sophon.loader.planning.shared import shared_array
from sophon.loader.sources.assignment import SeedWarning

_MANY = 0.5  # share of the samples: only a skewed sampler repeats more, and then a warning is useful, too


class Asked:
    """The samples requested in an epoch.

    Args:
        count: Samples in the data set.
    """

    def __init__(self, count: int) -> None:
        self._ticks = shared_array(count, np.uint8)
        self._again = shared_array(1, np.int64)
        self._warned = False

    def forget(self) -> None:
        """Forget all requests, because another epoch starts."""
        self._view()[:] = 0
        self._again[0] = 0

    def note(self, samples: Sequence[int]) -> None:
        """Record samples requested by plain index; warn once if most were requested again within one epoch."""
        ticks = self._view()
        rows = np.asarray(samples, np.int64)
        self._again[0] += int(ticks[rows].sum())
        ticks[rows] = 1
        if not self._warned and int(self._again[0]) > _MANY * len(ticks):
            self._warned = True
            warnings.warn(
                "most samples were requested again within one epoch, with the same crops and flips: tell the data "
                "set about each epoch with set_epoch, with an EpochSampler, or under Hugging Face's Trainer with "
                "callbacks=[sophon.EpochCallback()]; sophon.DataLoader does so itself, even with weighted samplers",
                SeedWarning,
                stacklevel=4,
            )

    def _view(self) -> NDArray[np.uint8]:
        view: NDArray[np.uint8] = np.asarray(self._ticks)
        return view
