"""A crew has as many threads as are wanted at the moment, and tells of those that crash."""

import threading
import time

import pytest

from sophon.process.crew import Crew
from tests.support.waiting import HANG_S, wait_until


class _Office:
    """Threads that wait for a word, and how many there are to be."""

    def __init__(self, wanted):
        self.wanted, self.crashes, self.crash = wanted, [], None
        self.lock = threading.Condition()
        self.crew = Crew("test-crew", self.work, lambda: self.wanted, self.crashes.append)

    def work(self):
        with self.lock:
            while not self.crew.is_done():
                if self.crash is not None:
                    raise self.crash
                self.lock.wait()

    def set(self, wanted):
        with self.lock:
            self.wanted = wanted
            self.crew.staff()
            self.lock.notify_all()

    def wait_for(self, count):
        wait_until(lambda: _names() == count, f"there are never {count}")

    def end(self):
        with self.lock:
            self.crew.stop()
            self.lock.notify_all()
        self.crew.join(time.monotonic() + HANG_S)


def _names():
    return sum(thread.name.startswith("test-crew") for thread in threading.enumerate())


@pytest.fixture
def office():
    made = _Office(2)
    yield made
    made.end()
    assert _names() == 0


def test_threads_come_and_go_with_the_number_that_is_wanted(office):
    for wanted in (2, 5, 1, 3, 0):
        office.set(wanted)
        office.wait_for(wanted)


def test_a_thread_that_crashes_is_told_of_and_another_one_takes_its_place(office):
    office.set(1)
    office.wait_for(1)
    with office.lock:
        office.crash = ValueError("a bug")
        office.lock.notify_all()
    office.wait_for(0)
    assert office.crashes == [office.crash]
    office.crash = None
    office.set(1)
    office.wait_for(1)


def test_a_crew_that_was_stopped_starts_no_thread(office):
    office.end()
    office.set(3)
    assert _names() == 0
