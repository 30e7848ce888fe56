"""Counts requests to object stores, their bytes, and what they cost."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields

from sophon.errors import ConfigError


@dataclass(frozen=True)
class Prices:
    """The prices of an object store.

    Args:
        egress_per_gb: Price of reading 10⁹ bytes.
        get_per_million: Price of a million requests.
    """

    egress_per_gb: float = 0.0
    get_per_million: float = 0.0

    @classmethod
    def told(cls) -> Prices:
        """Return the prices given in the environment (SOPHON_EGRESS_PER_GB, SOPHON_GET_PER_MILLION)."""
        return cls(*(_number(os.environ.get(f"SOPHON_{name}")) for name in ("EGRESS_PER_GB", "GET_PER_MILLION")))

    def of(self, gets: int, size_bytes: int) -> float:
        """Return the price of a number of requests and bytes."""
        return self.get_per_million * gets / 1e6 + self.egress_per_gb * size_bytes / 1e9


def _number(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError as error:
        raise ConfigError(f"expected an object store price such as 0.09, got {text!r:.40}") from error


@dataclass
class Account:
    """Sums over all requests of this process.

    Attributes:
        gets: Answered requests for objects or ranges of objects.
        get_bytes: Bytes that these requests returned.
        index_bytes: Bytes of window indexes among them.
        lists: Pages of listings.
        heads: Requests for the metadata of single objects.
        retries: Requests repeated after a failure.
        slow_downs: How often an object store asked for fewer requests.
        hedges: Second requests for late answers; not counted in `gets`.
        hedge_bytes: Bytes that the second requests asked for.
        hedges_won: Second requests answered before the first.
        get_s: Sum of the seconds that each of these requests took, even if they overlapped.
    """

    gets: int = 0
    get_bytes: int = 0
    index_bytes: int = 0
    lists: int = 0
    heads: int = 0
    retries: int = 0
    slow_downs: int = 0
    hedges: int = 0
    hedge_bytes: int = 0
    hedges_won: int = 0
    get_s: float = 0.0

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.Lock()

    def got(self, size_bytes: int, seconds: float) -> None:
        """Count a request that was answered."""
        with self._lock:
            self.gets += 1
            self.get_bytes += size_bytes
            self.get_s += seconds

    def hedged(self, size_bytes: int) -> None:
        """Count a second request for a late answer."""
        with self._lock:
            self.hedges += 1
            self.hedge_bytes += size_bytes

    def add(self, name: str, amount: int = 1) -> None:
        """Add to any other of the sums."""
        with self._lock:
            setattr(self, name, getattr(self, name) + amount)

    def now(self) -> dict[str, float]:
        """Return all sums."""
        with self._lock:
            return {field.name: getattr(self, field.name) for field in fields(self)}


ACCOUNT = Account()
"""The account of this process."""
os.register_at_fork(after_in_child=ACCOUNT.renew)
