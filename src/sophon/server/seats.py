"""Seats for requests: how many are answered at once, and how many bytes they hold together.

If several tenants share a node, none of them gets more than half of the seats, or of the bytes: a stream that is opened
and never read keeps its seat, and what it holds, for as long as its connection lasts, so one tenant could otherwise
shut out all the others. For the same reason each request may hold a little (`FREE_BYTES`) no matter how much the others
hold, so the total is bounded by the limit on bytes plus that little for each seat.

Concurrency: used by the threads of all requests.
"""

from __future__ import annotations

import threading
from collections import Counter

from sophon.errors import RetryableError
from sophon.server.limits import Limits

FREE_BYTES = 1 << 20  # what a request may always hold, whatever the others hold: ten photos


class Seats:
    """Seats for requests.

    Args:
        limits: Number of seats, and number of bytes that may be held.
        tenants: Number of tenants that share the seats.
    """

    def __init__(self, limits: Limits, tenants: int = 1) -> None:
        self._limits = limits
        self._share = limits.requests if tenants <= 1 else -(-limits.requests // 2)
        self._lock = threading.RLock()  # reentrant: the garbage collector may give up a seat at any moment
        self._share_bytes = limits.in_flight_bytes if tenants <= 1 else -(-limits.in_flight_bytes // 2)
        self._freed = threading.Condition(self._lock)
        self._by_tenant: Counter[int] = Counter()
        self._bytes_by_tenant: Counter[int] = Counter()
        self.requests = 0
        self.held_bytes = 0

    def enter(self, tenant: int = 0) -> Seat:
        """Return a seat, or raise `RetryableError` if there is none."""
        with self._lock:
            if self.requests >= self._limits.requests:
                raise RetryableError(
                    f"this node is already answering {self._limits.requests} requests; try again later"
                )
            if self._by_tenant[tenant] >= self._share:
                raise RetryableError(
                    f"this node is already answering {self._share} requests with this token, the limit for one tenant "
                    "of several; try again later"
                )
            self._by_tenant[tenant] += 1
            self.requests += 1
        return Seat(self, tenant)

    @property
    def largest_bytes(self) -> int:
        """Size of the largest file that may be held."""
        return max(self._share_bytes, FREE_BYTES)

    def hold(self, size_bytes: int, tenant: int = 0, *, is_certain: bool = True) -> bool:
        """Add to the bytes that are held (or subtract, if negative) if there is space; return whether there was.

        Args:
            size_bytes: Number of bytes.
            tenant: Number of the tenant.
            is_certain: Whether to add the bytes even if there is no space.
        """
        with self._lock:
            if not is_certain and not self.has_space(size_bytes, tenant):
                return False
            self.held_bytes += size_bytes
            self._bytes_by_tenant[tenant] += size_bytes
            if size_bytes < 0:
                self._freed.notify_all()
            return True

    def has_space(self, size_bytes: int, tenant: int = 0) -> bool:
        """Return whether a tenant may hold `size_bytes` more."""
        return (
            self.held_bytes + size_bytes <= self._limits.in_flight_bytes
            and self._bytes_by_tenant[tenant] + size_bytes <= self._share_bytes
        )

    def wait(self, timeout_s: float | None) -> None:
        """Wait until fewer bytes are held, or until the time is over."""
        with self._lock:
            self._freed.wait(timeout_s)

    def leave(self, tenant: int, size_bytes: int) -> None:
        """Subtract a request and the bytes that it still holds."""
        with self._lock:
            self._by_tenant[tenant] -= 1
            self.requests -= 1
            self.held_bytes -= size_bytes
            self._bytes_by_tenant[tenant] -= size_bytes
            self._freed.notify_all()


class Seat:
    """The seat of one request, given up by `leave` or when nothing refers to it any more.

    If a trainer goes away before its stream has started, Flight drops the stream without running it. The stream's code
    cannot give up the seat then, so the seat does so itself.
    """

    def __init__(self, seats: Seats, tenant: int) -> None:
        self._seats = seats
        self.tenant = tenant
        self._lock = threading.RLock()  # the stream's thread and those of the budget
        self._held_bytes = 0
        self._taken = True

    @property
    def largest_bytes(self) -> int:
        """Size of the largest file that may be held."""
        return self._seats.largest_bytes

    def has_space(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more may be held."""
        return self._is_free(size_bytes) or self._seats.has_space(size_bytes, self.tenant)

    def _is_free(self, size_bytes: int) -> bool:
        return self._held_bytes + size_bytes <= FREE_BYTES

    def hold(self, size_bytes: int, *, is_certain: bool = True) -> bool:
        """Add to the bytes that this request holds, or subtract if negative; return whether there was space.

        Args:
            size_bytes: Number of bytes.
            is_certain: Whether to add the bytes even if there is no space.
        """
        with self._lock:
            is_certain = is_certain or size_bytes <= 0 or self._is_free(size_bytes)
            if not self._seats.hold(size_bytes, self.tenant, is_certain=is_certain):
                return False
            self._held_bytes += size_bytes
            return True

    def wait(self, timeout_s: float | None) -> None:
        """Wait until all requests together hold fewer bytes, or until the time is over."""
        self._seats.wait(timeout_s)

    def leave(self) -> None:
        """Give up the seat and everything that the request holds."""
        if self._taken:
            self._taken = False
            self._seats.leave(self.tenant, self._held_bytes)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        self.leave()
