"""Room for requests: how many are answered at once, and how many bytes they hold together.

Where several tenants share a node, none of them has more than half of the seats: streams that are begun and never read
keep theirs for as long as the connection stands, and would keep all others out.

Concurrency: used by the threads of all requests.
"""

from __future__ import annotations

import threading
from collections import Counter

from sophon.errors import RetryableError
from sophon.server.limits import Limits


class Room:
    """Seats for requests.

    Args:
        limits: How many seats, and how many bytes.
        tenants: How many share them.
    """

    def __init__(self, limits: Limits, tenants: int = 1) -> None:
        self._limits = limits
        self._share = limits.requests if tenants <= 1 else -(-limits.requests // 2)
        self._lock = threading.RLock()  # reentrant, since a seat may be given up by the garbage collector at any moment
        self._by_tenant: Counter[int] = Counter()
        self.requests = 0
        self.held_bytes = 0

    def enter(self, tenant: int = 0) -> Seat:
        """Return a seat, or raise `RetryableError` if there is none."""
        with self._lock:
            if self.requests >= self._limits.requests:
                raise RetryableError(f"this node answers {self._limits.requests} requests already; try again later")
            if self._by_tenant[tenant] >= self._share:
                raise RetryableError(
                    f"this node answers {self._share} requests with this token already, as many as one tenant of "
                    "several may have; try again later"
                )
            self._by_tenant[tenant] += 1
            self.requests += 1
        return Seat(self, tenant)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether that much more may be held."""
        return self.held_bytes + size_bytes <= self._limits.in_flight_bytes

    def hold(self, size_bytes: int) -> None:
        """Count bytes as held, or fewer if negative."""
        with self._lock:
            self.held_bytes += size_bytes

    def leave(self, tenant: int, size_bytes: int) -> None:
        """Take a request and what it still holds out of the count."""
        with self._lock:
            self._by_tenant[tenant] -= 1
            self.requests -= 1
            self.held_bytes -= size_bytes


class Seat:
    """The place of one request, given up by `leave` or when nobody has it any more.

    A reply stream whose trainer goes away before the first word is dropped by Flight without being run: nothing in it
    could give up its place, so its place does that by itself.
    """

    def __init__(self, room: Room, tenant: int) -> None:
        self._room = room
        self._tenant = tenant
        self._held_bytes = 0
        self._taken = True

    def has_room(self, size_bytes: int) -> bool:
        """Return whether that much more may be held."""
        return self._room.has_room(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Count bytes as held by this request, or fewer if negative."""
        self._held_bytes += size_bytes
        self._room.hold(size_bytes)

    def leave(self) -> None:
        """Give up the place and all that is held."""
        if self._taken:
            self._taken = False
            self._room.leave(self._tenant, self._held_bytes)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        self.leave()
