"""The input and output of a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sophon.errors import ConfigError
from sophon.plan.cost import CutIndex
from sophon.plan.game import Vector
from sophon.plan.resources import Resources
from sophon.profile.table import Profile


@dataclass(frozen=True)
class Options:
    """Options that a user may give a policy.

    Args:
        resize_k: Number of ops that `resize` runs near storage; None to stop where all pictures have one size,
            according to the profile.
        allow_lossy: Whether `optimal` may choose codecs that change the tensors.
        reserve: Share of the storage cores that `optimal` leaves free; see `RESERVE`.
        headroom: Share of the consumer's time that `optimal` leaves free on the link and the cores, provided
            that this does not lengthen the epoch; see `HEADROOM`.
    """

    resize_k: int | None = None
    allow_lossy: bool = False
    reserve: float = 0.0
    headroom: float = 0.0

    def __post_init__(self) -> None:
        k = self.resize_k
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 0):
            raise ConfigError(f"resize_k is {self.resize_k!r}; give the number of ops to run near storage, such as 2.")
        if not isinstance(self.allow_lossy, bool):
            raise ConfigError(f"allow_lossy is {self.allow_lossy!r}; give True or False.")
        if isinstance(self.reserve, bool) or not 0 <= self.reserve <= 0.9:
            raise ConfigError(f"reserve is {self.reserve!r}; give a share of the storage cores, 0 … 0.9.")
        if isinstance(self.headroom, bool) or not 0 <= self.headroom <= 0.9:
            raise ConfigError(f"headroom is {self.headroom!r}; give a share of the consumer's time, 0 … 0.9.")


@dataclass(frozen=True, eq=False)
class Choice:
    """The cut that a policy gives every sample.

    Args:
        cut: Column of the profile per sample.
        reason: Why, in one sentence.
        bound_s: No plan takes fewer seconds; None if the policy does not know.
        prices: Prices of the resources under which the choice is best; None if the choice was not made by prices.
        rivals_s: No other policy's plan takes fewer seconds; only meaningful with prices.
    """

    cut: CutIndex
    reason: str
    bound_s: float | None = None
    prices: Vector | None = None
    rivals_s: float = 0.0


RESERVE = 0.15
"""Share of the storage cores that a plan leaves free when it is actually run.

A plan that fully loads link and cores has no slack for a stretch of the epoch that is heavier than the mean: when the
cores fall behind in such a stretch, the link waits, and no later stretch makes up for it. Measured with 0.2 of a core:
an epoch takes 25 to 40 % longer than predicted with nothing free, 9 to 11 % with 15 to 20 % free.
"""

HEADROOM = 0.15
"""Share of the consumer's time that a plan leaves free on link and cores when it is actually run, if possible.

If a plan is as fast as the consumer, so are many others, and the one with the fewest storage seconds keeps the link as
busy as the consumer. Then every late sample makes the consumer wait, and no early sample makes up for it. The value is
that of `RESERVE`, for the same reason: stretches of an epoch differ by this much.
"""


def reserve_for(storage_cores: float) -> float:
    """Return the share of the storage cores that a plan should leave free.

    The share is that of a single core: with several cores, one late sample matters proportionally less.
    """
    return RESERVE / max(storage_cores, 1.0)


Policy = Callable[[Profile, Resources, Options], Choice]
DEFAULTS = Options()


def exact_columns(profile: Profile, options: Options) -> tuple[int, ...]:
    """Return the columns that may be chosen: all, but those with lossy codecs only if the user allows them."""
    return tuple(column for column, route in enumerate(profile.routes) if options.allow_lossy or route.is_exact)


def resize_k(profile: Profile, options: Options) -> int | None:
    """Return how many ops `resize` runs near storage; None if neither the user nor the profile says."""
    return profile.resize_k if options.resize_k is None else options.resize_k


def uniform(profile: Profile, k: int) -> CutIndex:
    """Return the plan that runs ops[:k] of every sample near storage and sends the result raw.

    A sample for which that cut is impossible gets the next smaller one, which is also what a server would send.
    """
    wanted = [column for column in profile.raw_columns() if profile.cuts[column].k <= k]
    if not wanted or profile.cuts[wanted[-1]].k != k:
        known = ", ".join(str(profile.cuts[column].k) for column in profile.raw_columns())
        raise ConfigError(f"no raw cut after {k} ops was profiled; choose k from {known}, or profile it.")
    cut = np.full(len(profile), wanted[-1], np.uint8)
    for column, smaller in zip(wanted[::-1], wanted[-2::-1], strict=False):
        if profile.has_illegal(column):
            stuck = (cut == column) & np.isinf(profile.payload_bytes[:, column])
            cut[stuck] = smaller
    return cut


def untouched(profile: Profile) -> CutIndex:
    """Return the plan that sends every sample's raw bytes."""
    return np.full(len(profile), profile.untouched, np.uint8)
