"""Predicting costs from sizes."""

import json

import numpy as np
import pytest

from sophon.errors import ConfigError
from sophon.profile.model import Fit, fit


def _samples(count, noise, seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal([11.5, 12.2, 11.4], [0.5, 0.4, 0.7], (count, 3)))
    costs = 3e-6 * sizes[:, 0] ** 0.4 * sizes[:, 2] ** 0.3 * np.exp(rng.normal(0, noise, count))
    return np.log(sizes), costs


def test_a_law_is_found_again_and_the_stated_error_is_that_of_samples_not_seen():
    features, costs = _samples(400, noise=0.2)
    rule = fit(features[:200], costs[:200])
    assert np.allclose(rule.slopes, (0.4, 0.0, 0.3), atol=0.06)
    unseen = np.mean(np.abs(rule.predict(features[200:]) - costs[200:]) / costs[200:])
    assert rule.error == pytest.approx(unseen, rel=0.25)
    assert rule.predict(features[200:]).sum() == pytest.approx(costs[200:].sum(), rel=0.05)


def test_few_samples_keep_to_the_slopes_that_are_expected():
    features, costs = _samples(6, noise=0.02)
    told, untold = fit(features, costs, (0.4, 0.0, 0.3)), fit(features, costs)
    truth = np.array((0.4, 0.0, 0.3))
    assert np.abs(np.array(told.slopes) - truth).sum() < np.abs(np.array(untold.slopes) - truth).sum()


def test_one_sample_is_the_prediction_for_all():
    rule = fit(np.array([[1.0, 2.0, 3.0]]), np.array([0.25]))
    assert rule.predict(np.array([[9.0, 9.0, 9.0]])) == pytest.approx([0.25])


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_that_too_few_samples_tell_of_is_not_known_and_not_zero(count):
    rule = fit(*_samples(count, noise=0.5))
    assert rule.error is None
    assert Fit.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert fit(*_samples(3, noise=0.5)).error > 0


def test_the_sum_of_predictions_is_the_measured_sum():
    features, costs = _samples(50, noise=0.4)
    assert fit(features, costs).predict(features).sum() == pytest.approx(costs.sum(), rel=1e-3)


def test_the_first_call_of_a_library_does_not_spoil_the_rule():
    features, costs = _samples(12, noise=0.05)
    spoilt = costs.copy()
    spoilt[0] *= 200
    assert fit(features, spoilt).predict(features).sum() < 1.6 * costs.sum()


def test_nothing_is_predicted_far_beyond_what_was_measured():
    features, costs = _samples(30, noise=0.1)
    wild = fit(features, costs).predict(np.array([[60.0, 60.0, 60.0], [-60.0, -60.0, -60.0]]))
    assert costs.min() / 5 < wild.min()
    assert wild.max() < costs.max() * 5


def test_a_rule_from_samples_that_are_nearly_alike_predicts_others_without_overflow():
    alike = np.array([[10.0, 10.0, 10.0], [10.0 + 1e-6, 10.0, 10.0], [10.0 + 2e-6, 10.0, 10.0], [10.0, 10.0, 10.0]])
    rule = fit(alike, np.array([1.0, 2.0, 3.0, 1.0]))
    assert abs(rule.slopes[0]) < 1e-3  # they say nothing about others
    assert rule.predict(np.array([[15.0, 10.0, 10.0], [5.0, 10.0, 10.0]])) == pytest.approx([1.75, 1.75], rel=1e-4)


def test_a_rule_with_extreme_slopes_predicts_without_overflow():
    rule = Fit(4, 0.1, (10.0, 10.0, 10.0), (4e5, 0.0, 0.0), 0.5, 0.25, 12.0)
    assert rule.predict(np.array([[15.0, 10.0, 10.0], [5.0, 10.0, 10.0]])) == pytest.approx([12.0, 0.25])


def test_slopes_are_those_of_least_squares_with_four_samples_more_that_lie_where_they_are_expected():
    features, costs = _samples(20, noise=0.3)
    prior = np.array((0.2, -0.2, 0.1))
    offsets, logs = features - features.mean(axis=0), np.log(costs)
    rest = logs - offsets @ prior
    more = np.sqrt(4.0) * np.eye(3)  # for each feature: four samples a factor of e from the mean, exactly as expected
    told = np.concatenate([rest - rest.mean(), np.zeros(3)])
    expected = prior + np.linalg.lstsq(np.concatenate([offsets, more]), told, rcond=None)[0]
    assert fit(features, costs, tuple(prior)).slopes == pytest.approx(expected)


def test_three_samples_of_which_one_is_odd_do_not_say_that_others_cost_almost_nothing():
    rng = np.random.default_rng(3)
    others = rng.normal([11.3, 12.0, 11.4], [0.9, 0.6, 0.85], (1000, 3))  # as photos of ImageNet spread
    lowest = []
    for _ in range(50):
        features = rng.normal([11.3, 12.0, 11.4], [0.9, 0.6, 0.85], (3, 3))
        costs = 1e5 * np.exp(rng.normal(0, 0.26, 3)) * (1.0, 1.0, 0.15)  # the third is a drawing
        lowest.append(np.quantile(fit(features, costs).predict(others), 0.1) / costs.mean())
    assert np.median(lowest) > 0.6  # 0.25 with a ridge in units of the spread of the three


def test_nothing_measured_is_an_error():
    with pytest.raises(ConfigError, match="at least one sample"):
        fit(np.empty((0, 3)), np.empty(0))


def test_a_rule_survives_being_written_down():
    rule = fit(*_samples(20, noise=0.1))
    assert Fit.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        [1, 2, 3],
        [1, 0.1, [0], [0, 0], 0, 0, 1],
        [1, 0.1, [0], [float("nan")], 0, 0, 1],
        [1, 0.1, [0], [0], 0, 2, 1],
        [1, 0.1, [0], [1e300], 0, 0, 1],
        [1, 0.1, 3, [0], 0, 0, 1],
    ],
)
def test_what_is_no_rule_is_refused(said):
    with pytest.raises(ConfigError, match="not a prediction rule"):
        Fit.from_json(said)
