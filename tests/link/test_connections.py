"""Which connections are ended for their silence or for what they send: real sockets, real threads."""

import contextlib
import math
import socket
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from sophon.link.connections import Call, ConnectionWatch
from sophon.link.flight import silence_within
from tests.support.forking import ends_well
from tests.support.waiting import HANG_S, wait_until

SILENCE_S = 0.4


class Waiting(Call):
    """A call that waits."""

    def __init__(self, most_bytes=1 << 30):
        super().__init__(most_bytes)
        self.waiting_since_s = time.monotonic()


@pytest.fixture
def pair():
    """Makes connections to one address; returns both ends."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connect(host="127.0.0.1"):
            near = stack.enter_context(socket.create_connection((host, listener.getsockname()[1])))
            far = stack.enter_context(listener.accept()[0])
            near.settimeout(HANG_S)
            return near, far

        connect.port = listener.getsockname()[1]
        yield connect


@pytest.fixture
def watched(pair):
    """A watch over one call; it ends with the test."""
    watch, call = ConnectionWatch("127.0.0.1", pair.port, SILENCE_S), Waiting()
    watch.add(call)
    yield call
    watch.remove(call)


def test_a_silent_connection_is_ended(pair, watched):
    near, far = pair()
    start_s = time.monotonic()
    assert near.recv(1) == b"", "as if the other side had hung up"
    assert time.monotonic() - start_s > 0.9 * SILENCE_S
    assert watched.fell_silent
    assert far.recv(1) == b""


def test_a_connection_on_which_anything_comes_is_left_alone(pair, watched):
    end_s = time.monotonic() + HANG_S
    while _longest_pause_s(*pair()) > 0.5 * SILENCE_S:  # this machine was too busy to say anything for a while
        assert time.monotonic() < end_s
        watched.fell_silent = False
    assert not watched.fell_silent


def _longest_pause_s(near, far):
    """Say something on a connection now and then, for longer than silence is borne; return the longest pause."""
    longest_s, before_s = 0.0, time.monotonic()
    for _ in range(30):
        with contextlib.suppress(OSError):  # a connection that was silent for too long has been ended
            far.sendall(b"x")
        time.sleep(SILENCE_S / 10)
        now_s = time.monotonic()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    # A byte may still be held back until those before it are acknowledged, and MSG_WAITALL does not wait on a socket
    # with a timeout: read on until all has come, or the end.
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_WR)
    assert b"".join(iter(lambda: near.recv(30), b"")) == b"x" * 30 or longest_s > 0.5 * SILENCE_S
    return longest_s


@pytest.mark.parametrize(
    ("deadline_s", "silence_s"), [(math.inf, 10), (60, 10), (12, 6), (6, 3), (4, 3), (3, 3), (1, 1)]
)
def test_a_short_deadline_leaves_time_for_another_try(deadline_s, silence_s):
    assert silence_within(deadline_s) == silence_s


def test_nothing_is_ended_while_nobody_waits(pair, watched):
    near, far = pair()
    watched.waiting_since_s = None  # it has something to work on, and the node may well be held up by that
    time.sleep(3 * SILENCE_S)
    far.sendall(b"x")
    assert near.recv(1) == b"x"
    assert not watched.fell_silent


def test_connections_to_others_are_left_alone(pair, watched):
    with (
        socket.create_server(("127.0.0.2", pair.port)) as listener,  # the same port of another host
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        ours, _ = pair()
        assert ours.recv(1) == b""
        far.sendall(b"x")
        assert near.recv(1) == b"x"


def test_an_address_of_version_4_is_found_behind_a_socket_of_version_6(watched, pair):
    with socket.socket(socket.AF_INET6) as near:  # as gRPC connects
        near.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        near.settimeout(HANG_S)
        near.connect(("::ffff:127.0.0.1", pair.port))
        assert near.recv(1) == b""


@contextlib.contextmanager
def watching(port, *calls):
    """A watch over calls that is as patient as can be."""
    watch = ConnectionWatch("127.0.0.1", port, 60.0)
    for call in calls:
        watch.add(call)
    try:
        yield watch
    finally:
        for call in calls:
            watch.remove(call)
        watch.rest()


def _send(far, near, size_bytes):
    """Send bytes, which the other side reads as gRPC would; raise `OSError` if the connection is ended."""

    def read():
        left = size_bytes
        with contextlib.suppress(OSError):
            while left and (got := len(near.recv(min(left, 1 << 20)))):
                left -= got

    reader = threading.Thread(target=read)
    reader.start()
    try:
        far.sendall(bytes(size_bytes))
    finally:
        reader.join(HANG_S)


MB = 1 << 20


def _is_ended(far, near, size_bytes, so_far):
    """Send pieces until the connection is ended, and call a function after each; return whether it was."""
    for _ in range(400):
        try:
            _send(far, near, size_bytes)
        except OSError:
            return True
        so_far()
        time.sleep(0.005)
    return False


def test_a_message_that_is_too_long_is_told_while_it_arrives(pair):
    near, far = pair()
    call = Waiting(32 * MB)
    with watching(pair.port, call):
        assert _is_ended(far, near, MB, lambda: None)
        assert call.got_too_much
        assert not call.fell_silent


def test_others_calls_that_get_messages_do_not_hide_it(pair):
    near, far = pair()
    call, other = Waiting(32 * MB), Waiting(32 * MB)
    with watching(pair.port, call, other) as watch:
        assert _is_ended(far, near, 2 * MB, lambda: watch.got(other, MB))
        assert call.got_too_much


def test_messages_of_any_number_may_come(pair):
    """Also those of others on the same connection, and while one call leaves its messages where they are."""
    near, far = pair()
    call, idle, elsewhere = Waiting(32 * MB), Waiting(32 * MB), Waiting(32 * MB)
    idle.waiting_since_s = None
    with watching(pair.port, call, idle) as watch, watching(pair.port, elsewhere) as other:
        for _ in range(300):
            _send(far, near, 2 * MB)
            watch.got(call, MB)
            other.got(elsewhere, MB)
        time.sleep(0.1)
        assert not any(each.got_too_much for each in (call, idle, elsewhere))
        _send(far, near, 1)


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "sophon-watch"]


def test_one_thread_watches_over_all_calls_and_ends_soon_after_the_last():
    watch, calls = ConnectionWatch("127.0.0.1", 1, SILENCE_S), [Waiting(), Waiting()]
    for _ in range(2):
        for call in calls:
            watch.add(call)
        (thread,) = _threads()
        time.sleep(2 * SILENCE_S)
        assert _threads() == [thread]
        for call in calls:
            watch.remove(call)
        thread.join(HANG_S)
        assert not _threads()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_lets_go_of_a_watch_does_not_wait_for_its_thread():
    watch, call, is_held, is_over = (
        ConnectionWatch("127.0.0.1", 1, 60.0),
        Waiting(),
        threading.Event(),
        threading.Event(),
    )
    watch.add(call)
    wait_until(lambda: sys.getrefcount(watch) == 2)  # its thread has looked, and waits

    def hold():  # as the watching thread does for a moment, now and then
        with watch._thread.woken._cond:
            is_held.set()
            is_over.wait(HANG_S)

    def child():
        nonlocal watch
        watch = None

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(HANG_S)
    try:
        assert ends_well(child)
    finally:
        is_over.set()
        thread.join(HANG_S)
        watch.remove(call)
        watch.rest()


def test_whoever_closes_or_forks_ends_it_at_once():
    watch, call = ConnectionWatch("no such host.invalid", 1, 60.0), Waiting()
    watch.add(call)
    watch.rest()
    assert _threads(), "not while there is something to watch over"
    watch.remove(call)
    watch.rest()
    wait_until(lambda: not _threads())
    watch.add(call)
    assert _threads()
    watch.remove(call)
    watch.rest()
