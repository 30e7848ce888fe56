import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.plan import rounding
from sophon.plan.pricing import Costs
from sophon.plan.rounding import polish, round_mixture, times_of
from tests.support.instances import CUTS, random_profile, random_resources, worth_s


def instance(seed, samples, style):
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, samples, CUTS, style)
    resources = random_resources(rng, profile)
    costs = Costs.of(profile, resources, tuple(range(len(CUTS))))
    plans = [rng.integers(0, len(CUTS), samples).astype(np.uint8) for _ in range(3)]
    return profile, resources, costs, plans, rng.dirichlet(np.ones(3))


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 80), st.sampled_from(["spread", "grid", "alike"]), st.integers(1, 3))
def test_one_plan_takes_what_the_mixture_takes_but_for_one_samples_worth(seed, samples, style, count):
    profile, resources, costs, plans, weights = instance(seed, samples, style)
    plans, weights = plans[:count], weights[:count] / weights[:count].sum()
    mixed = sum(w * times_of(costs, plan) for w, plan in zip(weights, plans, strict=True))
    cut = round_mixture(costs, plans, weights, 0.0)
    assert np.any([cut == plan for plan in plans], axis=0).all()  # every sample has a cut of one of the plans
    assert times_of(costs, cut).max() <= mixed.max() + worth_s(profile, resources) * (1 + 1e-9)


@pytest.mark.parametrize("style", ["spread", "grid", "alike"])
@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.98, 0.01, 0.01), (0.001, 0.999, 0)])
@pytest.mark.matrix(every=3)
def test_large_mixtures_keep_all_three_times(style, weights):
    profile, resources, costs, plans, _ = instance(7, 150_000, style)
    mixed = sum(w * times_of(costs, plan) for w, plan in zip(weights, plans, strict=True))
    off = np.abs(times_of(costs, round_mixture(costs, plans, np.array(weights), 0.0)) - mixed)
    assert off.max() <= 6 * worth_s(profile, resources)


def test_the_plans_given_are_not_changed():
    _, _, costs, plans, weights = instance(3, 5000, "spread")
    before = [plan.copy() for plan in plans]
    round_mixture(costs, plans, weights, 0.0)
    assert all((a == b).all() for a, b in zip(plans, before, strict=True))


def test_a_null_vector_is_found_where_samples_are_alike():
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((50, 4, 3))
    steps[10:20] = steps[10:20, :1]  # four samples alike: rank one
    steps[20:30, 2:] = steps[20:30, :2]  # rank two
    steps[30:40] = 0
    steps[40:, :, 0] *= 1e-9  # resources of very unlike size
    way = rounding._null(steps)
    assert np.abs(np.einsum("gk,gkr->gr", way, steps)).max() < 1e-12
    assert np.abs(way).max(axis=1).min() >= 0.25


def test_polishing_never_makes_a_plan_worse():
    for seed in range(30):
        _, _, costs, plans, _ = instance(seed, 40, ("spread", "grid", "alike")[seed % 3])
        floor_s = times_of(costs, plans[1]).max() * 0.8
        better = polish(costs, plans[0], floor_s)
        before = rounding.rank_of(costs, times_of(costs, plans[0]), floor_s)
        after = rounding.rank_of(costs, times_of(costs, better), floor_s)
        assert after[0] <= before[0] * (1 + 1e-9)
