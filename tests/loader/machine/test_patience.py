"""How long is long, by hand."""

import math

import pytest

from sophon.loader.machine.patience import Patience


def test_nobody_is_asked_twice_unless_it_is_wanted():
    assert Patience(False, math.inf).limit_s == math.inf
    assert Patience(False, 5.0).limit_s == math.inf


@pytest.mark.parametrize(("hedge", "most_s", "limit_s"), [(0.3, 5.0, 0.3), (0.3, math.inf, 0.3), (20.0, 5.0, 20.0)])
def test_a_number_of_seconds_is_that_many(hedge, most_s, limit_s):
    patience = Patience(hedge, most_s)
    for _ in range(100):
        patience.waited(1.0)
    assert patience.limit_s == limit_s


def test_it_is_learned_from_how_long_others_took():
    patience = Patience(True, math.inf)
    for _ in range(7):
        patience.waited(0.1)
    assert patience.limit_s == math.inf  # too few to say anything
    patience.waited(0.1)
    assert patience.limit_s == pytest.approx(0.3)


def test_one_in_a_hundred_that_is_slow_does_not_make_it_patient_but_one_in_ten_does():
    rarely, often = Patience(True, math.inf), Patience(True, math.inf)
    for i in range(100):
        rarely.waited(2.0 if i == 50 else 0.1)
        often.waited(2.0 if i % 10 == 0 else 0.1)
    assert rarely.limit_s == pytest.approx(0.3)
    assert often.limit_s == pytest.approx(6.0)


def test_it_forgets_how_the_link_once_was():
    patience = Patience(True, math.inf)
    for seconds in [10.0] * 200 + [0.1] * 128:
        patience.waited(seconds)
    assert patience.limit_s == pytest.approx(0.3)


def test_replies_that_come_in_one_message_say_nothing_of_the_link():
    patience = Patience(True, math.inf)
    for _ in range(10):
        patience.waited(0.1)
        for _ in range(50):
            patience.waited(1e-5)
    assert patience.limit_s == pytest.approx(0.3)


def test_below_some_milliseconds_nothing_is_gained():
    patience = Patience(True, math.inf)
    for _ in range(20):
        patience.waited(0.002)
    assert patience.limit_s == 0.05


def test_second_requests_are_a_tenth_of_all_samples_and_one_request_more():
    patience = Patience(0.1, math.inf)
    twice = 0
    for _ in range(1000):
        patience.asked(4)
        while patience.may_ask_twice(4):
            patience.asked(4, twice=True)
            twice += 4
    assert 0.1 * (4000 + twice) <= twice <= 0.1 * (4000 + twice + 4) + 4
