"""Who floods a node from outside is thrown out; who is let in, or says little, is left alone."""

import os
import resource
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

from sophon.server.guard import bouncer, incoming
from sophon.server.guard.bouncer import Bouncer, filter_for, filter_out, parse_peer
from tests.support.waiting import HANG_S, wait_until


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def watch(listener):
    made = Bouncer(listener.getsockname()[1])
    yield made
    made.close()


def connect(listener, source="127.0.0.1"):
    """Return both ends of a new connection."""
    far = socket.create_connection(listener.getsockname(), timeout=HANG_S, source_address=(source, 0))
    return far, listener.accept()[0]


def is_closed(far, within_s=HANG_S):
    """Return whether the other side hangs up."""
    far.settimeout(within_s)
    try:
        return far.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_sockets_of_grpc_stay_non_blocking(listener):
    """Else the thread that accepts one connection waits there for the next, and nobody reads from the first."""
    listener.setblocking(False)
    with socket.create_connection(listener.getsockname(), timeout=HANG_S), listener.accept()[0] as near:
        near.setblocking(False)
        made = Bouncer(listener.getsockname()[1])
        wait_until(lambda: made._since_s)  # the connection was looked at
        made.close()
        assert not os.get_blocking(near.fileno())
    assert not os.get_blocking(listener.fileno())


def test_a_connection_that_says_little_is_left_alone(listener, watch):
    far, near = connect(listener)
    with far, near:
        far.sendall(b"x" * 10_000)
        assert not is_closed(far, 0.5)
    assert watch.thrown_out == 0


def test_one_that_floods_is_closed_and_its_address_shut_out_for_a_while(listener, watch):
    far, near = connect(listener, "127.0.0.3")
    with far, near:
        with suppress(OSError):  # it may be closed before all of it is sent
            far.sendall(b"x" * (1 << 18))
        assert is_closed(far)
    wait_until(lambda: watch._banned_until_s)
    with pytest.raises(TimeoutError):
        socket.create_connection(listener.getsockname(), timeout=0.3, source_address=("127.0.0.3", 0))
    other, near = connect(listener)  # from another address
    other.close()
    near.close()
    watch._banned_until_s["127.0.0.3"] = 0.0  # as if it had been long ago
    wait_until(lambda: not watch._banned_until_s)
    again, near = connect(listener, "127.0.0.3")
    again.close()
    near.close()


def test_one_on_which_a_call_was_let_in_may_send_what_calls_have(listener, watch):
    far, near = connect(listener)
    with far, near:
        watch.knows(f"ipv4:127.0.0.1:{far.getsockname()[1]}")
        far.sendall(b"x" * (1 << 18))
        assert not is_closed(far, 0.5)


def _received(near, size_bytes):
    with suppress(OSError):
        while size_bytes and (got := len(near.recv(min(size_bytes, 1 << 20)))):
            size_bytes -= got


def _send(far, near, size_bytes):
    """Send bytes that the other side reads, as gRPC would."""
    reader = threading.Thread(target=_received, args=(near, size_bytes))
    reader.start()
    try:
        far.sendall(bytes(size_bytes))
    finally:
        reader.join(HANG_S)


def test_messages_of_many_calls_may_be_long_together(listener, watch):
    far, near = connect(listener)
    with far, near:
        peer = f"ipv4:127.0.0.1:{far.getsockname()[1]}"
        for size_bytes in [1 << 18, *[1 << 19] * 200]:
            _send(far, near, size_bytes)
            watch.knows(peer, size_bytes)
        assert not is_closed(far, 0.5)


def test_what_a_node_sends_is_answered_without_a_call(listener, watch):
    far, near = connect(listener)
    with far, near:
        watch.knows(f"ipv4:127.0.0.1:{far.getsockname()[1]}")
        for _ in range(50):
            _send(near, far, 40 << 20)
            _send(far, near, 800 << 10)
        assert not is_closed(far, 0.5)


def test_a_message_that_no_call_has_is_told_while_it_arrives(listener, watch):
    """Nobody knows yet what it belongs to: it may be on a stream beside those of honest calls."""
    far, near = connect(listener, "127.0.0.9")
    with far, near:
        peer = f"ipv4:127.0.0.9:{far.getsockname()[1]}"
        watch.knows(peer)
        with suppress(OSError):
            for _ in range(100):
                _send(far, near, 1 << 14)
                watch.knows(peer, 1 << 10)
                time.sleep(0.01)
        assert is_closed(far)
    wait_until(lambda: "127.0.0.9" in watch._banned_until_s)


def test_a_call_accounts_for_no_more_than_a_call_may_have(listener, watch):
    far, near = connect(listener, "127.0.0.9")
    with far, near:
        peer = f"ipv4:127.0.0.9:{far.getsockname()[1]}"
        with suppress(OSError):
            for _ in range(8):
                _send(far, near, 2 << 20)
                watch.knows(peer, 2 << 20)
        assert is_closed(far)


def test_connections_that_come_and_go_with_half_a_message_each_are_told(listener, watch, monkeypatch):
    monkeypatch.setattr(incoming, "_MEMORY_S", 600.0)
    for _ in range(8):
        if watch._banned_until_s:
            break  # nobody would answer
        far, near = connect(listener, "127.0.0.11")
        with far, near, suppress(OSError):
            peer = far.getsockname()
            watch.knows(f"ipv4:127.0.0.11:{peer[1]}")
            _send(far, near, 100 << 10)
            wait_until(lambda peer=peer: _beyond(watch, peer) or watch._banned_until_s)
    assert "127.0.0.11" in watch._banned_until_s


def _beyond(watch, peer):
    found = watch._incoming._called.get(peer)
    return found is not None and found.beyond_bytes


def test_many_connections_with_half_a_message_each_are_told(listener, watch):
    pairs = [connect(listener, "127.0.0.10") for _ in range(8)]
    for far, _ in pairs:
        watch.knows(f"ipv4:127.0.0.10:{far.getsockname()[1]}")
    with suppress(OSError):
        for far, near in pairs:
            _send(far, near, 100 << 10)
    assert all(is_closed(far) for far, _ in pairs)
    for far, near in pairs:
        far.close()
        near.close()


def test_one_that_says_nothing_for_long_is_closed(listener, watch, monkeypatch):
    monkeypatch.setattr(bouncer, "_STRANGER_S", 0.3)
    far, near = connect(listener)
    with far, near:
        assert is_closed(far)


def test_an_address_with_many_connections_is_shut_out(listener, watch):
    pairs = [connect(listener, "127.0.0.4") for _ in range(140)]
    wait_until(lambda: "127.0.0.4" in watch._banned_until_s)
    assert is_closed(pairs[0][0])
    for far, near in pairs:
        far.close()
        near.close()


def test_an_address_is_shut_out_that_sends_much_and_hangs_up_again_and_again(listener, watch, monkeypatch):
    monkeypatch.setattr(bouncer, "_MEMORY_S", 600.0)
    for _ in range(3):
        far, near = connect(listener, "127.0.0.8")
        peer = far.getsockname()
        far.sendall(b"x" * 30_000)
        wait_until(lambda peer=peer: watch._sent_bytes.get(peer) == 30_000)
        far.close()
        near.close()
        wait_until(lambda peer=peer: peer not in watch._sent_bytes)
    wait_until(lambda: "127.0.0.8" in watch._banned_until_s)


def test_many_ranks_on_one_machine_are_not_shut_out(listener, watch, monkeypatch):
    """Each is a stranger until its first call was let in, and none afterwards."""
    monkeypatch.setattr(bouncer, "_MOST_STRANGERS", 8)
    monkeypatch.setattr(bouncer, "_MEMORY_S", 600.0)
    pairs = []
    for _ in range(20):
        pairs.append(connect(listener, "127.0.0.5"))
        address, port = pairs[-1][0].getsockname()
        wait_until(lambda peer=(address, port): peer in watch._since_s)  # it was seen
        watch.knows(f"ipv4:{address}:{port}")
    wait_until(lambda: not watch._since_s)
    assert not watch._banned_until_s
    assert not any(is_closed(far, 0.1) for far, _ in pairs[:3])
    for far, near in pairs:
        far.close()
        near.close()


def test_connections_are_watched_while_no_descriptor_is_left(listener, watch, monkeypatch):
    monkeypatch.setattr(bouncer, "_STRANGER_S", 0.3)
    far, near = connect(listener)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with far, near:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))  # nothing below is free
        try:
            with pytest.raises(OSError, match="Too many open files"):
                os.dup(0)
            assert is_closed(far)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert watch._thread.is_alive()


def test_a_look_that_fails_is_not_the_last_one(listener, watch, monkeypatch, caplog):
    monkeypatch.setattr(bouncer, "_STRANGER_S", 0.3)
    monkeypatch.setattr(watch, "_let_in_again", lambda _: 1 / 0)
    wait_until(lambda: "ZeroDivisionError" in caplog.text)
    monkeypatch.undo()
    monkeypatch.setattr(bouncer, "_STRANGER_S", 0.3)
    far, near = connect(listener)
    with far, near:
        assert is_closed(far)


def test_one_address_gets_no_more_than_its_share_of_the_descriptors(listener, watch, monkeypatch):
    monkeypatch.setattr(bouncer, "_LEAST_OF_ONE", 8)
    monkeypatch.setattr(bouncer.resource, "getrlimit", lambda _: (16, 16))
    pairs = []
    for source in ["127.0.0.6"] * 12 + ["127.0.0.7"]:
        pairs.append(connect(listener, source))
        watch.knows("ipv4:{}:{}".format(*pairs[-1][0].getsockname()))
    wait_until(lambda: watch.thrown_out >= 4)
    assert sum(is_closed(far, 0.05) for far, _ in pairs[:12]) == 4
    assert not is_closed(pairs[12][0], 0.3)
    for far, near in pairs:
        far.close()
        near.close()


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:1234", ("127.0.0.1", 1234)),
        ("ipv6:%5B::1%5D:1234", ("::1", 1234)),
        ("ipv6:[::ffff:10.0.0.1]:7", ("10.0.0.1", 7)),
        ("unix:/x", None),
        ("", None),
    ],
)
def test_what_grpc_calls_the_other_side(text, peer):
    assert parse_peer(text) == peer


def test_filters_for_both_kinds_of_addresses():
    assert filter_for([]) == [(6, 0, 0, 0x7FFFFFFF)]
    both = filter_for(["10.0.0.1", "fe80::1"])
    assert [step[3] for step in both if step[0] == 0x06] == [0, 0, 0x7FFFFFFF]
    assert struct.pack("=I", both[4][3]) == struct.pack("=I", 0x0A000001)
    if socket.has_ipv6:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            filter_out([listener], ["::1"])
            with pytest.raises(TimeoutError):
                socket.create_connection(listener.getsockname()[:2], timeout=0.3)
            filter_out([listener], [])
            socket.create_connection(listener.getsockname()[:2], timeout=HANG_S).close()
