"""Tells messages that are too long while they arrive, on connections whose caller has been admitted.

gRPC collects all of a message before anybody can look at it, and Arrow sets no bound on its length: a message of 1.5 GB
took a node 6 GB. So the bytes that have arrived on a connection, which the kernel counts, are compared with those that
the calls on it account for. The difference is what is still under way: at most one message of each call.

What is not counted exactly is overestimated: headers, and what the protocol itself sends in return for our answers.
"""

from __future__ import annotations

import threading

from sophon.link.wire import MAX_REQUEST_BYTES
from sophon.process.sockets import Peer, Traffic

_HEADER_BYTES = 1 << 14  # of a call; gRPC accepts no more
_SENT_PER_RECEIVED = 50  # a trainer says in a few bytes that it has received a thousand
_MOST_BYTES = 32 << 20  # under way on one connection: 64 calls at the same moment
_MOST_TOTAL_BYTES = 128 << 20  # on all of them
_MANY_BYTES = 1 << 20  # beyond the total, connections with less are left alone
_REMEMBERED = 1 << 16  # connections; no node has as many at the same time


class Incoming:
    """What is under way to a node.

    Concurrency: threads of calls report what has arrived, and one thread compares.
    """

    def __init__(self) -> None:
        self._called_bytes: dict[Peer, int] = {}
        self._seen: set[Peer] = set()
        self._lock = threading.Lock()

    def called(self, peer: Peer, size_bytes: int) -> None:
        """Count a call, or a message of one, that has arrived completely."""
        with self._lock:
            counted = self._called_bytes.get(peer, 0)
            self._called_bytes[peer] = counted + min(size_bytes, MAX_REQUEST_BYTES) + _HEADER_BYTES
            if len(self._called_bytes) > _REMEMBERED:  # mostly of connections that ended before anybody looked at them
                self._called_bytes = {one: self._called_bytes[one] for one in self._seen & self._called_bytes.keys()}

    def too_long(self, traffic: dict[Peer, Traffic]) -> list[Peer]:
        """Return the connections on which more is under way than calls need, given all that there are."""
        with self._lock:
            for peer in self._seen - traffic.keys():
                self._called_bytes.pop(peer, None)
            self._seen = set(traffic)
        under_way = {peer: self._under_way_bytes(peer, seen) for peer, seen in traffic.items()}
        is_full = sum(under_way.values()) > _MOST_TOTAL_BYTES
        return [peer for peer, many in under_way.items() if many > _MOST_BYTES or (is_full and many > _MANY_BYTES)]

    def _under_way_bytes(self, peer: Peer, seen: Traffic) -> int:
        return max(seen.received_bytes - self._called_bytes.get(peer, 0) - seen.sent_bytes // _SENT_PER_RECEIVED, 0)
