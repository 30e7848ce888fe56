"""Exchanges routes along the order of an epoch, so that every stretch loads link and cores in the same proportion.

A plan balances its resources over the epoch as a whole. But a loader reads only a limited way ahead: if a stretch of
the order needs more core time than the mean, the link waits, and that time is lost for good. The order is known before
the epoch starts, so samples exchange routes: in each stretch that has too much of one resource, the samples for which
that is cheapest move to a route with less of that resource and more of another, until the stretch uses the two in the
same proportion as the whole epoch. Other stretches do the reverse, so the totals stay the same except for the cost of
the exchanges; an exchange that costs more than it gains is not made.

Pure, like the rest of this package: the same plan and order give the same result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex
from sophon.plan.game import Matrix, Vector
from sophon.plan.pricing import Costs

STRETCH = 64
"""Number of samples in a stretch: as many as a loader puts into one request; two requests run at a time."""

_BINDS = 0.7  # of the busiest resource's time: only resources that are at least this busy are levelled
_ROUNDS = 3  # rounds at most; each evens out the two most unequal resources of a stretch
_WORTH = 0.25  # of the seconds that an exchange saves on the longer resource: its cost must not exceed this
_BLOCK = 2**15

Stretches = NDArray[np.int64]


def stretches_of(samples: int, order: NDArray[np.integer], length: int = STRETCH) -> Stretches:
    """Return the number of the stretch that each sample is in; -1 for samples in none."""
    found = np.full(samples, -1, np.int64)
    found[order] = np.arange(len(order)) // length
    return found


def stretch_times(costs: Costs, cut: CutIndex, stretches: Stretches) -> Matrix:
    """Return [stretches, resources] seconds of each stretch on each resource."""
    count = int(stretches.max()) + 1
    place = stretches * costs.part_count if costs.parts is None else stretches * costs.part_count + costs.parts
    inside = stretches >= 0
    flat = cut.astype(np.intp) * len(costs) + np.arange(len(costs))
    sums = np.empty((count, costs.part_count, len(costs.tables)))
    for measure, table in enumerate(costs.tables):
        chosen = table.T.reshape(-1).take(flat)
        if not inside.all():
            own = np.bincount(place[inside], weights=chosen[inside], minlength=count * costs.part_count)
        else:
            own = np.bincount(place, weights=chosen, minlength=count * costs.part_count)
        sums[:, :, measure] = own.reshape(count, costs.part_count)
    times: Matrix = np.einsum("spm,rpm->sr", sums, costs.per_s)
    return times


def level(costs: Costs, cut: CutIndex, prices: Vector, order: NDArray[np.integer], length: int = STRETCH) -> CutIndex:
    """Return the plan with routes exchanged so that stretches of the order load resources in the same proportion.

    Args:
        costs: The samples.
        cut: The best plan for the whole epoch.
        prices: Prices of the resources under which `cut` is best.
        order: The samples in the order of the epoch.
        length: Samples in a stretch.
    """
    stretches = stretches_of(len(costs), order, length)
    times = stretch_times(costs, cut, stretches)
    for done in range(_ROUNDS):
        totals = times.sum(axis=0)
        binds = np.flatnonzero(totals >= _BINDS * totals.max(initial=0.0))
        if done + 1 >= len(binds) or not totals.max() > 0:
            break
        # Load of each stretch on every resource, in seconds of an epoch in which all resources take equally long.
        scale = totals.max() / totals[binds]
        shares = times[:, binds] * scale
        over, under = shares.argmax(axis=1), shares.argmin(axis=1)
        excess_s = shares.max(axis=1) - shares.min(axis=1)
        # Gain of a stretch per unit of a measure, when its samples use more of it.
        worth = (
            scale[under, None, None] * costs.per_s[binds[under]] - scale[over, None, None] * costs.per_s[binds[over]]
        )
        index, columns = _Exchanges(costs, cut, costs.weights(prices / prices.sum())).best(stretches, worth, excess_s)
        changed = cut.copy()
        changed[index] = columns
        after = stretch_times(costs, changed, stretches)
        # A single sample may cost more than the excess. A stretch that would then take longer is left unchanged.
        worse = after.max(axis=1) > times.max(axis=1)
        stays = index[worse[stretches[index]]]
        changed[stays] = cut[stays]
        cut, times = changed, np.where(worse[:, None], times, after)
    return cut


class _Exchanges:
    # Looks for the samples that change routes: block by block through the tables, as `pricing` does.
    def __init__(self, costs: Costs, cut: CutIndex, weights: Matrix) -> None:
        self._costs, self._cut, self._weights = costs, cut, weights
        # A route that no sample uses is too expensive for all of them, and checking it costs as much as a route in use.
        self._columns = np.flatnonzero(np.bincount(cut, minlength=1)).tolist()

    def best(
        self, stretches: Stretches, worth: NDArray[np.float64], excess_s: Vector
    ) -> tuple[NDArray[np.intp], CutIndex]:
        """Return samples and their new routes: in every stretch, those with the lowest cost per gain first."""
        n = len(self._costs)
        ratio, gain_s, column_of = np.full(n, np.inf, np.float32), np.zeros(n, np.float32), np.zeros(n, np.uint8)
        for low in range(0, n, _BLOCK):
            block = slice(low, min(n, low + _BLOCK))
            self._look(block, stretches[block], worth, excess_s, (ratio[block], gain_s[block], column_of[block]))
        useful = np.flatnonzero(np.isfinite(ratio))
        ranked = useful[np.lexsort((ratio[useful], stretches[useful]))]
        own, won = stretches[ranked], gain_s[ranked].astype(np.float64)
        running = np.cumsum(won)
        first = np.searchsorted(own, own)  # start of the stretch of each sample
        before = running - won - (running - won)[first]
        # Each exchange reduces the excess by its gain; it is worthwhile while more than half of that gain is left.
        taken = ranked[before + won / 2 < excess_s[own]]
        return taken, column_of[taken]

    def _look(
        self,
        block: slice,
        stretches: Stretches,
        worth: NDArray[np.float64],
        excess_s: Vector,
        found: tuple[NDArray[np.float32], NDArray[np.float32], CutIndex],
    ) -> None:
        costs, (ratio, gain_s, column_of) = self._costs, found
        parts = 0 if costs.parts is None else costs.parts[block]
        of = [worth[stretches, parts, measure] for measure in range(len(costs.tables))]
        price = [self._weights[parts, measure] for measure in range(len(costs.tables))]
        most_s = np.where(stretches >= 0, 2 * excess_s[stretches], 0.0)  # more would only reverse the imbalance
        rows, cut = np.arange(block.start, block.stop), self._cut[block].astype(np.intp)
        now = [table.T.reshape(-1).take(cut * len(costs) + rows) for table in costs.tables]
        for column in self._columns:
            won_s, cost_s = np.zeros(len(rows)), np.zeros(len(rows))
            barred = np.zeros(len(rows), np.bool_)
            with np.errstate(invalid="ignore", divide="ignore"):  # an illegal route is infinite, and never taken
                for measure, table in enumerate(costs.tables):
                    then = table[block, column]
                    change = then - now[measure]
                    won_s += of[measure] * change
                    cost_s += price[measure] * change
                    if costs.barred[:, measure].any():
                        barred |= costs.barred[parts, measure] & (then > 0)
                each = np.maximum(cost_s, 0.0) / won_s
                better = (won_s > 0) & (won_s < most_s) & (each < ratio) & (each <= _WORTH) & ~barred
            ratio[better], gain_s[better], column_of[better] = each[better], won_s[better], column
