"""Which part holds training back."""

import math

import pytest

from sophon.errors import ConfigError
from sophon.profile.verdict import Verdict


@pytest.mark.parametrize(
    ("rates", "bound", "factor", "word"),
    [
        ((1200.0, 300.0, 900.0), "I/O-bound", 3.0, "fewer bytes"),
        ((1200.0, 3000.0, 240.0), "CPU-bound", 5.0, "more workers"),
        ((100.0, 300.0, 900.0), "GPU-bound", 3.0, "would not help"),
        ((math.inf, 300.0, 900.0), "I/O-bound", 3.0, "not measured"),
        ((1200.0, 300.0, 900.0, 100.0), "store-bound", 3.0, "A faster disk"),
        ((1200.0, math.inf, 900.0, 300.0), "store-bound", 3.0, "I/O none"),
        ((1200.0, math.inf, 240.0, 4800.0), "CPU-bound", 5.0, "store 4,800"),
    ],
)
def test_the_slowest_part_binds(rates, bound, factor, word):
    verdict = Verdict(*rates)
    assert verdict.bound == bound
    assert verdict.factor == pytest.approx(factor)
    assert verdict.samples_per_s == min(rates)
    assert bound in verdict.explain()
    assert word in verdict.explain()


def test_stalls_are_shares_of_the_time_that_the_consumer_waits():
    verdict = Verdict(1000.0, 250.0, 800.0)
    assert verdict.io_stall == pytest.approx(0.75)
    assert verdict.cpu_stall == pytest.approx(0.2)
    assert Verdict(100.0, 250.0, 800.0).io_stall == 0
    assert Verdict(math.inf, 250.0, 800.0).to_json()["gpu_per_s"] is None


def test_parts_that_are_as_good_as_even_are_called_so():
    assert "nearly as slow" in Verdict(1000.0, 950.0, 5000.0).explain()


@pytest.mark.parametrize("rates", [(0.0, 1.0, 1.0), (1.0, float("nan"), 1.0), (1.0, 1.0, -1.0)])
def test_what_is_no_rate_is_refused(rates):
    with pytest.raises(ConfigError, match="above zero"):
        Verdict(*rates)


def test_a_store_that_was_never_waited_for_is_not_worth_a_word():
    assert "store" not in Verdict(100.0, 300.0, 900.0).rates()
    assert Verdict(100.0, 300.0, 900.0).to_json()["store_per_s"] is None
    told = Verdict(1200.0, math.inf, 900.0, 100.0)
    assert told.slowest == "store"
    assert told.to_json()["io_per_s"] is None
    assert told.to_json()["verdict"] == "store-bound"
    with pytest.raises(ConfigError, match="store_per_s is 0"):
        Verdict(1.0, 1.0, 1.0, 0.0)
