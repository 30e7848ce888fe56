"""How much is sent at once."""

import threading

import pytest

from sophon.server.pace import MOST_BYTES, MOST_RUN_BYTES, Pace, Paces
from tests.support.waiting import HANG_S


def _settle(pace, bytes_per_s, batches=40):
    for _ in range(batches):
        pace.sent(int(pace.batch_bytes), pace.batch_bytes / bytes_per_s)


@pytest.mark.parametrize(("bytes_per_s", "expected"), [(5e6, 5e5), (2e7, 2e6), (1e9, MOST_BYTES), (1e5, 1 << 17)])
def test_a_batch_is_what_the_link_takes_in_a_tenth_of_a_second(bytes_per_s, expected):
    pace = Pace()
    _settle(pace, bytes_per_s)
    assert pace.batch_bytes == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("bytes_per_s", "expected"), [(2e6, 1.6e6), (5e6, 4e6), (1e9, MOST_RUN_BYTES), (1e5, 1 << 17)])
def test_a_run_of_raw_samples_may_be_eight_times_as_large(bytes_per_s, expected):
    pace = Pace()
    for _ in range(40):
        pace.sent(int(pace.run_bytes), pace.run_bytes / bytes_per_s)
    assert pace.run_bytes == pytest.approx(expected, rel=0.05)


def test_where_the_link_is_slow_the_last_samples_of_a_request_come_in_smaller_batches():
    pace = Pace()
    for _ in range(40):
        pace.sent(int(pace.run_bytes), pace.run_bytes / 2.5e6)
    assert pace.run(7_000_000) == pytest.approx(2e6, rel=0.05)
    assert pace.run(3_000_000) == 1_500_000
    assert pace.run(900_000) == 1 << 19
    assert pace.run(700_000) == 700_000, "no crumb is left"
    assert pace.run(300_000) == 1 << 19
    for _ in range(40):
        pace.sent(int(pace.run_bytes), pace.run_bytes / 1e9)
    assert pace.run(7_000_000) == MOST_RUN_BYTES, "all of it at once"


def test_while_the_trainer_has_another_request_the_last_samples_need_not_come_in_smaller_batches():
    paces = Paces()
    with paces.stream("ipv4:10.0.0.1:4000") as first:
        for _ in range(40):
            first.trainer.sent(int(first.trainer.run_bytes), first.trainer.run_bytes / 2.5e6)
        assert first.run(3_000_000) == 1_500_000
        with paces.stream("ipv4:10.0.0.1:4001"):
            assert first.run(3_000_000) == 1_500_000, "another process of that machine waits for its own samples"
        with paces.stream("ipv4:10.0.0.1:4000") as second:
            assert first.run(3_000_000) == second.run(3_000_000) == first.trainer.run_bytes
        assert first.run(3_000_000) == 1_500_000
    assert paces.streams("ipv4:10.0.0.1:4000") == 0, "nothing is kept of a connection without streams"
    assert not paces._streams


def test_a_link_that_becomes_slow_is_followed_within_a_few_batches():
    pace = Pace()
    _settle(pace, 1e9)
    _settle(pace, 5e6, batches=6)
    assert pace.batch_bytes < 1e6


def test_a_short_batch_that_was_taken_at_once_does_not_make_the_next_one_huge():
    pace = Pace()
    _settle(pace, 5e6)
    pace.sent(1000, 1e-6)
    assert pace.batch_bytes < 8e5


def test_connections_of_one_trainer_share_a_pace_and_old_trainers_are_forgotten():
    paces = Paces()
    first = paces.of("ipv4:10.0.0.1:4000")
    assert paces.of("ipv4:10.0.0.1:4001") is first
    assert paces.of("ipv6:[::1]:4001") is not first
    for number in range(300):
        paces.of(f"ipv4:10.1.{number}.1:1")
    assert paces.of("ipv4:10.0.0.1:4000") is not first


def test_a_trainer_that_keeps_asking_keeps_its_pace():
    paces = Paces()
    first = paces.of("ipv4:10.0.0.1:4000")
    for number in range(300):
        paces.of(f"ipv4:10.1.{number}.1:1")
        assert paces.of("ipv4:10.0.0.1:4000") is first


def test_a_stream_may_be_dropped_while_its_thread_counts_another():
    paces = Paces()
    dropped = paces.stream("ipv4:10.0.0.1:4000")
    dropped.__enter__()

    def collect():
        with paces._lock:  # as in the middle of `stream`, when the garbage collector runs
            dropped.__exit__(None, None, None)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert not paces._streams
