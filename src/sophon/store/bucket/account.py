"""What was asked of object stores: requests, bytes, and what they cost."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields

from sophon.errors import ConfigError


@dataclass(frozen=True)
class Prices:
    """What an object store charges.

    Args:
        egress_per_gb: Money for 10⁹ bytes that are read.
        get_per_million: Money for a million requests.
    """

    egress_per_gb: float = 0.0
    get_per_million: float = 0.0

    @classmethod
    def told(cls) -> Prices:
        """Return the prices that the environment names (SOPHON_EGRESS_PER_GB, SOPHON_GET_PER_MILLION)."""
        return cls(*(_number(os.environ.get(f"SOPHON_{name}")) for name in ("EGRESS_PER_GB", "GET_PER_MILLION")))

    def of(self, gets: int, size_bytes: int) -> float:
        """Return the price of so many requests for so many bytes."""
        return self.get_per_million * gets / 1e6 + self.egress_per_gb * size_bytes / 1e9


def _number(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError as error:
        raise ConfigError(f"a price of an object store: expected a number such as 0.09, got {text!r:.40}") from error


@dataclass
class Account:
    """Sums over all requests of this process.

    Attributes:
        gets: Requests for objects or parts of them that were answered.
        get_bytes: Bytes that came with these.
        index_bytes: Those among them that were window indexes.
        lists: Pages of listings.
        heads: Questions about single objects.
        retries: Requests that were made again after a failure.
        slow_downs: How often an object store asked for fewer requests.
        hedges: Second requests for what was late; not among the `gets`.
        hedge_bytes: Bytes that these asked for.
        hedges_won: Those that came before the first.
        get_s: Seconds that requests took, summed over those at once.
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
        """Count a second request for what was late."""
        with self._lock:
            self.hedges += 1
            self.hedge_bytes += size_bytes

    def add(self, name: str, amount: int = 1) -> None:
        """Count something else."""
        with self._lock:
            setattr(self, name, getattr(self, name) + amount)

    def now(self) -> dict[str, float]:
        """Return all sums."""
        with self._lock:
            return {field.name: getattr(self, field.name) for field in fields(self)}


ACCOUNT = Account()
"""Of this process."""
os.register_at_fork(after_in_child=ACCOUNT.renew)
