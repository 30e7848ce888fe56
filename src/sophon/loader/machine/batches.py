"""How places are divided into batches: all of one size except the last, or each with its own size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Batches:
    """The batches of an epoch.

    Args:
        count: Places in the epoch.
        size: Places in a batch; the last one may have fewer. Approximate mean, if batches differ in size.
        sizes: Places in each batch, if batches differ in size; they add up to `count`.
    """

    def __init__(self, count: int, size: int, sizes: Sequence[int] | None = None) -> None:
        self.places = count
        self.size = size
        self._starts = None if sizes is None else np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        assert self._starts is None or self._starts[-1] == count

    def __len__(self) -> int:
        return -(-self.places // self.size) if self._starts is None else len(self._starts) - 1

    def start(self, batch: int) -> int:
        """Return the first place of a batch; for the batch after the last, the number of places."""
        if self._starts is None:
            return min(batch * self.size, self.places)
        return int(self._starts[min(batch, len(self))])

    def of(self, place: int) -> int:
        """Return the batch that a place is in."""
        if self._starts is None:
            return place // self.size
        return int(np.searchsorted(self._starts, place, side="right")) - 1

    def size_of(self, batch: int) -> int:
        """Return how many places a batch has."""
        return self.start(batch + 1) - self.start(batch)
