"""A flag that threads set, and that one waits for by a descriptor."""

import gc
import select
import threading
import time
from pathlib import Path

from sophon.process.alarm import Alarm
from tests.support.waiting import HANG_S


def _files():
    return len(list(Path("/proc/self/fd").iterdir()))


def _can_be_read(alarm):
    return bool(select.select([alarm], [], [], 0)[0])


def test_it_ends_a_wait_at_once_and_stays_set_until_it_is_cleared():
    alarm = Alarm()
    assert not alarm.wait(0.0)
    threading.Timer(0.05, alarm.set).start()
    began_s = time.monotonic()
    assert alarm.wait(HANG_S)
    assert time.monotonic() - began_s < HANG_S / 2
    assert alarm.wait(0.0)
    assert _can_be_read(alarm)
    alarm.clear()
    assert not alarm.wait(0.0)
    assert not _can_be_read(alarm)


def test_its_descriptor_tells_the_same_as_its_flag_whatever_threads_do():
    alarm, over = Alarm(), threading.Event()

    def set_often():
        while not over.is_set():
            alarm.set()

    threads = [threading.Thread(target=set_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2_000):
        alarm.clear()
    over.set()
    for thread in threads:
        thread.join()
    assert _can_be_read(alarm) == alarm.is_set
    alarm.clear()
    assert not _can_be_read(alarm)
    alarm.set()
    assert _can_be_read(alarm)


def test_its_descriptors_are_closed_with_it():
    before = _files()
    alarms = [Alarm() for _ in range(10)]
    assert _files() == before + 20
    del alarms
    gc.collect()
    assert _files() == before
