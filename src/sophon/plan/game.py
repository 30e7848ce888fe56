"""A game of plans against resources, solved exactly.

Given the times of J plans on R resources, one side mixes plans to minimise the largest time, and the other mixes
resources to maximise the smallest; both reach the same value (von Neumann). This is the small master problem of the
column generation in `relaxation`: the mixture is its primal solution and the weights on resources are its duals.

The game is solved by the simplex method on ``min v, Σ_j x_j T_j + slack = v, Σ_j x_j = 1``. The basis has one column
per resource, and v. Finding the basis takes a few dozen steps of about ten microseconds each from scratch, and one or
two steps if a plan is added to a solved game. (scipy's HiGHS takes 1.6 ms per game and 0.4 s to import; it is the
oracle in `tests/plan/test_game.py`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
_ZERO = 1e-12  # of the largest time
_FAINT = 1e-8
_GREEDY = 60  # steps by steepest price; then Bland's rule, which is slower and cannot cycle
_MOST = 2000


@dataclass(frozen=True)
class Solution:
    """The solution of a game, for both sides.

    Args:
        plans: Indices of the plans in the best mixture, at most as many as there are resources.
        shares: The share of each of these plans, summing to 1.
        value: The largest of the mixed times.
        weights: Weights of resources, not negative and summing to 1, that maximise the smallest weighted time of a
            plan.
        basis: Where to start when plans have been added: a plan's index, or -1 - r for the slack of resource r.
    """

    plans: tuple[int, ...]
    shares: Vector
    value: float
    weights: Vector
    basis: tuple[int, ...]


def solve_game(times: Matrix, start: Sequence[int] = ()) -> Solution:
    """Return the mixture of plans whose largest time is smallest, and the weights that prove it.

    Args:
        times: [plans, resources] time of each plan on each resource, in any unit; may be negative.
        start: The basis of the same game with fewer plans.
    """
    resources = times.shape[1]
    size = float(np.abs(times).max(initial=0.0)) or 1.0
    times = times / size
    basis = list(start)
    if not basis:
        first = int(times.max(axis=1).argmin())
        top = int(times[first].argmax())
        basis = [first, *(-1 - resource for resource in range(resources) if resource != top)]
    shares, duals = np.zeros(resources), np.zeros(resources)
    for step in range(_MOST):
        square = _square(times, basis)
        shares = np.linalg.solve(square, np.append(np.zeros(resources), 1.0))[1:]
        found = np.linalg.solve(square.T, np.append(1.0, np.zeros(resources)))
        duals, value = -found[:resources], -float(found[resources])
        entering = _entering(times, duals, -value, basis, by_index=step >= _GREEDY)
        if entering is None:
            break
        # How the basic columns change as the entering one grows by one unit.
        change = np.asarray(np.linalg.solve(square, _column(times, entering))[1:], np.float64)
        leaving = _leaving(shares, change, basis)
        if leaving is None:
            break
        before, basis[leaving] = basis[leaving], entering
        if change[leaving] < _FAINT and np.linalg.matrix_rank(_square(times, basis)) <= resources:
            # Two columns are equal up to rounding, so the best solution so far cannot be improved numerically.
            basis[leaving] = before
            break
    weights = np.maximum(duals, 0.0)
    weights /= weights.sum()
    plans = [(column, share) for column, share in zip(basis, shares, strict=True) if column >= 0 and share > 0]
    mixed = np.array([share for _, share in plans])
    mixed /= mixed.sum()
    chosen = tuple(column for column, _ in plans)
    best = float((mixed @ times[list(chosen)]).max()) * size
    return Solution(chosen, mixed, best, weights, tuple(basis))


def _square(times: Matrix, basis: Sequence[int]) -> Matrix:
    resources = times.shape[1]
    square = np.zeros((resources + 1, resources + 1))
    square[:resources, 0] = -1.0  # v
    for place, column in enumerate(basis):
        square[:, place + 1] = _column(times, column)
    return square


def _column(times: Matrix, column: int) -> Vector:
    resources = times.shape[1]
    made = np.zeros(resources + 1)
    if column >= 0:
        made[:resources] = times[column]
        made[resources] = 1.0
    else:
        made[-1 - column] = 1.0
    return made


def _entering(times: Matrix, duals: Vector, value: float, basis: Sequence[int], *, by_index: bool) -> int | None:
    # The reduced cost of a plan is its weighted time minus the value; that of a slack is its weight.
    reduced = np.concatenate([duals, times @ duals - value])  # slacks first: resource r at place r
    resources = times.shape[1]
    inside = [column + resources if column >= 0 else -1 - column for column in basis]
    reduced[inside] = 0.0
    if by_index:
        below = np.flatnonzero(reduced < -_ZERO)
        place = int(below[0]) if len(below) else -1
    else:
        place = int(reduced.argmin())
        place = place if reduced[place] < -_ZERO else -1
    if place < 0:
        return None
    return place - resources if place >= resources else -1 - place


def _leaving(shares: Vector, change: Vector, basis: Sequence[int]) -> int | None:
    grows = change > _ZERO
    if not grows.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(grows, np.maximum(shares, 0.0) / np.where(grows, change, 1.0), np.inf)
    least = float(ratio.min())
    ties = np.flatnonzero(ratio <= least + _ZERO)
    return min(ties.tolist(), key=lambda place: basis[place])
