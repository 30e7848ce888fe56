"""The linear relaxation of "choose one cut per sample", solved by prices on the three resources.

Let a sample at a cut take (b/B, s/S, p/C) seconds of link, storage cores and trainer cores. For any prices λ ≥ 0
on the three resources with Σ λ = 1 and any plan x::

    max(T_Net(x), T_CS(x), T_CC(x)) ≥ λ·T(x) ≥ Σ_i min_c λ·(b/B, s/S, p/C)_ic = D(λ)

so D(λ) is a lower bound on every plan, found in one pass that decides each sample alone (`cheapest`).
`_search` raises it by cutting planes: the plans found so far form a small game (`sophon.plan.game`), whose prices
are tried next; it ends when the best mixture of plans and the best bound meet. That takes tens of passes.

Large tables need about four. An even sample of the rows tells where the best prices lie and how far off that
can be: a triangle of prices. Prices are linear in λ, so a sample whose cheapest cut is the same at the
triangle's corners keeps that cut everywhere inside. Only the others, a few percent (the core), are searched;
one more pass under the prices found proves the answer for all. Where many samples are alike, the core can be
nearly everyone; then the search goes over all samples, guided by the plans of the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex
from sophon.plan.game import Matrix, Vector, binding, mix_plans
from sophon.plan.pricing import Costs, Priced, cheapest

# Relative gap between mixture and bound at which a table is solved.
_EXACT = 1e-9  # small: passes cost nothing
_CLOSE = 1e-7  # large, with a small core
_NEAR = 1e-5  # large, every step a pass over all samples: still a hundredth of the 0.1 % promised

_CORNERS = np.eye(3) + 1e-3
_SAMPLE_ROWS = 2**16
_SAMPLE_PARTS = 8
_LEAST_REACH = 2e-3  # of a price: the triangle keeps an inside where all parts of the sample agree
_CORE_SHARE = 1 / 8
_CORE_ROUNDS = 3


@dataclass(frozen=True)
class Goal:
    """What is to be made small: the least t with T(x) ≤ base + t · slope.

    Args:
        base: Seconds that each resource may take anyway.
        slope: Seconds more that each may take per unit of t; all positive.
    """

    base: Vector
    slope: Vector

    def of(self, times: Matrix) -> Matrix:
        """Return the t that each resource of each plan needs."""
        needs: Matrix = (times - self.base) / self.slope
        return needs

    def of_part(self, part: float) -> Goal:
        """Return the goal of a part of the samples that takes this part of everything."""
        return Goal(self.base * part, self.slope)

    def bound(self, plan: Priced) -> float:
        """Return the t that no plan gets below, as the prices of `plan` prove."""
        return (plan.value - float(plan.prices @ self.base)) / float(plan.prices @ self.slope)

    def weights(self, prices: Vector) -> Vector:
        """Return prices on resources as weights, summing to 1, on what `of` returns."""
        scaled = prices * self.slope
        weights: Vector = scaled / scaled.sum()
        return weights


EPOCH = Goal(np.zeros(3), np.ones(3))  # t is the epoch's seconds


@dataclass(frozen=True)
class Relaxation:
    """A solved relaxation.

    Args:
        plans: The plans of the best mixture, at most three.
        weights: The share of each.
        value: t of the mixture.
        bound: No plan has a smaller t.
        times: [all plans tried, 3] their times.
        prices: The prices of the best bound.
    """

    plans: tuple[CutIndex, ...]
    weights: Vector
    value: float
    bound: float
    times: Matrix
    prices: Vector


def solve(costs: Costs, goal: Goal = EPOCH, enough: float = -np.inf) -> Relaxation:
    """Return the mixture of plans that reaches the goal best, and the bound that proves it.

    Args:
        costs: The samples.
        goal: What is to be made small.
        enough: Stop as soon as a mixture is at or below this t.
    """
    n = len(costs)
    if n <= 2 * _SAMPLE_ROWS:
        return _search(costs, goal, _CORNERS, gap=_EXACT, enough=enough)
    few, around = _estimate(costs, goal)
    tried = [cheapest(costs, prices / goal.slope) for prices in around]
    for _ in range(_CORE_ROUNDS):
        core = np.flatnonzero(np.logical_or.reduce([tried[0].cut != plan.cut for plan in tried[1:]]))
        if len(core) > n * _CORE_SHARE:
            break
        found, proof = _solve_core(costs, goal, tried[0], core, around)
        if found.value - found.bound <= _CLOSE * max(abs(found.bound), float(np.abs(goal.base).max())):
            return found
        tried.append(proof)
    # Each plan of the few is taken for a little worse than it is, so that their noise does not cut the answer off.
    guides = goal.of(few.times * (n / _SAMPLE_ROWS) * 1.01)
    return _search(costs, goal, around, gap=_NEAR, passes=24, enough=enough, guides=guides, plans=tried)


def _estimate(costs: Costs, goal: Goal) -> tuple[Relaxation, Matrix]:
    # Solves an even sample of the rows, and its eight parts for how much that answer can be off. Returns the
    # answer and the corners of a triangle about it that reaches three standard errors every way.
    n = len(costs)
    rows = np.linspace(0, n - 1, _SAMPLE_ROWS).round().astype(np.intp)
    sample = costs.rows(rows)
    few = _search(sample, goal.of_part(_SAMPLE_ROWS / n), _CORNERS, gap=_CLOSE)
    centre = few.prices / few.prices.max()
    scale = np.maximum(centre, 1e-9)
    main = int(centre.argmax())
    off = np.empty((_SAMPLE_PARTS, 3))
    for part in range(_SAMPLE_PARTS):
        costs_part = sample.rows(np.arange(part, _SAMPLE_ROWS, _SAMPLE_PARTS))
        found = _search(
            costs_part, goal.of_part(len(costs_part) / n), few.prices * (1 + 0.05 * np.eye(3)), gap=_NEAR
        ).prices
        # Bounded: a part of the sample for which another resource decides altogether says no more than "far off".
        off[part] = np.clip((found / max(found[main], 1e-6) - centre) / scale, -1.0, 1.0)
    off = np.delete(off, main, axis=1)
    _, size, axes = np.linalg.svd(off - off.mean(axis=0))
    error = size / np.sqrt(_SAMPLE_PARTS * (_SAMPLE_PARTS - 1))
    # The smallest triangle about a circle of radius r has its corners at 2 r.
    reach = np.maximum(2 * 3 * error, _LEAST_REACH)
    angles = np.pi * (0.5 + np.arange(3) * 2 / 3)
    shift = (np.cos(angles)[:, None] * reach[0] * axes[0]) + (np.sin(angles)[:, None] * reach[1] * axes[1])
    corners = centre + np.insert(shift, main, 0.0, axis=1) * centre
    corners = np.maximum(corners, 0.0)
    return few, corners / corners.sum(axis=1, keepdims=True)


def _solve_core(
    costs: Costs, goal: Goal, plan: Priced, core: NDArray[np.intp], start: Matrix
) -> tuple[Relaxation, Priced]:
    # All samples outside the core keep their cut; one pass over all under the prices found says what that loses.
    fixed = plan.times - costs.times(core, plan.cut[core]).sum(axis=0)
    inner = _search(costs.rows(core), Goal(goal.base - fixed, goal.slope), start, gap=_CLOSE / 4)
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
    # Cutting planes. Prices are in the units of the goal here: they sum to 1 where `goal.of` has scaled the times.
    tried = list(plans)
    tried += [cheapest(costs, prices / goal.slope) for prices in start[len(tried) :]]
    given = len(tried)
    tight: list[int] = []
    size = float(np.abs(goal.base).max())
    while True:
        best = max(tried, key=goal.bound)
        bound = goal.bound(best)
        times = np.stack([plan.times for plan in tried])
        needs = goal.of(times)
        prices, decisive = binding(needs, tight)
        found = needs[decisive] @ prices
        value = float(found.min())  # what the best mixture has too: both sides of the game meet
        tight = decisive[np.argsort(found, kind="stable")[:4]].tolist()
        stuck = len(tried) > given and bool((times[:-1] == times[-1]).all(axis=1).any())  # nothing new was found
        small = value - bound <= gap * max(abs(bound), size)
        if small or value <= enough or len(tried) >= passes or (stuck and guides is None):
            mix = mix_plans(needs)
            cuts = tuple(tried[index].cut for index in mix.plans)
            return Relaxation(cuts, mix.weights, mix.value, bound, times, goal.weights(best.prices))
        if stuck:
            guides = None
        if guides is not None:
            prices, _ = binding(np.concatenate([needs, guides]))
        tried.append(cheapest(costs, prices / goal.slope))
