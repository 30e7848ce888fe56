import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sophon.plan.game import solve_game


def value_by_lp(times):
    count = len(times)
    solved = linprog(
        np.r_[np.zeros(count), 1.0],
        A_ub=np.c_[times.T, -np.ones(times.shape[1])],
        b_ub=np.zeros(times.shape[1]),
        A_eq=[np.r_[np.ones(count), 0.0]],
        b_eq=[1.0],
        bounds=[(0, None)] * count + [(None, None)],
    )
    return solved.fun


def game(rng, count, resources, style):
    times = rng.random((count, resources))
    if style == "grid":
        return rng.integers(0, 4, (count, resources)).astype(float)
    if style == "negative":
        return times - 0.5
    return rng.lognormal(0, 4, (count, resources)) if style == "scales" else times


STYLES = st.sampled_from(["spread", "grid", "negative", "scales"])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 12), STYLES)
def test_both_sides_meet_at_the_value_of_the_game(seed, count, resources, style):
    times = game(np.random.default_rng(seed), count, resources, style)
    value = value_by_lp(times)
    size = np.abs(times).max()
    found = solve_game(times)
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1)
    assert (times @ found.weights).min() == pytest.approx(value, abs=1e-7 * size)
    assert len(found.plans) <= resources
    assert found.shares.min() >= 0
    assert found.shares.sum() == pytest.approx(1)
    assert (found.shares @ times[list(found.plans)]).max() == pytest.approx(found.value, abs=1e-12 * size)
    assert found.value == pytest.approx(value, abs=1e-7 * size)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), STYLES)
def test_a_game_goes_on_from_where_it_was_when_plans_are_added(seed, resources, style):
    times = game(np.random.default_rng(seed), 30, resources, style)
    basis = ()
    for count in (1, 2, 5, 12, 30):
        found = solve_game(times[:count], basis)
        basis = found.basis
        size = np.abs(times[:count]).max()
        assert found.value == pytest.approx(solve_game(times[:count]).value, abs=1e-7 * size)


def test_one_plan_is_its_own_mixture():
    found = solve_game(np.array([[1.0, 3.0, 2.0]]))
    assert (found.plans, found.value) == ((0,), 3.0)


@pytest.mark.parametrize("resources", [3, 4, 8])
def test_as_many_plans_are_mixed_as_resources_bind(resources):
    found = solve_game(np.eye(resources) * resources)
    assert found.value == pytest.approx(1)
    assert found.shares == pytest.approx([1 / resources] * resources)
