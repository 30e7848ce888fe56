"""Samplers for torch's own DataLoader: they tell the epoch with every index, so that nothing needs `set_epoch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from sophon.loader.order import epoch_order


class EpochSampler(Sampler[Any]):
    """Yields (epoch, index) in the order of sophon's own loader; every pass is the next epoch.

    Args:
        dataset: Whose length counts.
        shuffle: In random order, or in the order of the data set.
        seed: Of that order.
    """

    def __init__(self, dataset: Any, *, shuffle: bool = False, seed: int = 0) -> None:
        self._count = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Go on with this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = epoch_order(self._count, self._seed, epoch, shuffle=self._shuffle)
        return ((epoch, int(sample)) for sample in order)
