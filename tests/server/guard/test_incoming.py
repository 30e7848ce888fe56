"""Bytes on their way to a node that no call accounts for."""

from sophon.process.sockets import Traffic
from sophon.server.guard.incoming import Incoming

A_CALL = 1 << 19  # as long as a request may be


def traffic(received):
    return {peer: Traffic(True, 0.0, 0, size_bytes) for peer, size_bytes in received.items()}


def test_credit_cannot_be_saved_up_for_a_flood():
    """Headers are counted as if they had not been compressed, so each small call leaves some credit behind."""
    incoming, peer, received = Incoming(), ("127.0.0.1", 1000), 0
    for _ in range(100):
        for _ in range(1_000):
            received += 40
            incoming.called(peer, 0, 8_000)
        assert incoming.excessive(traffic({peer: received})) == []
    assert incoming.excessive(traffic({peer: received + (8 << 20)})) == [peer]


def test_a_call_that_arrives_while_the_kernel_is_asked_is_not_held_against_its_connection():
    incoming, peer, received = Incoming(), ("127.0.0.1", 1000), 0
    for _ in range(1_000):
        seen = traffic({peer: received})  # without the call that is counted before the comparison
        incoming.called(peer, A_CALL)
        received += A_CALL + 4096 + 256
        assert incoming.excessive(seen) == []
    assert incoming.excessive(traffic({peer: received})) == []


def test_connections_that_each_wait_with_a_long_message_are_excessive_together():
    incoming, peers = Incoming(), [("127.0.0.1", 1000 + number) for number in range(500)]
    for peer in peers:
        incoming.called(peer, A_CALL)
    done = dict.fromkeys(peers, A_CALL + 4096 + 256)
    assert incoming.excessive(traffic(done)) == []
    waiting = {peer: received + A_CALL * 2 for peer, received in done.items()}
    few = {peer: waiting[peer] if number < 20 else done[peer] for number, peer in enumerate(peers)}
    assert incoming.excessive(traffic(few)) == []  # long requests of a few processes that start together
    assert incoming.excessive(traffic(waiting)) == peers


def test_so_are_those_of_many_addresses():
    incoming, peers = Incoming(), [(f"127.0.0.{number}", 1000) for number in range(200)]
    for peer in peers:
        incoming.called(peer, A_CALL)
    waiting = dict.fromkeys(peers, 3 * A_CALL)
    assert incoming.excessive(traffic(waiting)) == peers
