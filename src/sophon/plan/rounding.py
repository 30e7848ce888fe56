"""Rounds a mixture of plans to one plan, with almost no loss.

If the plans of a mixture differ on a sample, the sample is divided: it has a share of each of their routes. With R
resources, R + 1 such samples can be shifted against each other without changing any resource time (R equations, R + 1
unknowns) until one of them is whole. So only a few samples per merged plan stay divided. These are then all shifted
together until at most R of them are divided, and for those few every combination is tried.

This costs at most (R - 1) / 2 samples' worth, which is one sample's worth with link, storage and trainer: among the
divided samples there is a best division with at most R - 1 of them divided (a vertex of the linear program). Rounding
each to its larger share changes every resource by at most half of the cost of one sample (two thirds if a sample is
divided into three, but then another is whole), and that rounding is among the combinations tried.
`tests/plan/test_rounding.py` and the MILP oracle in `tests/plan/policies/test_optimal.py` check this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex, sum_chosen
from sophon.plan.game import Matrix, Vector
from sophon.plan.pricing import Costs

_BLOCK = 2**16  # samples shifted at a time: a few MiB of temporaries
_SPREAD_LEAST = 2**10
_CHANGES = 100  # most changes that `polish` makes; it starts within a few samples' cost of the best
_COMBINATIONS = 2**12  # most combinations tried; with too many resources for that, samples are rounded one by one
_WHOLE = 1e-12


def rank_of(costs: Costs, times: Vector, floor_s: float) -> tuple[float, ...]:
    """Return the sort key of times: a shorter epoch (down to the consumer's), less storage, fewer bytes."""
    return max(float(times.max()), floor_s), *map(float, costs.thrift(times))


def times_of(costs: Costs, cut: CutIndex) -> Vector:
    """Return the seconds of every resource under a plan."""
    return costs.seconds(sum_chosen(costs.tables, cut, costs.parts, costs.part_count))


def round_mixture(costs: Costs, plans: Sequence[CutIndex], weights: Vector, floor_s: float) -> CutIndex:
    """Return one plan whose times equal those of the mixture, up to the cost of a few samples.

    Args:
        costs: The samples.
        plans: Up to as many plans as there are resources.
        weights: The share of each plan, summing to 1.
        floor_s: Seconds below which a shorter epoch gains nothing.
    """
    cut = plans[0].copy()
    held = float(weights[0])
    shares: dict[int, dict[int, float]] = {}
    for plan, weight in zip(plans[1:], map(float, weights[1:]), strict=True):
        if weight <= 0:
            continue
        share = weight / (held + weight)
        held += weight
        differ = np.flatnonzero(cut != plan)
        for sample, parts in shares.items():
            for column in parts:
                parts[column] *= 1 - share
            parts[int(plan[sample])] = parts.get(int(plan[sample]), 0.0) + share
        differ = differ[~np.isin(differ, np.fromiter(shares, np.intp, len(shares)))]
        taken, divided = _make_whole(costs, differ, cut, plan, share)
        for sample, part in divided:
            shares[sample] = {int(cut[sample]): 1 - part, int(plan[sample]): part}
        cut[taken] = plan[taken]
    return _try_all(costs, cut, _fewer(costs, shares), floor_s)


def _make_whole(
    costs: Costs, differ: NDArray[np.intp], old: CutIndex, new: CutIndex, share: float
) -> tuple[NDArray[np.intp], list[tuple[int, float]]]:
    # Returns the samples that take the new cut entirely, and the few that stay divided, with their share of the new
    # cut.
    def steps(index: NDArray[np.intp]) -> Matrix:
        return costs.times(index, new[index]) - costs.times(index, old[index])

    part = np.full(len(differ), share)
    for low in range(0, len(differ) - _SPREAD_LEAST, _BLOCK):
        block = slice(low, low + _BLOCK)
        part[block] = _spread(steps(differ[block]), share)
    taken = [differ[part >= 1 - _WHOLE]]
    open_ = (part > _WHOLE) & (part < 1 - _WHOLE)
    index, part = differ[open_], part[open_]
    while True:
        # Each block leaves a few samples at most; these form the blocks of the next round.
        indices, parts = [index[:0]], [part[:0]]
        for low in range(0, len(index), _BLOCK):
            block = slice(low, low + _BLOCK)
            whole, few, few_part = _shift(index[block], part[block], steps(index[block]))
            taken.append(whole)
            indices.append(few)
            parts.append(few_part)
        index, part = np.concatenate(indices), np.concatenate(parts)
        if len(indices) <= 2:
            return np.concatenate(taken), list(zip(map(int, index), map(float, part), strict=True))


def _spread(steps: Matrix, share: float) -> Vector:
    # Makes most samples whole at once, evenly spread. One in sixteen (fewer where the share is near 0 or 1) starts half
    # and half, and those that weigh most stay divided; these compensate for the rest, by least squares weighted with
    # the room they have. This only saves time: if they cannot, all stay divided as before. Long sums use einsum,
    # because a BLAS sums in an order that depends on the number of threads, and plans must be reproducible.
    n = len(steps)
    size = np.abs(steps).sum(axis=0)
    steps = steps / np.where(size > 0, size, 1.0)
    strength, axes = np.linalg.eigh(np.einsum("ij,ik->jk", steps, steps))
    if strength[-1] <= 0:
        return np.zeros(n)  # both cuts cost the same in every resource
    real = strength > 1e-12 * strength[-1]
    spread = steps @ (axes[:, real] / np.sqrt(strength[real]))  # orthonormal columns
    heavy = np.einsum("ij,ij->i", spread, spread) > 16 * steps.shape[1] / n
    half = (np.arange(n) % int(max(16, np.ceil(1 / max(min(share, 1 - share), 1e-9)))) == 0) & ~heavy
    open_ = heavy | half
    place = np.arange(n - int(open_.sum()))
    rest = np.clip((share * (n - heavy.sum()) - 0.5 * half.sum()) / max(len(place), 1), 0.0, 1.0)
    part = np.full(n, share)
    part[half] = 0.5
    part[~open_] = np.floor((place + 1) * rest) - np.floor(place * rest)
    few = spread[open_]
    slack = np.minimum(part[open_], 1 - part[open_])[:, None] ** 2
    gain, changed = np.einsum("ij,ik->jk", few, slack * few), np.einsum("i,ij->j", part - share, spread)
    part[open_] -= (slack * few) @ np.linalg.lstsq(gain, changed)[0]
    fits = bool((part[open_] > 0).all() and (part[open_] < 1).all())
    if not fits or np.abs(np.einsum("i,ij->j", part - share, steps)).max() > 1e-11:
        part[:] = share
    return part


def _shift(index: NDArray[np.intp], part: Vector, steps: Matrix) -> tuple[NDArray[np.intp], NDArray[np.intp], Vector]:
    # Shifts samples against each other, in groups of one more than there are resources, until no such group is divided.
    # Returns the samples that took the new route, and those that stay divided, with their shares.
    taken = [index[:0]]
    size = steps.shape[1] + 1
    while len(index) >= size:
        groups = len(index) // size
        head = slice(0, groups * size)
        moved = _move(steps[head].reshape(groups, size, -1), part[head].reshape(groups, size)).reshape(-1)
        part = np.concatenate([moved, part[groups * size :]])
        taken.append(index[part >= 1 - _WHOLE])
        open_ = (part > _WHOLE) & (part < 1 - _WHOLE)
        index, part, steps = index[open_], part[open_], steps[open_]
    return np.concatenate(taken), index, part


def _move(steps: Matrix, part: Matrix) -> Matrix:
    # steps [groups, R + 1, R]: change of the resources as a sample moves to the new route; part [groups, R + 1] in (0,
    # 1). Moves each group along a direction that changes no resource until one of its samples is whole.
    way = _null(steps)
    with np.errstate(divide="ignore"):
        slack = np.where(way > _WHOLE, (1 - part) / way, np.where(way < -_WHOLE, part / -way, np.inf))
    first = slack.argmin(axis=1)
    groups = np.arange(len(part))
    step = slack[groups, first]
    moved: Matrix = np.clip(part + step[:, None] * way, 0.0, 1.0)
    moved[groups, first] = np.where(way[groups, first] > 0, 1.0, 0.0)
    return moved


def _null(steps: Matrix) -> Matrix:
    # Returns a vector orthogonal to R others in R + 1 dimensions, even if those are linearly dependent (identical
    # samples): Gram-Schmidt, then the axis farthest from their span, minus its projection onto the span.
    basis: list[Matrix] = []
    for resource in range(steps.shape[2]):
        row = steps[:, :, resource].copy()
        length = np.sqrt(np.einsum("gk,gk->g", row, row))
        for _ in range(2):  # twice is enough (Kahan)
            for unit in basis:
                row -= np.einsum("gk,gk->g", unit, row)[:, None] * unit
        left = np.sqrt(np.einsum("gk,gk->g", row, row))
        usable = left > 1e-11 * length
        basis.append(np.where(usable[:, None], row / np.where(usable, left, 1.0)[:, None], 0.0))
    spread = 1 - sum(unit**2 for unit in basis)
    axis = np.asarray(spread).argmax(axis=1)
    groups = np.arange(len(steps))
    way = np.zeros(steps.shape[:2])
    way[groups, axis] = 1.0
    for unit in basis:
        way -= unit[groups, axis][:, None] * unit
    return way


def _fewer(costs: Costs, shares: dict[int, dict[int, float]]) -> dict[int, dict[int, float]]:
    # Shifts all divided samples together, whatever the number of routes each is divided among, until at most as many
    # are divided as there are resources. The time of every resource stays the same, up to rounding errors.
    while sum(len(parts) - 1 for parts in shares.values()) > costs.resources:
        pairs = [(sample, column) for sample, parts in shares.items() for column in parts]
        index, columns = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs], np.uint8)
        times = costs.times(index, columns).T
        size = np.abs(times).max(axis=1, keepdims=True)
        whole = (index[None, :] == np.fromiter(shares, np.intp, len(shares))[:, None]).astype(float)
        way = np.linalg.svd(np.concatenate([times / np.where(size > 0, size, 1.0), whole]))[2][-1]
        part = np.array([shares[sample][column] for sample, column in pairs])
        with np.errstate(divide="ignore"):
            steps = np.where(way < -_WHOLE, part / -way, np.inf)
        gone = int(steps.argmin())
        part = np.maximum(part + float(steps[gone]) * way, 0.0)
        part[gone] = 0.0
        left: dict[int, dict[int, float]] = {}
        for (sample, column), share in zip(pairs, part, strict=True):
            if share > _WHOLE:
                left.setdefault(sample, {})[column] = float(share)
        shares = left
    return shares


def _try_all(costs: Costs, cut: CutIndex, shares: dict[int, dict[int, float]], floor_s: float) -> CutIndex:
    if not shares:
        return cut
    samples = np.fromiter(shares, np.intp, len(shares))
    options = [sorted(shares[int(sample)]) for sample in samples]
    kept = times_of(costs, cut) - costs.times(samples, cut[samples]).sum(axis=0)

    def rank(columns: Sequence[int]) -> tuple[float, ...]:
        return rank_of(costs, kept + costs.times(samples, np.array(columns, np.uint8)).sum(axis=0), floor_s)

    if prod(map(len, options)) <= _COMBINATIONS:
        cut[samples] = min(product(*options), key=rank)
        return cut
    best = [max(parts, key=lambda column: (parts[column], -column)) for parts in shares.values()]
    for place, columns in enumerate(options):
        best = min(([*best[:place], column, *best[place + 1 :]] for column in columns), key=rank)
    cut[samples] = best
    return cut


def polish(costs: Costs, cut: CutIndex, floor_s: float) -> CutIndex:
    """Return the plan improved by single route changes, the best one first, until none helps.

    Only worthwhile on small tables, where a single sample matters: every change examines every sample and route.
    """
    cut = cut.copy()
    n = len(costs)
    everyone = np.arange(n)
    table = np.stack([costs.times(everyone, np.full(n, column, np.uint8)) for column in costs.columns], axis=1)
    for measure in np.flatnonzero(costs.barred.any(axis=0)):
        own = costs.barred[:, measure] if costs.parts is None else costs.barred[costs.parts, measure]
        table[(costs.tables[measure][:, costs.columns] > 0) & own[:, None]] = np.inf
    for _ in range(_CHANGES):
        now = costs.times(everyone, cut)
        times = now.sum(axis=0) + costs.base_s
        after = times - now[:, None, :] + table
        epoch = np.maximum(after.max(axis=2), floor_s)
        best = epoch == epoch.min()
        for spent in costs.thrift(after):
            best &= spent == spent.min(where=best, initial=np.inf)
        sample, place = divmod(int(best.argmax()), len(costs.columns))
        # A change must be worth more than the rounding of the sums, or two plans could take turns forever.
        old = np.array(rank_of(costs, times, floor_s))
        new = np.array(rank_of(costs, after[sample, place], floor_s))
        better = old - new > 1e-12 * np.maximum(np.abs(old), 1e-300)
        worse = new - old > 1e-12 * np.maximum(np.abs(old), 1e-300)
        changed = better | worse
        if not changed.any() or not better[int(changed.argmax())]:
            return cut
        cut[sample] = costs.columns[place]
    return cut
