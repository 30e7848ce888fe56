"""Many reads at once: how many, in whose turn, and what becomes of one that hangs."""

import os
import threading
from pathlib import Path

import pytest

from sophon.errors import ConfigError
from sophon.process.threads import NICE
from sophon.store import reading as stage
from sophon.store.reading import Reading, tell_took
from tests.support.waiting import HANG_S, wait_until


class Reads:
    """Jobs that wait until they are let go, and count how many are under way."""

    def __init__(self):
        self.go_on = threading.Event()
        self.begun = []
        self.now = 0
        self.most = 0
        self._lock = threading.Lock()

    def job(self, name):
        def read():
            with self._lock:
                self.begun.append(name)
                self.now += 1
                self.most = max(self.most, self.now)
            assert self.go_on.wait(HANG_S)
            with self._lock:
                self.now -= 1

        return read


def _no_threads():
    return not any(thread.name.startswith("sophon-read") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("each_s", "at_once", "run"), [(50e-6, 2, 400), (1e-3, 4, 20), (8e-3, 32, 2), (50e-3, 64, 1), (3.0, 64, 1)]
)
def test_the_longer_reads_take_the_more_are_under_way_and_the_fewer_samples_has_a_job(each_s, at_once, run):
    reading = Reading()
    assert (reading.at_once, reading.run_samples) == (2, 1), "nothing is known yet"
    for _ in range(100):
        reading.learn(each_s * 4, samples=4)
    assert reading.at_once == at_once
    assert reading.run_samples == run


@pytest.mark.parametrize(("each_s", "at_once"), [(3e-3, 2), (50e-3, 10), (3.0, 64)])
def test_large_files_are_read_by_as_many_readers_as_fill_a_fast_link(each_s, at_once):
    reading = Reading()
    for _ in range(100):
        reading.learn(each_s * 4, samples=4, size_bytes=4 * 5_000_000)
    assert reading.at_once == at_once


def test_reads_that_take_much_cpu_are_no_more_than_cores(monkeypatch):
    monkeypatch.setattr(stage, "cores_here", lambda: 3)
    reading = Reading()
    for _ in range(100):
        reading.learn(2.0, cpu_s=0.5)  # most of the time it waits, for a core that others use
    assert reading.is_heavy
    assert reading.at_once == 3
    for _ in range(100):
        reading.learn(2.0, cpu_s=0.002)
    assert not reading.is_heavy
    assert reading.at_once == 64


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="priorities of threads are Linux's")
def test_reads_that_take_much_cpu_let_others_go_first():
    reading, seen = Reading(), []
    queue = reading.queue()

    def job():
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    queue.add(job, 1, 10)
    wait_until(lambda: len(seen) == 1)
    for _ in range(100):
        reading.learn(1.0, cpu_s=1.0)
    queue.add(job, 1, 10)
    wait_until(lambda: len(seen) == 2)
    assert seen[1] == max(seen[0], NICE)
    queue.close()
    wait_until(_no_threads)


@pytest.mark.parametrize("most", [1, 3, 64])
def test_no_more_reads_are_under_way_than_allowed_and_as_many_as_allowed(most):
    reading, reads = Reading(most), Reads()
    reading.learn(1.0)
    queue = reading.queue()
    for number in range(2 * most):
        queue.add(reads.job(number), 1, 10)
    wait_until(lambda: reads.now == most)
    assert reading.under_way == most
    assert reading.under_way_bytes == 10 * most
    reads.go_on.set()
    wait_until(lambda: queue.reads == 2 * most)
    assert reads.most == most
    assert queue.read_bytes == 20 * most
    assert queue.read_s > 0
    queue.close()
    wait_until(_no_threads)


def test_bytes_bound_reads_too_and_one_may_always_be_under_way():
    reading, reads = Reading(64, most_bytes=100), Reads()
    reading.learn(1.0)
    queue = reading.queue()
    for number in range(6):
        queue.add(reads.job(number), 1, 60)
    wait_until(lambda: reads.now == 2)  # the first leaves room, the second does not
    reads.go_on.set()
    wait_until(lambda: queue.reads == 6)
    assert reads.most == 2
    queue.close()
    huge = reading.queue()
    huge.add(reads.job("huge"), 1, 1000)
    wait_until(lambda: huge.reads == 1)
    huge.close()


def test_requests_take_turns():
    reading, reads = Reading(1), Reads()
    first, second = reading.queue(), reading.queue()
    for number in range(5):
        first.add(reads.job(("first", number)), 1, 1)
    second.add(reads.job(("second", 0)), 1, 1)
    second.add(reads.job(("second", 1)), 1, 1)
    reads.go_on.set()
    wait_until(lambda: first.reads + second.reads == 7)
    assert reads.begun.index(("second", 0)) <= 2
    assert reads.begun.index(("second", 1)) <= 4
    assert [name for name in reads.begun if name[0] == "first"] == [("first", number) for number in range(5)]
    first.close()
    second.close()


def test_a_lane_in_order_reads_one_after_the_other_and_keeps_nobody_else():
    reading, reads, others = Reading(8), Reads(), Reads()
    reading.learn(1.0)
    others.go_on.set()
    queue, other = reading.queue(in_order=True), reading.queue()
    for number in range(4):
        queue.add(reads.job(number), 1, 1)
        other.add(others.job(number), 1, 1)
    wait_until(lambda: other.reads == 4)
    assert reads.begun == [0]
    reads.go_on.set()
    wait_until(lambda: queue.reads == 4)
    assert reads.begun == [0, 1, 2, 3]
    assert reads.most == 1
    queue.close()
    other.close()


def test_what_was_not_begun_when_its_request_ended_is_never_read():
    reading, reads = Reading(2), Reads()
    queue, other = reading.queue(), reading.queue()
    for number in range(10):
        queue.add(reads.job(number), 1, 1)
    wait_until(lambda: reads.now == 2)
    queue.close()
    reads.go_on.set()
    other.add(reads.job("other"), 1, 1)
    wait_until(lambda: other.reads == 1)
    assert sorted(map(str, reads.begun)) == ["0", "1", "other"]
    assert queue.reads == 0, "nobody asked for it any more"
    other.close()
    wait_until(_no_threads)


def test_a_read_that_hangs_keeps_nobody_from_reading(monkeypatch):
    monkeypatch.setattr(stage, "HUNG_S", 0.0)
    reading, hang, reads = Reading(2), Reads(), Reads()
    queue, other = reading.queue(), reading.queue()
    for number in range(2):
        queue.add(hang.job(number), 1, 1)
    wait_until(lambda: hang.now == 2)
    reads.go_on.set()
    for number in range(3):
        other.add(reads.job(number), 1, 1)
    wait_until(lambda: reading.staff() or other.reads == 3)
    assert hang.now == 2
    hang.go_on.set()
    wait_until(lambda: queue.reads == 2)
    assert reading.under_way == 0
    queue.close()
    other.close()
    wait_until(_no_threads)


def test_bounds_below_one_are_refused():
    for most, most_bytes in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="expected at least 1"):
            Reading(most, most_bytes)


def test_a_store_is_quick_if_some_of_its_reads_are():
    """Python's lock makes quick reads look slow in a process that works; a disk makes slow ones never look quick."""
    reading = Reading()
    assert not reading.is_quick, "nothing is known yet"
    for seconds in [0.0002, 0.004, 0.006, 0.003] * 8:
        reading.learn(seconds)
    assert reading.is_quick
    for seconds in [0.0002, 0.06, 0.05, 0.04] * 8:  # a quarter of the files is in the page cache
        reading.learn(seconds)
    assert not reading.is_quick
    for seconds in [0.002, 0.003] * 16:
        reading.learn(seconds)
    assert not reading.is_quick


def test_a_job_that_knows_how_long_its_read_took_is_believed():
    reading = Reading()
    queue, ended = reading.queue(), threading.Event()

    def job():
        tell_took(0.25)
        return ended.set

    queue.add(job, 1, 10)
    assert ended.wait(HANG_S)
    assert queue.read_s == reading.each_s == 0.25
    queue.close()


def _threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sophon-read")]


def _burst(reading, jobs):
    """Queue quick jobs at once, as a request for raw files does, and wait for the last one."""
    done = threading.Semaphore(0)

    def read():
        tell_took(50e-6)
        return done.release

    queue = reading.queue()
    with reading._lock:  # no thread may take a job before all are queued
        for _ in range(jobs):
            queue.add(read, 1, 1_000)
    for _ in range(jobs):
        assert done.acquire(timeout=HANG_S)
    queue.close()


def test_a_burst_of_quick_reads_starts_no_more_threads_than_may_read_at_once():
    reading = Reading(lingers=True)
    for _ in range(20):
        _burst(reading, 30)
    assert reading.at_once == 2
    assert 1 <= len(_threads()) <= 2
    reading.close()
    wait_until(_no_threads)


def test_a_thread_that_passes_a_result_on_is_not_replaced():
    reading, passing, go_on = Reading(most=1, lingers=True), threading.Event(), threading.Event()

    def pass_on():
        passing.set()
        assert go_on.wait(HANG_S)

    queue = reading.queue()
    queue.add(lambda: pass_on, 1, 10)
    assert passing.wait(HANG_S)
    done = threading.Event()
    queue.add(lambda: done.set, 1, 10)
    threads = len(_threads())
    go_on.set()
    assert threads == 1
    assert done.wait(HANG_S)
    queue.close()
    reading.close()
    wait_until(_no_threads)


def test_threads_that_stay_are_not_woken_when_a_request_ends():
    reading = Reading(lingers=True)
    _burst(reading, 30)
    wait_until(lambda: reading._idle and len(reading._idle) == len(_threads()))
    idle = list(reading._idle)
    reading.opened(1)
    reading.opened(-1)
    assert reading._idle == idle
    reading.close()
    wait_until(_no_threads)
