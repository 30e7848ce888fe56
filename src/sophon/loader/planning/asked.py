"""Whether samples come again and again in what a data set takes for one epoch.

A map-style data set does not see epochs: somebody has to tell it. Where nobody does, every pass has the random
parameters of the first one, and nothing looks wrong. So the samples of an epoch are ticked off, in memory that torch's
worker processes share; when most of them have come a second time, the user is told.

Concurrency: used by all of torch's worker processes at once. Some ticks may be lost, which only delays the warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sophon.loader.planning.shared import shared_array
from sophon.loader.sources.assignment import SeedWarning

_MANY = 0.5  # of the samples: more come again with a skewed sampler only, which is worth knowing, too


class Asked:
    """The samples that were asked for in an epoch.

    Args:
        count: Samples in the data set.
    """

    def __init__(self, count: int) -> None:
        self._ticks = shared_array(count, np.uint8)
        self._again = shared_array(1, np.int64)
        self._warned = False

    def forget(self) -> None:
        """Forget what was asked for: another epoch begins."""
        self._view()[:] = 0
        self._again[0] = 0

    def note(self, samples: Sequence[int]) -> None:
        """Samples are asked for without a word on the epoch."""
        ticks = self._view()
        rows = np.asarray(samples, np.int64)
        self._again[0] += int(ticks[rows].sum())
        ticks[rows] = 1
        if not self._warned and int(self._again[0]) > _MANY * len(ticks):
            self._warned = True
            warnings.warn(
                "most samples were asked for again in one epoch, with the same crops and flips: tell the data set each "
                "epoch by set_epoch, by an EpochSampler, or under Hugging Face's Trainer by "
                "callbacks=[sophon.EpochCallback()]; sophon.DataLoader does so by itself, also for weighted samplers",
                SeedWarning,
                stacklevel=4,
            )

    def _view(self) -> NDArray[np.uint8]:
        view: NDArray[np.uint8] = np.asarray(self._ticks)
        return view
