"""Prices on resources, and the plan that is cheapest under them: one pass that decides each sample separately.

Prices on the resources give every measure of every part a weight: the cost of a byte on that node's link, or of a CPU
second at the trainer. However many resources there are, a pass only looks at the measures: it goes through the tables
in blocks that fit a core's cache, column by column, and keeps one byte per sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex, Loads, Sums, fixed_sums, part_sums
from sophon.plan.game import Matrix, Vector
from sophon.plan.resources import Kind, Resources
from sophon.profile.table import FloatTable, PartIndex, Profile

_BLOCK = 2**15  # float64 temporaries of 256 KiB each: measured fastest from 2^14 to 2^16
SAFETY = 1 - 1e-12
"""Relative error of a sum: ten million float64 values, summed in blocks in any order, differ by less."""
_LEAST_WEIGHT = 1e-250  # keeps 0 × inf out of the sums: an illegal route is infinite in every table

# Added to the prices, as fractions of the largest one: ties between routes are broken by the thriftiest kind first.
_TIES = (1e-10, 1e-13)
_LAST_TIE = 1e-16


@dataclass(frozen=True)
class Costs:
    """The cost of every sample at every allowed route, and its value in epoch seconds.

    Args:
        tables: [samples, routes] each, one for each measure.
        columns: The routes that may be chosen, ascending.
        kinds: Kind of each resource that a choice of routes changes.
        per_s: [resources, parts, measures] epoch seconds per unit of a measure.
        base_s: Epoch seconds of each resource that are spent regardless of the routes.
        barred: [parts, measures] true where no route with any of the measure may be chosen.
        parts: Part of each sample; None if there is only one.
        floor_s: Seconds of resources that no choice of routes changes, such as the consumer.
    """

    tables: tuple[FloatTable, ...]
    columns: tuple[int, ...]
    kinds: tuple[Kind, ...]
    per_s: NDArray[np.float64]
    base_s: Vector
    barred: NDArray[np.bool_]
    parts: PartIndex | None = None
    floor_s: float = 0.0

    @classmethod
    def of(cls, profile: Profile, resources: Resources, columns: tuple[int, ...], reserve: float = 0.0) -> Costs:
        """Return the costs of a profile under resources, restricted to some routes.

        Args:
            profile: The cost of every sample.
            resources: The available resources.
            columns: The routes that may be chosen.
            reserve: Share of every node's cores that is kept free.
        """
        tables = profile.measures
        fixed = fixed_sums(profile)
        loads = Loads.of(resources, (*tables, *fixed), profile.part_count)
        count = len(tables)
        sums = np.stack(list(fixed.values()), axis=1)
        base_s = np.einsum("rpm,pm->r", loads.per_s[:, :, count:], sums)
        varies = (loads.per_s[:, :, :count] > 0).any(axis=(1, 2))
        of = np.flatnonzero(varies)
        kept = np.array([1 / (1 - reserve) if loads.rows[row].kind.may_be_zero else 1.0 for row in of])
        return cls(
            tuple(tables.values()),
            columns,
            tuple(loads.rows[row].kind for row in of),
            loads.per_s[of, :, :count] * kept[:, None, None],
            base_s[of] * kept,
            np.asarray(loads.closed[:, :, :count].any(axis=0)),
            profile.parts,
            float(base_s[~varies].max(initial=0.0)),
        )

    def __len__(self) -> int:
        return int(self.tables[0].shape[0])

    @property
    def resources(self) -> int:
        """Number of resources that a choice of routes changes."""
        return len(self.kinds)

    @property
    def part_count(self) -> int:
        """Number of parts that the samples are in."""
        return int(self.per_s.shape[1])

    def thrifty(self) -> NDArray[np.bool_]:
        """Return the resources that should be spent least among plans of equal seconds."""
        order = [kind.thrift for kind in self.kinds if kind.thrift is not None]
        return np.array([bool(order) and kind.thrift == min(order) for kind in self.kinds], np.bool_)

    def thrift(self, times: Matrix) -> list[Vector]:
        """Return the tie-breakers between equal times: seconds by kind of resource, in order of thrift."""
        order = sorted({kind.thrift for kind in self.kinds if kind.thrift is not None})
        return [
            times[..., [place for place, kind in enumerate(self.kinds) if kind.thrift == thrift]].sum(axis=-1)
            for thrift in order
        ]

    def rows(self, index: NDArray[np.intp]) -> Costs:
        """Return the costs of some samples only, without amounts that are spent regardless of the routes."""
        tables = tuple(np.empty((len(index), table.shape[1]), np.float32, order="F") for table in self.tables)
        for some, table in zip(tables, self.tables, strict=True):
            for column in range(table.shape[1]):
                np.take(table[:, column], index, out=some[:, column])
        parts = None if self.parts is None else self.parts[index]
        return replace(self, tables=tables, parts=parts, base_s=np.zeros_like(self.base_s))

    def times(self, index: NDArray[np.intp], cut: CutIndex) -> Matrix:
        """Return [len(index), resources] epoch seconds that these samples take at these routes."""
        place = cut.astype(np.intp)
        place *= len(self)
        place += index
        chosen = np.stack([table.T.reshape(-1).take(place) for table in self.tables], axis=1).astype(np.float64)
        if self.parts is None:
            return self._seconds(chosen, self.per_s[:, 0])
        times = np.zeros((len(index), self.resources))
        parts = self.parts[index]
        for part in range(self.part_count):
            own = parts == part
            times[own] = self._seconds(chosen[own], self.per_s[:, part])
        return times

    @staticmethod
    def _seconds(chosen: Matrix, per_s: Matrix) -> Matrix:
        # Column by column: a matrix product adds up in a different order with a different number of threads.
        times = np.zeros((len(chosen), len(per_s)))
        for resource, row in enumerate(per_s):
            for measure in np.flatnonzero(row):
                times[:, resource] += chosen[:, measure] * row[measure]
        return times

    def seconds(self, sums: Sums) -> Vector:
        """Return the epoch seconds of every resource, for [parts, measures] sums."""
        seconds: Vector = np.einsum("rpm,pm->r", self.per_s, sums) + self.base_s
        return seconds

    def weights(self, prices: Vector) -> Matrix:
        """Return the [parts, measures] weights that prices on resources give to each unit of a measure."""
        weights: Matrix = np.einsum("r,rpm->pm", prices, self.per_s)
        return weights

    def worth_s(self) -> float:
        """Return one sample's worth: the most epoch seconds that any one sample takes on any one resource."""
        highest = np.zeros(len(self.tables))
        for place, table in enumerate(self.tables):
            for column in self.columns:
                values = table[:, column]
                high = float(values.max())
                if np.isinf(high):
                    high = float(values.max(where=np.isfinite(values), initial=0.0))
                highest[place] = max(highest[place], high)
        return float((self.per_s * highest).sum(axis=2).max(initial=0.0))


@dataclass(frozen=True)
class Priced:
    """The cheapest plan under some prices.

    Args:
        cut: The route of every sample.
        times: Seconds of every resource.
        value: Sum of each sample's lowest cost: no plan costs less under these prices. Slightly reduced to allow for
            rounding.
        prices: The prices on the resources.
    """

    cut: CutIndex
    times: Vector
    value: float
    prices: Vector

    @property
    def bound_s(self) -> float:
        """Lower bound on the epoch seconds of any plan over these routes."""
        return self.value / float(self.prices.sum())


def cheapest(costs: Costs, prices: Vector) -> Priced:
    """Return the plan that is cheapest under `prices`, with each sample decided separately.

    Ties are broken by storage seconds, then bytes: prices of a ten-billionth or less are added for this.
    """
    prices = prices + float(prices.max()) * np.array([_tie(kind) for kind in costs.kinds])
    cut, sums, value = decide(costs, costs.weights(prices))
    return Priced(cut, costs.seconds(sums), (value + float(prices @ costs.base_s)) * SAFETY, prices)


def _tie(kind: Kind) -> float:
    return _LAST_TIE if kind.thrift is None else _TIES[min(kind.thrift, len(_TIES) - 1)]


def decide(costs: Costs, weights: Matrix) -> tuple[CutIndex, Sums, float]:
    """Return each sample's lightest route, the [parts, measures] sums over these routes, and the sum of the weights.

    Args:
        costs: The samples.
        weights: [parts, measures] weight of each unit.
    """
    n = len(costs)
    cut = np.zeros(n, np.uint8)
    flat = [table.T.reshape(-1) for table in costs.tables]
    sums = np.zeros((costs.part_count, len(flat)))
    value = 0.0
    size = max(1, min(n, _BLOCK))
    buffers = [np.empty(size) for _ in range(3)]
    less, mark = np.empty(size, np.bool_), np.empty(size, np.uint8)
    weights, barred = np.maximum(weights, _LEAST_WEIGHT), _Barred.of(costs)
    for low in range(0, n, size):
        high = min(n, low + size)
        width = high - low
        best, price, part = (array[:width] for array in buffers)
        chosen = cut[low:high]
        block = _Block(costs, weights, barred, slice(low, high))
        for place, column in enumerate(costs.columns):
            block.price(column, price=price, part=part)
            if place == 0:
                best[:] = price
                continue
            np.less(price, best, out=less[:width])
            np.minimum(price, best, out=best)
            # Places are visited in ascending order, so the largest place marked is the last route that was cheaper.
            np.multiply(less[:width].view(np.uint8), np.uint8(place), out=mark[:width])
            np.maximum(chosen, mark[:width], out=chosen)
        value += float(best.sum())
        if costs.columns != tuple(range(len(costs.columns))):
            chosen[:] = np.array(costs.columns, np.uint8)[chosen]
        index = chosen.astype(np.intp)
        index *= n
        index += np.arange(low, high)
        for measure, table in enumerate(flat):
            sums[:, measure] += part_sums(table.take(index), block.parts, costs.part_count)
    return cut, sums, value


@dataclass(frozen=True)
class _Barred:
    # Measures that are barred somewhere, and those that are not barred everywhere: only these need to be weighed.
    somewhere: list[int]
    weighed: list[int]

    @classmethod
    def of(cls, costs: Costs) -> _Barred:
        everywhere, somewhere = costs.barred.all(axis=0), costs.barred.any(axis=0)
        return cls(np.flatnonzero(somewhere).tolist(), np.flatnonzero(~everywhere).tolist())


class _Block:
    # A block of samples in a pass over the tables.
    def __init__(self, costs: Costs, weights: Matrix, barred: _Barred, rows: slice) -> None:
        self._costs, self._barred, self._rows = costs, barred, rows
        self.parts = None if costs.parts is None else costs.parts[rows]
        if self.parts is None:
            self._weights: list[NDArray[np.float64]] = list(weights[0])
        else:
            self._weights = [weights[:, measure].take(self.parts) for measure in range(weights.shape[1])]

    def price(self, column: int, *, price: Vector, part: Vector) -> None:
        costs = self._costs
        out = price
        for measure in self._barred.weighed:
            np.multiply(costs.tables[measure][self._rows, column], self._weights[measure], out=out)
            if out is part:
                np.add(price, part, out=price)
            out = part
        for measure in self._barred.somewhere:
            spends = costs.tables[measure][self._rows, column] > 0
            if self.parts is not None:
                spends &= costs.barred[:, measure].take(self.parts)
            price[spends] = np.inf
