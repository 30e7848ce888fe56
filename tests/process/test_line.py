"""A line carries messages and open files, and whoever is left alone at one end finds out."""

import os
import resource
import threading

import numpy as np
import pytest

from sophon.process.line import Line, LineClosedError
from tests.support.waiting import HANG_S


@pytest.fixture
def ends():
    here, there = Line.pair()
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize("body", [b"", b"x", np.arange(3 << 20, dtype=np.uint8)], ids=["none", "a byte", "3 MiB"])
@pytest.mark.parametrize("head", [b"", b"head", b"h" * (2 << 20)], ids=["none", "short", "2 MiB"])
def test_a_message_arrives_as_it_was_sent(ends, head, body):
    here, there = ends
    sending = threading.Thread(target=here.send, args=(head, body))
    sending.start()
    got = there.receive()
    sending.join()
    assert got == (head, bytearray(body), [])


def test_files_travel_along(ends):
    here, there = ends
    reader, writer = os.pipe()
    here.send(b"take it", files=(writer,))
    os.close(writer)
    _, _, (theirs,) = there.receive()
    os.write(theirs, b"through")
    os.close(theirs)
    assert os.read(reader, 99) == b"through"
    os.close(reader)


def test_a_file_that_cannot_be_opened_for_want_of_room_is_an_error_and_not_a_message_without_it(ends):
    here, there = ends
    here.send(b"take it", files=(0,))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # which leaves those open that are
    try:
        with pytest.raises(OSError, match="Too many open files"):
            there.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("sent", [b"", b"\x00" * 5, b"\x05\x00\x00\x00" + b"\x00" * 9 + b"he"])
def test_an_end_that_is_gone_is_noticed_wherever_the_message_breaks_off(ends, sent):
    here, there = ends
    here._end.sendall(sent)
    here.close()
    with pytest.raises(LineClosedError):
        there.receive()
    with pytest.raises(LineClosedError):
        there.send(b"hello?", b"x" * 100)


def test_whoever_waits_can_be_woken_from_another_thread(ends):
    here, _ = ends
    found = []

    def wait():
        try:
            here.receive()
        except LineClosedError as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    here.wake()
    waiting.join(HANG_S)
    assert len(found) == 1


def test_a_wait_may_be_bounded(ends):
    here, _ = ends
    here.set_timeout(0.001)
    with pytest.raises(TimeoutError):
        here.receive()
