"""Waiting until something changes on connections that belong to a library."""

import os
import socket
import threading
import time

import pytest

from sophon.process import sockets
from sophon.process.alarm import Alarm
from sophon.process.sockets import Borrowed, open_files, traffic_of, wait_for_change
from tests.support.waiting import HANG_S

MANY = 1 << 40


@pytest.fixture(params=["native", "python"], autouse=True)
def kernel(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(sockets, "kernel", None)
    elif sockets.kernel is None:
        pytest.skip("built without a compiler")


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname(), timeout=HANG_S)
        near = listener.accept()[0]
    with far, near:
        yield far, near


def borrowed(near):
    return Borrowed(near.fileno(), os.fstat(near.fileno()).st_ino)


def waited_s(alarm, connections, enough_bytes=MANY, files=None, most_s=HANG_S):
    began_s = time.monotonic()
    files = open_files() if files is None else files
    wait_for_change(alarm, connections, enough_bytes, files, each_s=0.01, most_s=most_s)
    return time.monotonic() - began_s


def test_an_alarm_ends_the_wait(pair):
    alarm = Alarm()
    alarm.set()
    assert waited_s(alarm, [borrowed(pair[1])]) < HANG_S / 2


def test_bytes_of_all_connections_together_end_the_wait(pair):
    far, near = pair
    one = borrowed(near)
    sender = threading.Timer(0.05, far.sendall, [bytes(1000)])
    sender.start()
    assert waited_s(Alarm(), [one], traffic_of(near).received_bytes + 1000) < HANG_S / 2
    sender.join()


def test_a_connection_that_is_closed_ends_the_wait_even_if_its_number_is_used_again(pair):
    near = pair[1]
    one = borrowed(near)
    assert one.traffic() is not None
    near.close()
    assert waited_s(Alarm(), [one]) < HANG_S / 2
    with socket.socket() as other:
        os.dup2(other.fileno(), one.number)
        try:
            assert one.traffic() is None
            assert waited_s(Alarm(), [one]) < HANG_S / 2
        finally:
            os.close(one.number)


def test_nothing_that_changes_ends_the_wait_when_its_time_is_up(pair, kernel):
    if sockets.kernel is None:
        pytest.skip("without the extension it looks again at once")
    far, near = pair
    far.sendall(bytes(1000))
    assert 0.3 <= waited_s(Alarm(), [borrowed(near)], most_s=0.3) < HANG_S / 2


def test_a_file_that_is_opened_ends_the_wait(pair, tmp_path):
    files = open_files()
    if not files:
        pytest.skip("this kernel does not tell")
    with (tmp_path / "new").open("w"):
        assert waited_s(Alarm(), [borrowed(pair[1])], files=files) < HANG_S / 2
