import numpy as np
import pytest

from sophon.plan.plan import make_plan
from sophon.plan.resources import Resources
from tests.support.instances import random_profile

RESOURCES = Resources(5e6, 1, 2, 2000.0)


@pytest.fixture(scope="session")
def profile():
    return random_profile(np.random.default_rng(0), 300, illegal=0.05)


@pytest.fixture(scope="session")
def plan(profile):
    return make_plan(profile, RESOURCES)
