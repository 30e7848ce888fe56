"""What the link and the storage node give, from clocks that are told the time."""

import pytest

from sophon.loader.planning.clocks import LinkClock, believed


def _stream(clock, *, speed, cores=0.0, waits=0.0, reads=0.0, seconds=10.0, start_s=0.0, request=1):
    """Let one stream run, a reply every tenth of a second."""
    now_s, computing_s, reading_s = start_s, 0.0, 0.0
    clock.began(request, now_s)
    while now_s < start_s + seconds:
        now_s += 0.1
        computing_s += 0.1 * waits
        reading_s += 0.1 * reads
        clock.got(request, int(speed * 0.1), cores * 0.1, computing_s, now_s, reading_s)
    clock.ended(request, now_s)
    return now_s


def test_a_link_that_takes_no_more_shows_its_speed():
    clock = LinkClock(cores=2)
    _stream(clock, speed=5e6, cores=0.3, waits=0.1)
    assert clock.link_bytes_per_s == pytest.approx(5e6, rel=0.01)
    assert clock.storage_cores == 2


def test_a_node_that_is_waited_for_shows_its_cores_and_not_the_link():
    clock = LinkClock(cores=2)
    end_s = _stream(clock, speed=5e6, waits=0.1)
    _stream(clock, speed=1e6, cores=0.4, waits=0.9, start_s=end_s)
    assert clock.storage_cores == pytest.approx(0.4, rel=0.01)
    assert clock.link_bytes_per_s == pytest.approx(5e6, rel=0.01)


def test_a_store_that_is_waited_for_shows_its_samples_and_neither_link_nor_cores():
    clock = LinkClock(cores=2)
    end_s = _stream(clock, speed=5e6, waits=0.1, reads=0.1)
    assert clock.store_samples_per_s is None
    _stream(clock, speed=2e6, cores=0.05, waits=0.02, reads=0.9, start_s=end_s)
    assert clock.store_samples_per_s == pytest.approx(10.0, rel=0.01)
    assert clock.link_bytes_per_s == pytest.approx(5e6, rel=0.01)
    assert clock.storage_cores == 2


def test_a_store_whose_files_lie_in_memory_by_now_is_forgotten():
    clock = LinkClock(cores=2)
    end_s = _stream(clock, speed=2e6, cores=0.05, waits=0.02, reads=0.9)
    assert clock.store_samples_per_s is not None
    _stream(clock, speed=5e6, waits=0.1, reads=0.1, start_s=end_s)
    assert clock.store_samples_per_s is None


def test_ops_that_are_waited_for_longer_than_the_store_are_what_binds():
    clock = LinkClock(cores=2)
    _stream(clock, speed=2e6, cores=0.5, waits=0.9, reads=0.8)
    assert clock.store_samples_per_s is None
    assert clock.storage_cores == pytest.approx(0.5, rel=0.01)


def test_a_link_that_is_never_full_is_as_fast_as_what_it_carried_between_the_waits():
    clock = LinkClock(cores=2)
    _stream(clock, speed=1e6, reads=0.9)
    assert clock.link_bytes_per_s == pytest.approx(1e7, rel=0.02)
    clock = LinkClock(cores=2)
    _stream(clock, speed=1e6, reads=1.0, seconds=0.4)
    assert clock.link_bytes_per_s == pytest.approx(2e7, rel=0.02), "however long it waited, some time was the link's"
    assert clock.store_samples_per_s == pytest.approx(10.0, rel=0.3), "not one stretch is over yet"


def test_time_without_an_open_stream_does_not_count():
    clock = LinkClock(cores=1)
    for number in range(20):
        _stream(clock, speed=5e6, seconds=0.5, start_s=10.0 * number, request=number)
    assert clock.link_bytes_per_s == pytest.approx(5e6, rel=0.01)


def test_two_streams_share_one_link():
    clock = LinkClock(cores=1)
    for request in (1, 2):
        clock.began(request, 0.0)
    for step in range(1, 100):
        clock.got(1 + step % 2, 100_000, 0.0, 0.0, step * 0.1)
    assert clock.link_bytes_per_s == pytest.approx(1e6, rel=0.05)


def test_a_change_is_seen_within_a_few_seconds():
    clock = LinkClock(cores=1)
    end_s = _stream(clock, speed=8e6)
    _stream(clock, speed=2e6, start_s=end_s, seconds=3)
    assert clock.link_bytes_per_s < 8e6 / 1.25


def test_hope_is_a_quarter_more_but_never_more_than_the_node_says():
    clock = LinkClock(cores=0.5)
    _stream(clock, speed=1e6, cores=0.3, waits=0.9)
    for expected in (0.375, 0.46875, 0.5, 0.5):
        clock.hope()
        assert clock.storage_cores == pytest.approx(expected, rel=0.01)


def test_before_a_whole_stretch_the_best_guess_is_what_has_come():
    clock = LinkClock(cores=1)
    assert clock.link_bytes_per_s is None
    _stream(clock, speed=3e6, seconds=0.4)
    assert clock.link_bytes_per_s == pytest.approx(3e6, rel=0.01)


def _seconds(clock, speeds, start_s=0.0, request=1):
    """Let one stream run, a reply every tenth of a second, with another speed in each second."""
    now_s = start_s
    clock.began(request, now_s)
    for tenth in range(10 * len(speeds)):
        now_s = start_s + (tenth + 1) / 10
        clock.got(request, int(speeds[tenth // 10] / 10), 0.0, 0.0, now_s)
    clock.ended(request, now_s)
    return now_s


def test_a_rank_of_many_sees_its_part_of_the_link_on_average_and_not_at_its_best():
    """Seconds in which less than a mebibyte comes count as much as those in which more does."""
    clock = LinkClock(cores=1)
    _seconds(clock, [0.6e6, 1.3e6] * 20)
    assert clock.link_bytes_per_s == pytest.approx(0.95e6, rel=0.1)
    assert clock.usual_link_bytes_per_s == pytest.approx(0.95e6, rel=0.02)


def test_an_epoch_is_planned_with_the_mean_of_the_one_before():
    clock = LinkClock(cores=1)
    _seconds(clock, [2e6] * 25 + [1.7e6] * 5)
    assert clock.link_bytes_per_s == pytest.approx(1.7e6, rel=0.02)
    assert clock.usual_link_bytes_per_s == pytest.approx(1.95e6, rel=0.02)


def test_short_epochs_are_averaged_and_long_ones_forgotten():
    clock = LinkClock(cores=1)
    end_s = _seconds(clock, [2e6] * 6)
    clock.turn()
    end_s = _seconds(clock, [1.7e6] * 6, end_s)
    assert clock.usual_link_bytes_per_s == pytest.approx(1.85e6, rel=0.02)
    clock.turn()
    _seconds(clock, [2e6] * 400, end_s)
    assert clock.usual_link_bytes_per_s == pytest.approx(2e6, rel=0.01)


def test_a_link_that_has_become_another_is_not_averaged_with_what_it_was():
    clock = LinkClock(cores=1)
    end_s = _seconds(clock, [8e6] * 30)
    _seconds(clock, [2e6] * 6, end_s)
    assert clock.usual_link_bytes_per_s == pytest.approx(2e6, rel=0.05)


def test_a_link_that_was_never_full_is_not_believed_to_be_faster_than_an_earlier_plan_knew():
    clock = LinkClock(cores=1)
    _stream(clock, speed=6.2e6, cores=0.64, waits=0.7, seconds=1.2)  # link and cores both busy in a short epoch
    link, proven = clock.link_bytes_per_s, clock.proven_bytes_per_s
    assert link > 15e6  # what is left after all waits makes it far faster than it is
    assert believed(link, proven, 7.5e6, is_hasty=False) == 7.5e6
    assert believed(link, proven, 20e6, is_hasty=False) == 20e6
    assert believed(link, proven, None, is_hasty=True) == pytest.approx(2 * proven)


def test_a_link_that_has_become_faster_is_found_out_step_by_step():
    clock = LinkClock(cores=1)
    _stream(clock, speed=6.2e6, cores=0.95, waits=0.95, seconds=1.2)  # the node computes nearly all the time
    proven = clock.proven_bytes_per_s
    assert believed(clock.link_bytes_per_s, proven, 6.2e6, is_hasty=False) == pytest.approx(1.25 * proven)


def test_a_link_that_was_full_is_believed_as_it_was_seen():
    clock = LinkClock(cores=1)
    _stream(clock, speed=5e6, waits=0.1)
    assert believed(clock.link_bytes_per_s, clock.proven_bytes_per_s, 50e6, is_hasty=True) == clock.link_bytes_per_s
