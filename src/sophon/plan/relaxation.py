"""The linear relaxation of "choose one route per sample", solved by prices on the resources.

Let a sample at a route take t seconds of every resource. For any prices λ ≥ 0 with Σ λ = 1 and any plan x::

    max over resources of T(x) ≥ λ·T(x) ≥ Σ_i min_c λ·t_ic = D(λ)

so D(λ) is a lower bound on every plan, found in one pass that decides each sample separately (`cheapest`).
`_search` raises it by column generation: the plans found so far form a small game (`sophon.plan.game`), whose prices
are tried next; it ends when the best mixture of plans and the best bound meet. That takes tens of passes.

Large tables need about four passes. An even subset of the rows represents all of them, up to a constant: the difference
between the times of the subset's cheapest plan and of the cheapest plan for all rows at the same prices, which takes
one pass over all rows to compute. Adding that difference reduces the error of the subset's best prices to a tenth or
less. Prices act through the weights that they give to the measures of each part. So for every part there is a simplex
of weights that covers the remaining error, with as many corners as there are measures, however many resources there
are. The weight of a route is linear, so a sample whose lightest route is the same at all corners keeps that route
everywhere inside. Only the other samples, a few percent (the core), are searched; one more pass under the prices found
proves the answer for all. If many samples are alike, the core may contain nearly all of them; then the search goes over
all samples, guided by the plans of the subset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex
from sophon.plan.game import Matrix, Vector, solve_game
from sophon.plan.pricing import Costs, Priced, cheapest, decide

# Relative gap between mixture and bound at which a table counts as solved.
_EXACT = 1e-9  # small: passes cost nothing
_CLOSE = 1e-7  # large, with a small core
_NEAR = 1e-5  # for large tables, where every step is a pass over all samples: still a hundredth of the promised 0.1 %

_SAMPLE_ROWS = 2**16
_MIDDLE_ROWS = 2**19
_ROUNDS = 6
_LEAST_REACH = 1e-3  # of a weight: keeps the simplex from collapsing when nothing moves any more
_MOST_REACH = 2e-2  # of a weight: beyond that, one more pass is cheaper than a large core
_CORE_SHARE = 1 / 8


@dataclass(frozen=True)
class Goal:
    """The goal of the minimisation: the least t with T(x) ≤ base + t · slope.

    A fixed budget per epoch would be a resource with that base and almost no slope.

    Args:
        base: Seconds that each resource may take in any case.
        slope: Additional seconds that each resource may take per unit of t; all positive.
    """

    base: Vector
    slope: Vector

    @classmethod
    def epoch(cls, resources: int) -> Goal:
        """Return the goal whose t is the epoch's seconds."""
        return cls(np.zeros(resources), np.ones(resources))

    def of(self, times: Matrix) -> Matrix:
        """Return the t that each resource of each plan needs."""
        needs: Matrix = (times - self.base) / self.slope
        return needs

    def of_part(self, part: float) -> Goal:
        """Return the goal scaled to a share of the samples."""
        return Goal(self.base * part, self.slope)

    def bound(self, plan: Priced) -> float:
        """Return a lower bound on t for all plans, as proven by the prices of `plan`."""
        return (plan.value - float(plan.prices @ self.base)) / float(plan.prices @ self.slope)

    def weights(self, prices: Vector) -> Vector:
        """Return prices on resources as weights, summing to 1, on what `of` returns."""
        scaled = prices * self.slope
        weights: Vector = scaled / scaled.sum()
        return weights


@dataclass(frozen=True)
class Relaxation:
    """A solved relaxation.

    Args:
        plans: The plans of the best mixture, at most as many as there are resources.
        weights: The share of each of these plans.
        value: t of the mixture.
        bound: No plan has a smaller t.
        times: [plans, resources] times of all plans that were tried.
        prices: The prices of the best bound.
        around: Prices under which the plans of the mixture were found; they surround the best prices.
    """

    plans: tuple[CutIndex, ...]
    weights: Vector
    value: float
    bound: float
    times: Matrix
    prices: Vector
    around: Matrix


def solve(costs: Costs, goal: Goal | None = None, enough: float = -np.inf) -> Relaxation:
    """Return the mixture of plans that reaches the goal best, and the bound that proves it.

    Args:
        costs: The samples.
        goal: The goal; the epoch's seconds if left out.
        enough: Stop as soon as a mixture is at or below this t.
    """
    n = len(costs)
    goal = Goal.epoch(costs.resources) if goal is None else goal
    if n <= 2 * _SAMPLE_ROWS:
        return _search(costs, goal, _corners(costs), gap=_EXACT, enough=enough)
    rows = np.linspace(0, n - 1, _SAMPLE_ROWS).round().astype(np.intp)
    sample, many = costs.rows(rows), n / _SAMPLE_ROWS
    few_goal = Goal((goal.base - costs.base_s) / many, goal.slope)
    few = _search(sample, few_goal, _corners(costs), gap=_CLOSE)
    if n >= 4 * _MIDDLE_ROWS:  # the benefit of a larger subset costs a tenth of a pass over all samples
        middle = costs.rows(np.linspace(0, n - 1, _MIDDLE_ROWS).round().astype(np.intp))
        at = cheapest(middle, few.prices / goal.slope)
        few = _corrected(sample, few_goal, few, at, at.times / (_MIDDLE_ROWS / _SAMPLE_ROWS))
    tried = [cheapest(costs, few.prices / goal.slope)]
    for _ in range(_ROUNDS):
        last = tried[-1]
        few = _corrected(sample, few_goal, few, last, (last.times - costs.base_s) / many)
        prices = few.prices / goal.slope
        if _moved(costs, last.prices, prices, last.times) > _MOST_REACH:
            tried.append(cheapest(costs, prices))
            continue
        corners = _corner_plans(costs, last, prices)
        core = np.flatnonzero(np.logical_or.reduce([corners[0].cut != plan.cut for plan in corners[1:]]))
        if len(core) > n * _CORE_SHARE:
            tried += corners
            break
        found, proof = _solve_core(costs, goal, corners[0], core, few)
        if found.value - found.bound <= _CLOSE * max(abs(found.bound), float(np.abs(goal.base).max())):
            return found
        tried.append(proof)
    # Each plan of the subset is assumed to be slightly worse than it is, so that noise does not exclude the answer.
    guides = goal.of(few.times * many * 1.01 + costs.base_s)
    return _search(costs, goal, few.around, gap=_NEAR, passes=24, enough=enough, guides=guides, plans=tried)


def _corrected(sample: Costs, goal: Goal, few: Relaxation, plan: Priced, times: Vector) -> Relaxation:
    # Solves the subset again with a correction for all other samples, as if it were spent on any route: `times` of all
    # samples under the prices of a plan, scaled to the subset, minus the subset's own.
    unknown = times - cheapest(sample, plan.prices).times
    return _search(sample, Goal(goal.base - unknown, goal.slope), few.around, gap=_CLOSE)


def _moved(costs: Costs, before: Vector, after: Vector, times: Vector) -> float:
    # Returns the largest relative change of the measures' weights; only their direction counts. A resource with a tiny
    # price cannot move a weight by much, even if its price grows many times over.
    scale = float(before @ times) / max(float(after @ times), 1e-300)
    old, new = costs.weights(before), costs.weights(after * scale)
    least = 1e-3 * costs.weights(np.full_like(before, before.max()))
    return float((np.abs(new - old) / np.maximum(np.maximum(old, least), 1e-300)).max())


def _corners(costs: Costs) -> Matrix:
    return np.eye(costs.resources) + 1e-3


def _corner_plans(costs: Costs, last: Priced, prices: Vector) -> list[Priced]:
    # Returns the plans at the corners of a simplex around the weights of `prices`, for every part. One corner is the
    # last pass, whose plan is known. So in every direction the simplex reaches half as far as the last pass was off,
    # which is several times the remaining error of the prices.
    now, before = costs.weights(prices), costs.weights(last.prices)
    corners = np.empty((now.shape[1], *now.shape))
    is_known = True
    for part in range(len(now)):
        corners[:, part], from_last = _simplex(now[part], before[part])
        is_known &= from_last
    plans = [last] if is_known else []
    # A route that no sample uses under the last prices is unlikely to enter in so small a step, and checking it costs
    # as much as a route in use. If one does enter, the proof notices, because it checks all routes.
    chosen = np.flatnonzero(np.bincount(last.cut, minlength=1))
    near = replace(costs, columns=tuple(chosen.tolist()))
    for weights in corners[len(plans) :]:
        # Such weights need not come from prices, so these plans prove no bound.
        cut, sums, _ = decide(near, weights)
        plans.append(Priced(cut, costs.seconds(sums), -np.inf, np.ones(costs.resources)))
    return plans


def _simplex(now: Vector, before: Vector) -> tuple[Matrix, bool]:
    # Returns the corners of a regular simplex around weights, the first at the previous weights, and whether it is
    # exactly there: if the weights have hardly moved, it is farther away. The first measure's weight stays fixed, since
    # only the direction counts.
    with np.errstate(divide="ignore", invalid="ignore"):
        off = (before[1:] / before[0]) / (now[1:] / now[0]) - 1
    if not np.isfinite(off).all() or (np.abs(off) > 1).any():
        off = np.zeros_like(off)
    size = float(np.sqrt(off @ off))
    corners = _regular(len(now))
    if size > 0:  # a reflection moves the first corner to the previous weights
        axis = corners[0] - off / size
        length = float(axis @ axis)
        if length > 1e-12:
            corners = corners - np.outer(corners @ axis, axis) * (2 / length)
    shift = np.insert(corners * max(size, len(off) * _LEAST_REACH), 0, 0.0, axis=1)
    return now * np.maximum(1 + shift, 0.0), size >= len(off) * _LEAST_REACH


def _regular(corners: int) -> Matrix:
    # Returns the corners of a regular simplex around the origin, at distance 1, in one dimension fewer.
    flat = np.eye(corners) - 1 / corners
    _, _, axes = np.linalg.svd(flat)
    points: Matrix = flat @ axes[: corners - 1].T
    points /= np.sqrt((points**2).sum(axis=1, keepdims=True))
    return points


def _solve_core(
    costs: Costs, goal: Goal, plan: Priced, core: NDArray[np.intp], few: Relaxation
) -> tuple[Relaxation, Priced]:
    # All samples outside the core keep their route; one pass over all samples under the prices found shows the loss.
    fixed = plan.times - costs.times(core, plan.cut[core]).sum(axis=0)
    inner = _search(costs.rows(core), Goal(goal.base - fixed, goal.slope), few.around, gap=_CLOSE / 4)
    plans = []
    for part in inner.plans:
        whole = plan.cut.copy()
        whole[core] = part
        plans.append(whole)
    proof = cheapest(costs, inner.prices / goal.slope)
    bound = goal.bound(proof)
    return replace(inner, plans=tuple(plans), bound=bound, times=inner.times + fixed), proof


def _search(
    costs: Costs,
    goal: Goal,
    start: Matrix,
    *,
    gap: float,
    passes: int = 200,
    enough: float = -np.inf,
    guides: Matrix | None = None,
    plans: Sequence[Priced] = (),
) -> Relaxation:
    # Column generation. Prices are in the units of the goal here: they sum to 1 where `goal.of` has scaled the times.
    tried = [*plans, *(cheapest(costs, prices / goal.slope) for prices in start)]
    given = len(tried)
    basis: tuple[int, ...] = ()
    size = float(np.abs(goal.base).max())
    while True:
        best = max(tried, key=goal.bound)
        bound = goal.bound(best)
        times = np.stack([plan.times for plan in tried])
        needs = goal.of(times)
        game = solve_game(needs, basis)
        basis = game.basis
        stuck = len(tried) > given and bool((times[:-1] == times[-1]).all(axis=1).any())  # nothing new was found
        small = game.value - bound <= gap * max(abs(bound), size)
        if small or game.value <= enough or len(tried) >= passes or (stuck and guides is None):
            cuts = tuple(tried[index].cut for index in game.plans)
            around = np.stack([goal.weights(tried[index].prices) for index in game.plans])
            return Relaxation(cuts, game.shares, game.value, bound, times, goal.weights(best.prices), around)
        if stuck:
            guides = None
        prices = game.weights if guides is None else solve_game(np.concatenate([needs, guides])).weights
        tried.append(cheapest(costs, prices / goal.slope))
