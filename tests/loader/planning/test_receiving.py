"""What receiving costs, told apart by samples and bytes."""

import pytest

from sophon.loader.planning.receiving import Receiving

EACH_S, BYTE_S = 40e-6, 0.9e-9


def requests(receiving, count, sizes, samples=16, each_s=EACH_S, byte_s=BYTE_S):
    for number in range(count):
        size_bytes = samples * sizes[number % len(sizes)]
        receiving.received(samples, size_bytes, each_s * samples + byte_s * size_bytes)


def test_samples_and_bytes_are_told_apart_by_requests_of_different_sizes():
    receiving = Receiving()
    requests(receiving, 100, [20_000, 150_000, 400_000])
    each_s, byte_s = receiving.costs_s
    assert byte_s == pytest.approx(BYTE_S, rel=0.1)
    assert each_s == pytest.approx(EACH_S, rel=0.3)


def test_where_all_are_alike_the_whole_is_right_and_bytes_have_a_typical_part():
    receiving = Receiving()
    requests(receiving, 100, [100_000])
    each_s, byte_s = receiving.costs_s
    assert each_s + 100_000 * byte_s == pytest.approx(EACH_S + 100_000 * BYTE_S, rel=0.05)
    assert 0 < byte_s < 2 * BYTE_S


def test_nothing_is_said_after_a_few_samples_and_nothing_is_below_zero():
    receiving = Receiving()
    requests(receiving, 10, [100_000])
    assert receiving.costs_s == (0.0, 0.0)
    requests(receiving, 20, [100_000, 200_000], each_s=300e-6, byte_s=-1e-9)
    assert min(receiving.costs_s) >= 0


def test_other_threads_count_by_samples_and_the_librarys_by_bytes():
    receiving = Receiving()
    receiving.library(5.0)  # before the first request: not ours
    for _ in range(100):
        requests(receiving, 1, [100_000])
        receiving.spent(16 * 10e-6)
        receiving.library(receiving._library_at_s + 16 * 100_000 * 0.2e-9)
    plain = Receiving()
    requests(plain, 100, [100_000])
    (each_s, byte_s), (before_s, before_byte_s) = receiving.costs_s, plain.costs_s
    assert each_s - before_s == pytest.approx(10e-6, rel=0.02)
    assert byte_s - before_byte_s == pytest.approx(0.2e-9, rel=0.02)


def test_what_was_long_ago_fades():
    receiving = Receiving()
    requests(receiving, 200, [50_000, 200_000], each_s=10 * EACH_S)
    requests(receiving, 1500, [50_000, 200_000])
    assert receiving.costs_s[0] == pytest.approx(EACH_S, rel=0.3)
