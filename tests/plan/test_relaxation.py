import numpy as np
import pytest

from sophon.plan import pricing, relaxation
from sophon.plan.pricing import Costs, cheapest
from sophon.plan.relaxation import Goal, solve
from sophon.plan.rounding import times_of
from tests.support.instances import CUTS, random_profile, random_resources

ALL = tuple(range(len(CUTS)))


def costs_of(seed, samples, style="spread", columns=ALL, **kind):
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, samples, CUTS, style, illegal=0.1)
    return Costs.of(profile, random_resources(rng, profile, **kind), columns)


@pytest.mark.parametrize("columns", [tuple(range(8)), (0, 3, 7), (0,)])
def test_the_cheapest_plan_is_cheapest_for_every_sample(columns, monkeypatch):
    monkeypatch.setattr(pricing, "_BLOCK", 17)
    costs = costs_of(0, 100, columns=columns)
    prices = np.array([0.2, 0.5, 0.3])
    found = cheapest(costs, prices)
    weights = prices @ costs.per_s[:, 0]
    each = sum(w * t.astype(float) for w, t in zip(weights, costs.tables, strict=True))[:, columns]
    assert set(found.cut) <= set(columns)
    assert np.allclose(each.min(axis=1), each[np.arange(100), np.searchsorted(columns, found.cut)], rtol=1e-8)
    assert found.value == pytest.approx(each.min(axis=1).sum(), rel=1e-8)
    assert found.times == pytest.approx(times_of(costs, found.cut))


def test_every_price_gives_a_bound_on_every_plan():
    costs = costs_of(1, 200)
    rng = np.random.default_rng(0)
    best = solve(costs)
    for _ in range(50):
        assert cheapest(costs, rng.dirichlet(np.ones(3))).bound_s <= best.value


def mixed_times(costs, found):
    parts = zip(found.weights, found.plans, strict=True)
    return sum(weight * times_of(costs, plan) for weight, plan in parts)


@pytest.mark.parametrize("style", ["spread", "grid", "alike"])
def test_mixture_and_bound_meet(style):
    for seed in range(15):
        costs = costs_of(seed, 300, style)
        found = solve(costs)
        assert found.bound <= found.value <= found.bound * (1 + 1e-8)
        assert mixed_times(costs, found).max() == pytest.approx(found.value)


@pytest.mark.parametrize("style", ["spread", "grid", "alike"])
def test_the_short_way_for_large_tables_gives_what_the_long_way_gives(style, monkeypatch):
    costs = costs_of(5, 40_000, style)
    plain = solve(costs)
    monkeypatch.setattr(relaxation, "_SAMPLE_ROWS", 2**12)
    short = solve(costs)
    assert short.bound <= plain.value * (1 + 1e-9)
    assert short.value == pytest.approx(plain.value, rel=2e-5)
    assert short.value - short.bound <= 2e-5 * short.value


def test_enough_is_enough():
    costs = costs_of(3, 1000)
    best = solve(costs).value
    found = solve(costs, enough=best * 1.2)
    assert best <= found.value <= best * 1.2


def test_a_goal_with_a_base_spends_least_of_one_resource():
    costs = costs_of(4, 500)
    limit = solve(costs).value * 1.3
    goal = Goal(np.array([limit, 0.0, limit]), np.array([1e-6, 1.0, 1e-6]))
    link_s, storage_s, trainer_s = mixed_times(costs, solve(costs, goal))
    assert max(link_s, trainer_s) <= limit * (1 + 1e-5)
    assert storage_s < mixed_times(costs, solve(costs))[1]


def test_the_epochs_goal_is_the_times_themselves():
    times = np.array([[1.0, 2.0, 3.0]])
    assert (Goal.epoch(3).of(times) == times).all()
