"""Seats for requests: how many are answered at once, and how many bytes they hold together.

If several tenants share a node, none of them gets more than half of the seats: a stream that is opened and never read
keeps its seat for as long as its connection lasts, so one tenant could otherwise shut out all the others.

Concurrency: used by the threads of all requests.
"""

from __future__ import annotations

import threading
from collections import Counter

from sophon.errors import RetryableError
from sophon.server.limits import Limits


class Seats:
    """Seats for requests.

    Args:
        limits: Number of seats, and of bytes that may be held.
        tenants: Number of tenants that share the seats.
    """

    def __init__(self, limits: Limits, tenants: int = 1) -> None:
        self._limits = limits
        self._share = limits.requests if tenants <= 1 else -(-limits.requests // 2)
        self._lock = threading.RLock()  # reentrant: the garbage collector may give up a seat at any moment
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

    def has_space(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more may be held."""
        return self.held_bytes + size_bytes <= self._limits.in_flight_bytes

    def hold(self, size_bytes: int) -> None:
        """Add to the bytes that are held; negative to subtract."""
        with self._lock:
            self.held_bytes += size_bytes

    def leave(self, tenant: int, size_bytes: int) -> None:
        """Subtract a request and the bytes that it still holds."""
        with self._lock:
            self._by_tenant[tenant] -= 1
            self.requests -= 1
            self.held_bytes -= size_bytes


class Seat:
    """The seat of one request, given up by `leave` or when nothing refers to it any more.

    If a trainer goes away before its stream has begun, Flight drops the stream without running it. Its code cannot give
    up the seat then, so the seat does so itself.
    """

    def __init__(self, seats: Seats, tenant: int) -> None:
        self._seats = seats
        self._tenant = tenant
        self._held_bytes = 0
        self._taken = True

    def has_space(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more may be held."""
        return self._seats.has_space(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Add to the bytes that this request holds; negative to subtract."""
        self._held_bytes += size_bytes
        self._seats.hold(size_bytes)

    def leave(self) -> None:
        """Give up the seat and everything that the request holds."""
        if self._taken:
            self._taken = False
            self._seats.leave(self._tenant, self._held_bytes)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        self.leave()
