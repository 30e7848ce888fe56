from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.bench.planning.plan import synthetic
from sophon.plan.cost import predict
from sophon.plan.plan import make_plan
from sophon.plan.policies import DEFAULTS, POLICIES, Options
from sophon.plan.policies.optimal import choose
from sophon.plan.pricing import Costs
from sophon.plan.resources import Resources
from sophon.plan.stretches import level, stretch_times, stretches_of
from tests.support.instances import profile_of, random_profile, random_resources

BOTH_BIND = Resources(200e6, 8, 1e6)


def waiting_s(costs, cut, order, length):
    """Return what an epoch takes where no stretch can make good what another lost."""
    return stretch_times(costs, cut, stretches_of(len(cut), order, length)).max(axis=1).sum()


def test_stretches_are_counted_along_the_order_and_may_leave_samples_out():
    assert stretches_of(6, np.array([5, 0, 2, 1, 3]), 2).tolist() == [0, 1, 1, 2, -1, 0]
    profile = profile_of([[1, 2], [10, 20], [100, 200]], [[0, 3]] * 3, [[1, 1]] * 3)
    costs = Costs.of(profile, Resources(1, 1, 1), (0, 1))
    times = stretch_times(costs, np.array([0, 1, 0], np.uint8), stretches_of(3, np.array([2, 1, 0]), 2))
    assert times.tolist() == [[120, 3, 2], [1, 0, 1]]


def test_every_stretch_loads_link_and_cores_in_the_same_proportion():
    profile = synthetic(20_000)
    choice = choose(profile, BOTH_BIND, DEFAULTS)
    order = np.random.default_rng(0).permutation(20_000)
    costs = Costs.of(profile, BOTH_BIND, tuple(range(8)))
    cut = level(costs, choice.cut, choice.prices, order)
    off = []
    for plan in (choice.cut, cut):
        times = stretch_times(costs, plan, stretches_of(20_000, order))[:, :2]
        off.append(np.abs(times[:, 0] / times[:, 1] - 1))
    assert np.median(off[0]) > 0.1
    assert np.quantile(off[1], 0.95) < 0.05
    best_s = predict(profile, choice.cut, BOTH_BIND).epoch_s
    assert waiting_s(costs, choice.cut, order, 64) > 1.08 * best_s
    assert waiting_s(costs, cut, order, 64) < 1.02 * best_s
    assert predict(profile, cut, BOTH_BIND).epoch_s < 1.01 * best_s


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_small_cases_come_near_the_best_of_all_plans(seed):
    """Brute force: every plan of eight samples with two routes, in stretches of four."""
    rng = np.random.default_rng(seed)
    size = rng.lognormal(0, 0.5, 8)
    profile = profile_of(np.c_[size, 0.2 * size], np.c_[0 * size, rng.lognormal(0, 0.3, 8)], np.zeros((8, 2)))
    resources = Resources(1, 1, 1)
    costs = Costs.of(profile, resources, (0, 1))
    choice = choose(profile, resources, DEFAULTS)
    order = rng.permutation(8)
    before = waiting_s(costs, choice.cut, order, 4)
    after = waiting_s(costs, level(costs, choice.cut, choice.prices, order, 4), order, 4)
    best = min(waiting_s(costs, np.array(plan, np.uint8), order, 4) for plan in product((0, 1), repeat=8))
    worth_s = float(max(size.max(), profile.storage_s.max()))
    assert best <= after <= before + 1e-9
    assert after <= best + worth_s


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["spread", "grid", "alike"]), st.booleans())
def test_a_levelled_plan_has_legal_cuts_and_is_never_predicted_slower_than_any_other_policy(seed, style, storage):
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, 200, style=style, illegal=0.2)
    resources = random_resources(rng, profile, storage=storage)
    order = rng.permutation(200)
    plan = make_plan(profile, resources, order=order, options=Options(reserve=0.15))
    assert np.isfinite(profile.payload_bytes[np.arange(200), plan.cut]).all()
    for name in POLICIES:
        if name != "optimal":
            rival = predict(profile, POLICIES[name](profile, resources, DEFAULTS).cut, resources)
            assert plan.prediction.epoch_s <= rival.epoch_s, name


def test_where_one_resource_binds_nothing_is_exchanged():
    profile = synthetic(5000)
    resources = Resources(62e6, 1e6, 1e6)
    plans = [make_plan(profile, resources, order=order) for order in (None, np.arange(5000))]
    assert (plans[0].cut == plans[1].cut).all()


def test_the_same_order_gives_the_same_plan_and_another_one_another():
    profile = synthetic(5000)
    orders = [np.random.default_rng(seed).permutation(5000) for seed in (1, 1, 2)]
    first, second, other = (make_plan(profile, BOTH_BIND, order=order).cut.tobytes() for order in orders)
    assert first == second != other


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "optimal"])
def test_policies_that_do_not_weigh_stay_as_they_are(name):
    profile = synthetic(500)
    plans = [make_plan(profile, BOTH_BIND, name, order=order) for order in (None, np.arange(500))]
    assert (plans[0].cut == plans[1].cut).all()
