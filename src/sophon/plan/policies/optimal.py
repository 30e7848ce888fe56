"""The shortest epoch over all routes of all samples at once, with a proven bound on the gap to the optimum.

1. If the plan with the fewest storage seconds is as fast as the resources that no plan can change (the consumer, the
   store), it is chosen.
2. The linear relaxation (`sophon.plan.relaxation`) gives a mixture of a few plans and the bound that no plan can beat;
   rounding (`sophon.plan.rounding`) turns it into one plan that is at most one sample's worth longer, or a few samples'
   worth with many resources. One sample's worth is the longest time, in seconds per epoch, that any one sample takes on
   any one resource by any legal route.
3. If that plan is faster than the consumer needs, the relaxation is solved again for the fewest storage seconds that
   keep up with the consumer.
4. On small tables, where a single sample matters, single changes are tried until none helps.
5. The other policies choose among raw cuts only. If the bound for raw cuts is above the plan found, they are all
   slower; otherwise they are tried too. The best is taken, so this policy is never predicted slower than any other.

The best plan has the fewest epoch seconds, then the fewest storage CPU seconds, then the fewest bytes. All resources
count equally, so a CPU-bound job moves work to storage even where bytes do not shrink. With `Options.reserve` the plan
leaves a share of the storage cores free; its prediction and the bound refer to all cores. With `Options.headroom`,
among plans that are as fast as the consumer, those that could also serve a faster one are preferred.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sophon.plan.cost import CutIndex, predict
from sophon.plan.game import Vector
from sophon.plan.policies import all as all_
from sophon.plan.policies import fastflow, none, resize, sophon
from sophon.plan.policies.choice import Choice, Options, exact_columns, resize_k
from sophon.plan.pricing import SAFETY, Costs, cheapest
from sophon.plan.relaxation import Goal, solve
from sophon.plan.resources import Resources
from sophon.plan.rounding import polish, round_mixture, times_of
from sophon.profile.table import Profile

_POLISH_CELLS = 2**14  # samples × routes up to which single changes are tried: 2,048 samples of 8 cuts
_FRUGAL_TRIES = 4  # the first succeeded on 173, the second on 177 of 178 random tables
_SLOPE = 1e-6  # of storage's seconds, by which other resources may exceed the consumer's; `kept_s` allows for it


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:
    """Give every sample the route that makes the epoch shortest."""
    consumer = resources.consumer_samples_per_s
    if not options.headroom or not np.isfinite(consumer):
        return _choose(profile, resources, options)
    # A plan that is best for a quicker consumer is best for this one too: T is the longer of the plan's time and the
    # consumer's. The same holds for the bounds.
    keen = resources.having(consumer_samples_per_s=consumer / (1 - options.headroom))
    choice = _choose(profile, keen, options)
    floor_s = Costs.of(profile, resources, exact_columns(profile, options)).floor_s
    bound_s = max(choice.bound_s or 0.0, floor_s)
    return replace(choice, bound_s=_matching(bound_s, predict(profile, choice.cut, resources).epoch_s))


def _choose(profile: Profile, resources: Resources, options: Options) -> Choice:
    columns = exact_columns(profile, options)
    costs = Costs.of(profile, resources, columns, options.reserve)
    floor_s = costs.floor_s
    prices = costs.thrifty().astype(np.float64)
    lazy = cheapest(costs, prices) if prices.any() and (floor_s > 0 or costs.barred.any()) else None
    if lazy is not None and not np.isfinite(lazy.value):
        found, bound_s = [], np.inf  # no storage cores, and some sample costs storage seconds at every route
    elif lazy is not None and lazy.times.max(initial=0.0) <= floor_s:
        found, bound_s = [lazy.cut], floor_s
    else:
        found, bound_s, prices = _fastest(costs, floor_s)
    ranked = [(predict(profile, cut, resources).rank, cut, "") for cut in found]
    if options.reserve:  # the bound refers to all cores, including those kept free
        costs = Costs.of(profile, resources, columns)
        bound_s = max(floor_s, cheapest(costs, prices).bound_s) if np.isfinite(bound_s) else bound_s
    rivals = cheapest(replace(costs, columns=profile.raw_columns()), prices)
    if not ranked or rivals.bound_s <= min(ranked, key=_rank)[0][0]:
        ranked += _others(profile, resources, options)
    rank, cut, name = min(ranked, key=_rank)
    bound_s = _matching(bound_s, rank[0])
    reason = f"the plan of `{name}` cannot be improved on" if name else "all cuts of all samples were weighed at once"
    priced = not name and bool(prices.any()) and np.isfinite(bound_s)
    return Choice(cut, reason, bound_s, prices if priced else None, rivals.bound_s)


def _matching(bound_s: float, epoch_s: float) -> float:
    # The two may be the same sum, added up in a different order.
    return epoch_s if epoch_s < bound_s <= epoch_s / SAFETY else bound_s


_Ranked = tuple[tuple[float, ...], CutIndex, str]


def _rank(entry: _Ranked) -> tuple[float, ...]:
    return entry[0]


def _others(profile: Profile, resources: Resources, options: Options) -> list[_Ranked]:
    policies = {"none": none.choose, "sophon": sophon.choose, "fastflow": fastflow.choose, "all": all_.choose}
    k = resize_k(profile, options)
    if any(profile.cuts[column].k == k for column in profile.raw_columns()):
        policies["resize"] = resize.choose
    ranked = []
    for name, policy in policies.items():
        cut = policy(profile, resources, options).cut
        ranked.append((predict(profile, cut, resources).rank, cut, name))
    return ranked


def _fastest(costs: Costs, floor_s: float) -> tuple[list[CutIndex], float, Vector]:
    fast = solve(costs, enough=floor_s - costs.worth_s())
    found = [round_mixture(costs, fast.plans, fast.weights, floor_s)]
    # Rounding may make a plan a little longer than its mixture: if it becomes too long, a larger margin is kept free.
    kept_s = 2 * _SLOPE * floor_s
    for _ in range(_FRUGAL_TRIES):
        if fast.value > floor_s - kept_s:
            break
        thrifty = costs.thrifty()
        if not thrifty.any():
            break
        goal = Goal(np.where(thrifty, 0.0, floor_s - kept_s), np.where(thrifty, 1.0, _SLOPE))
        frugal = solve(costs, goal)
        found.append(round_mixture(costs, frugal.plans, frugal.weights, floor_s))
        over_s = float(times_of(costs, found[-1]).max()) - floor_s
        if over_s <= 0:
            break
        kept_s = 4 * (kept_s + over_s)
    if len(costs) * len(costs.columns) <= _POLISH_CELLS:
        found = [polish(costs, cut, floor_s) for cut in found]
    return found, max(floor_s, fast.bound), fast.prices
