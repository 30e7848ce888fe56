"""Tells what no call accounts for on connections whose caller has been admitted: endless messages, and floods.

gRPC collects all of a message before anybody can look at it, and Arrow sets no bound on its length: a message of 1.5 GB
took a node 6 GB. A call that begins and says nothing takes 10 KB, and pings, resets and empty frames take a core. So
the bytes that have arrived on a connection, which the kernel counts, are compared with those that the calls on it
account for. The difference is what is still under way: with an honest trainer, a request or two of a few kilobytes.

What is not counted exactly is overestimated: headers, which the protocol compresses, and what it sends by itself in
return for our answers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from sophon.link.wire import MAX_REQUEST_BYTES
from sophon.process.sockets import Peer, Traffic

HEADER_BYTES = 4096  # of a call, where nobody has looked
_FRAME_BYTES = 256  # of a call: its method, and what frames its parts
_SENT_PER_RECEIVED = 50  # a trainer says in a few bytes that it has received a thousand
_MOST_BYTES = 320 << 10  # under way on one connection, and two of the longest calls that were made on it so far
_MOST_OF_ADDRESS = 320 << 10  # the same for all connections of an address, and those it closed in the last seconds
_MOST_TOTAL_BYTES = 16 << 20  # on all of them
# The same without regard to how long calls were before: each of many connections could wait with a long one.
_MOST_UNFINISHED_OF_ADDRESS = 32 << 20
_MOST_UNFINISHED_BYTES = 128 << 20
_MOST_CREDIT_BYTES = 4 << 20  # for what was overestimated; more is forgotten, or it could be saved up for a flood
_MANY_BYTES = 1 << 16  # beyond these sums, connections with less are left alone
_MEMORY_S = 2.0
_REMEMBERED = 1 << 16  # connections; no node has as many at the same time


@dataclass
class _Called:
    """What the calls on a connection account for, and what was under way beyond that when it was looked at.

    Attributes:
        size_bytes: Bytes of the calls.
        longest_bytes: Bytes of the longest call.
        left_bytes: Bytes that no call accounts for, at the last look.
        beyond_bytes: These beyond two calls as long as the longest.
    """

    size_bytes: int = 0
    longest_bytes: int = 0
    left_bytes: int = 0
    beyond_bytes: int = 0


class Incoming:
    """What is under way to a node.

    Concurrency: threads of calls report what has arrived, and one thread compares.
    """

    def __init__(self) -> None:
        self._called: dict[Peer, _Called] = {}
        self._seen: set[Peer] = set()
        self._gone: deque[tuple[float, str, int]] = deque()
        self._lock = threading.Lock()

    def called(self, peer: Peer, size_bytes: int, header_bytes: int = HEADER_BYTES) -> None:
        """Count a call that has arrived completely."""
        with self._lock:
            found = self._called.setdefault(peer, _Called())
            counted_bytes = min(size_bytes, MAX_REQUEST_BYTES) + header_bytes + _FRAME_BYTES
            found.size_bytes += counted_bytes
            found.longest_bytes = max(found.longest_bytes, counted_bytes)
            if len(self._called) > _REMEMBERED:  # mostly of connections that ended before anybody looked at them
                self._called = {one: self._called[one] for one in self._seen & self._called.keys()}

    def excessive(self, traffic: Mapping[Peer, Traffic]) -> list[Peer]:
        """Return the connections on which more is under way than calls need, given all that there are."""
        looked = self._look(traffic)
        beyond, left = Counter[str](), Counter[str]()  # by address
        for peer, found in looked.items():
            beyond[peer[0]] += found.beyond_bytes
            left[peer[0]] += found.left_bytes
        total_beyond_bytes, total_left_bytes = beyond.total(), left.total()
        for _, address, many in self._gone:
            beyond[address] += many
        return [
            peer
            for peer, found in looked.items()
            if found.beyond_bytes > _MOST_BYTES
            or (
                found.beyond_bytes > _MANY_BYTES
                and (beyond[peer[0]] > _MOST_OF_ADDRESS or total_beyond_bytes > _MOST_TOTAL_BYTES)
            )
            or (
                found.left_bytes > _MANY_BYTES
                and (left[peer[0]] > _MOST_UNFINISHED_OF_ADDRESS or total_left_bytes > _MOST_UNFINISHED_BYTES)
            )
        ]

    def _look(self, traffic: Mapping[Peer, Traffic]) -> dict[Peer, _Called]:
        """Return what is known of each connection, with the bytes that are under way on it."""
        now_s, looked = time.monotonic(), dict[Peer, _Called]()
        with self._lock:
            for peer in self._seen - traffic.keys():
                found = self._called.pop(peer, None)
                if found is not None and found.beyond_bytes:
                    self._gone.append((now_s, peer[0], found.beyond_bytes))
            while self._gone and self._gone[0][0] < now_s - _MEMORY_S:
                self._gone.popleft()
            self._seen = set(traffic)
            for peer, seen in traffic.items():
                found = self._called.setdefault(peer, _Called())
                left = seen.received_bytes - found.size_bytes - seen.sent_bytes // _SENT_PER_RECEIVED
                # A call that arrived since the kernel was asked is ahead of what it said, so that much credit is due.
                spare_bytes = max(-left - 2 * found.longest_bytes - _MOST_CREDIT_BYTES, 0)
                found.size_bytes -= spare_bytes
                found.left_bytes = max(left, 0)
                found.beyond_bytes = max(left - 2 * found.longest_bytes, 0)
                looked[peer] = found
        return looked
