"""Decides when to plan again in the middle of an epoch. The time is passed in, so that this can be tested."""

from __future__ import annotations

import math

from sophon.plan.resources import Resources

MOVED = math.log(1.25)  # a change of more than a quarter triggers a new plan
LOOK_S = 0.5  # between two checks of the clocks
SETTLE_S = 5.0  # after a new plan, before its effect is judged


class Replanning:
    """Decides when to check whether the link and the storage node have changed since a plan was made."""

    def __init__(self) -> None:
        self._look_at_s = 0.0

    def settle(self, now_s: float) -> None:
        """Record that a new plan was made."""
        self._look_at_s = now_s + SETTLE_S

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for a check."""
        return now_s >= self._look_at_s

    def looked(self, now_s: float) -> None:
        """Record a check."""
        self._look_at_s = now_s + LOOK_S


def moved(seen: Resources, planned: Resources) -> bool:
    """Return whether the link, storage node or relays of any part have changed since the plan was made."""
    if any(differ(getattr(seen, rate), getattr(planned, rate)) for rate in ("relay_cores", "relay_link_bytes_per_s")):
        return True
    if len(seen.nodes) == len(planned.nodes) > 0:
        return any(
            differ(now.rates.get(name, 0.0), then.rates.get(name, 0.0))
            for now, then in zip(seen.nodes, planned.nodes, strict=True)
            for name in ("link_bytes_per_s", "storage_cores")
        )
    return differ(seen.link_bytes_per_s, planned.link_bytes_per_s) or differ(seen.storage_cores, planned.storage_cores)


def differ(now: float, then: float) -> bool:
    """Return whether one number is more than a quarter above or below another."""
    if now <= 0 or then <= 0 or math.inf in (now, then):
        return now != then
    return abs(math.log(now / then)) > MOVED
