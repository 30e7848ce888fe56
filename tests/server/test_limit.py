"""The rate limit, in virtual time."""

import pytest

from sophon.server.limit import RateLimit


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now_s = 1000.0

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def limit(time):
    return RateLimit(1e6, lambda: time.now_s, time.sleep)


@pytest.mark.parametrize("piece_bytes", [100, 1 << 16, 3_000_000])
def test_what_is_sent_takes_as_long_as_the_rate_says(time, limit, piece_bytes):
    count = 6_000_000 // piece_bytes
    for _ in range(count):
        limit.take(piece_bytes)
    assert time.now_s - 1000 == pytest.approx(count * piece_bytes / 1e6, abs=0.021)


def test_a_pause_is_no_credit_for_later(time, limit):
    limit.take(500_000)
    time.now_s += 3600
    start_s = time.now_s
    limit.take(500_000)
    assert time.now_s - start_s == pytest.approx(0.5, abs=0.021)


def test_the_first_second_is_no_gift_either(time, limit):
    limit.take(1_000_000)
    assert time.now_s - 1000 == pytest.approx(1, abs=0.021)
    time.now_s = 0.01  # a machine that has just started
    RateLimit(1e6, lambda: time.now_s, time.sleep).take(1_000_000)
    assert time.now_s == pytest.approx(1, abs=0.021)
