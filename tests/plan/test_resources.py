import math

import numpy as np
import pytest

from sophon.errors import ConfigError
from sophon.plan.resources import Resources

GOOD = {"link_bytes_per_s": 1.0, "storage_cores": 1.0, "trainer_cores": 1.0, "consumer_samples_per_s": 1.0}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", [-1, math.nan, -math.inf, None, "2", True, 1j])
def test_what_is_no_amount_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is .*give the"):
        Resources(**{**GOOD, name: value})


@pytest.mark.parametrize("name", ["link_bytes_per_s", "trainer_cores", "consumer_samples_per_s"])
def test_zero_is_refused_with_what_to_give(name):
    with pytest.raises(ConfigError, match=f"{name} is 0.*more than zero"):
        Resources(**{**GOOD, name: 0})


@pytest.mark.parametrize("name", ["link_bytes_per_s", "storage_cores", "trainer_cores"])
def test_what_must_be_finite_is(name):
    with pytest.raises(ConfigError, match=f"{name} is inf"):
        Resources(**{**GOOD, name: math.inf})


def test_no_storage_cores_and_an_unknown_consumer_are_fine():
    assert Resources(1, 0, 1).consumer_samples_per_s == math.inf


def test_numpy_numbers_are_numbers():
    assert Resources(np.float32(1), np.int64(2), np.float64(3)).storage_cores == 2.0


def test_json_and_back():
    for resources in (Resources(1, 2, 3, 4), Resources(1.5, 0, 3)):
        assert Resources.from_json(resources.to_json()) == resources
    with pytest.raises(ConfigError, match="were expected"):
        Resources.from_json({"link_bytes_per_s": 1})


def test_text_is_for_people():
    assert str(Resources(62.5e6, 2, 8, 1200)) == "link 500 Mbit/s, 2 storage cores, 8 trainer cores, consumer 1,200/s"
