import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sophon.plan.game import binding, mix_plans


def value_by_lp(times):
    count = len(times)
    solved = linprog(
        np.r_[np.zeros(count), 1.0],
        A_ub=np.c_[times.T, -np.ones(3)],
        b_ub=np.zeros(3),
        A_eq=[np.r_[np.ones(count), 0.0]],
        b_eq=[1.0],
        bounds=[(0, None)] * count + [(None, None)],
    )
    return solved.fun


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from(["spread", "grid", "negative", "scales"]))
def test_both_sides_meet_at_the_value_of_the_game(seed, count, style):
    rng = np.random.default_rng(seed)
    times = rng.random((count, 3))
    if style == "grid":
        times = rng.integers(0, 4, (count, 3)).astype(float)
    elif style == "negative":
        times -= 0.5
    elif style == "scales":
        times = rng.lognormal(0, 4, (count, 3))
    value = value_by_lp(times)
    size = np.abs(times).max()
    weights, decisive = binding(times)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    assert (times @ weights).min() == pytest.approx(value, abs=1e-7 * size)
    assert (times[decisive] @ weights).min() == (times @ weights).min()
    mix = mix_plans(times)
    assert len(mix.plans) <= 3
    assert mix.weights.min() >= 0
    assert mix.weights.sum() == pytest.approx(1)
    assert (mix.weights @ times[list(mix.plans)]).max() == pytest.approx(mix.value, abs=1e-12 * size)
    assert mix.value == pytest.approx(value, abs=1e-7 * size)


def test_one_plan_is_its_own_mixture():
    mix = mix_plans(np.array([[1.0, 3.0, 2.0]]))
    assert (mix.plans, mix.value) == ((0,), 3.0)


def test_three_plans_are_mixed_where_all_three_resources_bind():
    mix = mix_plans(np.array([[3.0, 0, 0], [0, 3, 0], [0, 0, 3]]))
    assert mix.value == pytest.approx(1)
    assert mix.weights == pytest.approx([1 / 3] * 3)
