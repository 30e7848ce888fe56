from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sophon.errors import ConfigError
from sophon.plan.frontier import frontier
from sophon.plan.plan import make_plan
from sophon.plan.policies import POLICIES
from sophon.plan.resources import Resources
from tests.support.instances import random_profile, random_resources, worth_s

RNG = np.random.default_rng(0)
PROFILE = random_profile(RNG, 2000)
RESOURCES = random_resources(RNG, PROFILE, consumer=False)


@pytest.mark.parametrize("name", POLICIES)
def test_every_point_is_what_planning_with_so_many_cores_predicts(name):
    for point in frontier(PROFILE, RESOURCES, (0, 1.5, 4), name):
        made = make_plan(PROFILE, RESOURCES.having(storage_cores=point.amount), name).prediction
        assert point.prediction == replace(made, bound_s=None)


def test_more_cores_never_make_the_best_plan_slower():
    cores = RESOURCES.storage_cores * np.array([0.1, 0.2, 0.5, 1, 2, 5, 10])
    points = frontier(PROFILE, RESOURCES, cores)
    worth = worth_s(PROFILE, RESOURCES.having(storage_cores=cores[0]))
    for fewer, more in pairwise(points):
        assert more.prediction.epoch_s <= fewer.prediction.epoch_s + worth


def test_the_first_core_buys_most():
    """The paper's Figure 4: the gain of each further core is smaller than that of the one before."""
    from sophon.bench.planning.plan import synthetic

    points = frontier(synthetic(40_000), Resources(62.5e6, 1, 48), range(6))
    gains = -np.diff([point.prediction.epoch_s for point in points])
    assert (np.diff(gains) <= 0).all()
    assert gains[0] > 0


def test_impossible_cores_are_refused():
    with pytest.raises(ConfigError, match="storage_cores is -1"):
        frontier(PROFILE, RESOURCES, (-1,))


def test_any_resource_can_be_asked_about():
    points = frontier(PROFILE, RESOURCES, (RESOURCES.link_bytes_per_s, 1e12), rate="link_bytes_per_s")
    assert [point.amount for point in points] == [RESOURCES.link_bytes_per_s, 1e12]
    assert points[1].prediction.epoch_s <= points[0].prediction.epoch_s
