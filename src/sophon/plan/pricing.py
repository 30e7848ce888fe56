"""Prices on the three resources, and the plan that is cheapest under them: one pass, each sample decided alone.

A sample at a cut takes (b/B, s/S, p/C) epoch seconds of link, storage cores and trainer cores. The pass goes
through the table in blocks that fit a core's cache, column by column, and keeps one byte per sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex
from sophon.plan.game import Matrix, Vector
from sophon.plan.resources import Resources
from sophon.profile.table import FloatTable, Profile

LINK, STORAGE, TRAINER = 0, 1, 2
_BLOCK = 2**15  # three float64 temporaries of 256 KiB each: measured fastest from 2^14 to 2^16
_SAFETY = 1 - 1e-12  # more than summing ten million float64 in blocks can be off by

# Added to the prices, as parts of the largest one: cuts of equal price are told apart by storage, then bytes.
_TIE_STORAGE, _TIE_LINK, _TIE_TRAINER = 1e-10, 1e-13, 1e-16


@dataclass(frozen=True)
class Costs:
    """What every sample takes at every cut that may be chosen, and what that is in epoch seconds.

    Args:
        payload_bytes: [samples, cuts].
        storage_s: [samples, cuts].
        trainer_s: [samples, cuts].
        columns: The cuts that may be chosen, ascending.
        scale: Epoch seconds per byte, per storage CPU second and per trainer CPU second.
        storage: Whether there are storage cores; without, only cuts of zero storage seconds are chosen.
    """

    payload_bytes: FloatTable
    storage_s: FloatTable
    trainer_s: FloatTable
    columns: tuple[int, ...]
    scale: Vector
    storage: bool = True

    @classmethod
    def of(cls, profile: Profile, resources: Resources, columns: tuple[int, ...]) -> Costs:
        """Return the costs of a profile under resources, restricted to some cuts."""
        cores = resources.storage_cores
        scale = np.array([1 / resources.link_bytes_per_s, 1 / cores if cores else 0.0, 1 / resources.trainer_cores])
        return cls(profile.payload_bytes, profile.storage_s, profile.trainer_s, columns, scale, storage=cores > 0)

    def __len__(self) -> int:
        return int(self.payload_bytes.shape[0])

    @property
    def tables(self) -> tuple[FloatTable, FloatTable, FloatTable]:
        """The three tables in the order of the resources."""
        return self.payload_bytes, self.storage_s, self.trainer_s

    def rows(self, index: NDArray[np.intp]) -> Costs:
        """Return the costs of some samples only."""
        payload_bytes, storage_s, trainer_s = (np.asfortranarray(table[index]) for table in self.tables)
        return replace(self, payload_bytes=payload_bytes, storage_s=storage_s, trainer_s=trainer_s)

    def times(self, index: NDArray[np.intp], cut: CutIndex) -> Matrix:
        """Return [len(index), 3] epoch seconds that these samples take at these cuts."""
        place = cut.astype(np.intp)
        place *= len(self)
        place += index
        times = np.empty((len(index), 3))
        for resource, table in enumerate(self.tables):
            np.multiply(table.T.reshape(-1).take(place), self.scale[resource], out=times[:, resource])
        return times

    def worth_s(self) -> float:
        """Return one sample's worth: the most epoch seconds that one sample takes of one resource."""
        worth = 0.0
        for table, scale in zip(self.tables, self.scale, strict=True):
            for column in self.columns:
                values = table[:, column]
                high = float(values.max())
                if np.isinf(high):
                    high = float(values.max(where=np.isfinite(values), initial=0.0))
                worth = max(worth, high * float(scale))
        return worth


@dataclass(frozen=True)
class Priced:
    """The cheapest plan under some prices.

    Args:
        cut: The cut of every sample.
        times: T_Net, T_CS and T_CC of the plan.
        value: Σ of the cheapest prices: no plan costs less under these prices. Less a little for rounding.
        prices: The prices on the three resources.
    """

    cut: CutIndex
    times: Vector
    value: float
    prices: Vector

    @property
    def bound_s(self) -> float:
        """No plan over these cuts has fewer epoch seconds."""
        return self.value / float(self.prices.sum())


def cheapest(costs: Costs, prices: Vector) -> Priced:
    """Return the plan that is cheapest under `prices`, each sample decided alone.

    Cuts of equal price are told apart by storage seconds, then bytes: prices of a ten-billionth and less are
    added for them, which also keeps 0 × inf out of the sums.
    """
    top = float(prices.max())
    prices = prices + top * np.array([_TIE_LINK, _TIE_STORAGE, _TIE_TRAINER])
    weights = prices * costs.scale
    n = len(costs)
    cut = np.zeros(n, np.uint8)
    flat = [table.T.reshape(-1) for table in costs.tables]
    totals = np.zeros(3)
    value = 0.0
    size = max(1, min(n, _BLOCK))
    buffers = [np.empty(size) for _ in range(3)]
    less, mark = np.empty(size, np.bool_), np.empty(size, np.uint8)
    for low in range(0, n, size):
        high = min(n, low + size)
        width = high - low
        best, price, part = (array[:width] for array in buffers)
        chosen = cut[low:high]
        for place, column in enumerate(costs.columns):
            _price_block(costs, weights, column, slice(low, high), price=price, part=part)
            if place == 0:
                best[:] = price
                continue
            np.less(price, best, out=less[:width])
            np.minimum(price, best, out=best)
            # Places only rise, so the last cut that was cheaper is the largest place marked.
            np.multiply(less[:width].view(np.uint8), np.uint8(place), out=mark[:width])
            np.maximum(chosen, mark[:width], out=chosen)
        value += float(best.sum())
        if costs.columns != tuple(range(len(costs.columns))):
            chosen[:] = np.array(costs.columns, np.uint8)[chosen]
        index = chosen.astype(np.intp)
        index *= n
        index += np.arange(low, high)
        for row, table in enumerate(flat):
            totals[row] += table.take(index).sum(dtype=np.float64)
    return Priced(cut, totals * costs.scale, value * _SAFETY, prices)


def _price_block(costs: Costs, weights: Vector, column: int, block: slice, *, price: Vector, part: Vector) -> None:
    link, storage, trainer = (table[block, column] for table in costs.tables)
    np.multiply(link, weights[LINK], out=price)
    np.multiply(trainer, weights[TRAINER], out=part)
    np.add(price, part, out=price)
    if costs.storage:
        np.multiply(storage, weights[STORAGE], out=part)
        np.add(price, part, out=price)
    else:
        price[storage > 0] = np.inf
