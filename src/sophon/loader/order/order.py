"""The order of samples in an epoch: a function of (seed, epoch, count) and of nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

Order = np.ndarray[Any, np.dtype[np.int64]]

# A position that no op has, so that the order shares no random word with any op.
_ORDER_POSITION = 2**64 - 1


def epoch_order(count: int, seed: int, epoch: int, *, shuffle: bool) -> Order:
    """Return the samples of an epoch in order.

    Each sample gets one raw Philox word, and samples are sorted by their words: NumPy guarantees that both stay the
    same, unlike its own permutations.
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, _ORDER_POSITION, 0], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
