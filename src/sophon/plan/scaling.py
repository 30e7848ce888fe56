"""Computes the number of relays to run from trainers' reports, without clocks, processes or sockets.

A trainer reports the bottleneck of its plan and the share of its time spent waiting. Relays are wanted when trainers
wait for CPU that relays could provide: the trainer's own, or that of the existing relays. They are not wanted when no
trainer waits, or when the link, the store or the training step is the bottleneck.

The number grows quickly, at most doubling each time, since a waiting trainer costs more than an idle relay. It shrinks
slowly, one relay at a time: a trainer between two epochs, or one that is restarted, reports nothing for a minute. The
number always stays within its bounds.

An implementation that breaks any of these rules has a bug:

- The number is always within the bounds.
- It grows only if some trainer has waited for CPU for `patience_s`; each time it at most doubles.
- It shrinks by one at a time, and only if no trainer has needed that many relays for `rest_s`.
- Reports older than `stale_s` are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sophon.errors import ConfigError
from sophon.plan.cost import Prediction
from sophon.plan.resources import kind_named

CPU = ("trainer", "relay")
"""Kinds of resources that more relays can supplement."""
_WAITS = 0.05  # of a trainer's time: less is not worth a relay; the same as in `loader.account.advice`
_IDLE = 0.5  # of the relays' time: below this, half of the relays would be enough


@dataclass(frozen=True)
class Bounds:
    """Bounds on the number of relays, and how fast it changes.

    Args:
        least: Fewest relays.
        most: Most relays.
        patience_s: How long trainers wait before relays are added.
        rest_s: How long relays must be unneeded before one is removed.
        stale_s: Age at which a report is ignored.
    """

    least: int = 0
    most: int = 8
    patience_s: float = 10.0
    rest_s: float = 300.0
    stale_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ConfigError(f"relays: {self.least} … {self.most} are not bounds; give two numbers, the lower first")
        times = (self.patience_s, self.rest_s, self.stale_s)
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in times):
            raise ConfigError(f"relays: expected seconds of zero or more, got {times}")


@dataclass(frozen=True)
class Report:
    """A trainer's report.

    Args:
        at_s: Time of the report, by the clock of the process that scales relays.
        bottleneck: The resource that limits the trainer's planned epoch; "" without a plan.
        waited_share: Share of the trainer's time spent waiting for batches.
        relay_share: Share of the time that relays are busy, according to the plan.
    """

    at_s: float
    bottleneck: str
    waited_share: float
    relay_share: float = 0.0

    @classmethod
    def of(cls, at_s: float, prediction: Prediction | None, waited_share: float) -> Report:
        """Return the report of a trainer with a plan, or without one."""
        if prediction is None:
            return cls(at_s, "", waited_share)
        busy = prediction.relay_s / prediction.epoch_s if prediction.epoch_s > 0 else 0.0
        return cls(at_s, prediction.bottleneck, waited_share, busy if math.isfinite(busy) else 1.0)

    @property
    def wants_more(self) -> bool:
        """Whether the trainer waits for CPU that a relay could provide."""
        return bool(self.bottleneck) and kind_named(self.bottleneck).name in CPU and self.waited_share > _WAITS

    @property
    def needs_them(self) -> bool:
        """Whether the trainer keeps the existing relays busy."""
        return self.wants_more or self.relay_share > _IDLE


@dataclass(frozen=True)
class Scale:
    """The number of relays to run, and the times on which the next change depends.

    Args:
        relays: Number of relays.
        wanted_s: Time since which some trainer has wanted more relays; None if none does.
        needed_s: Time at which the relays were last needed.
    """

    relays: int
    wanted_s: float | None = None
    needed_s: float = 0.0


def rescaled(before: Scale, reports: Sequence[Report], bounds: Bounds, now_s: float) -> Scale:
    """Return the number of relays to run now.

    Args:
        before: The previous result.
        reports: The last report of each trainer.
        bounds: Bounds on the number.
        now_s: The time.
    """
    fresh = [report for report in reports if now_s - report.at_s <= bounds.stale_s]
    found = replace(before, relays=min(max(before.relays, bounds.least), bounds.most))
    if any(report.needs_them for report in fresh):
        found = replace(found, needed_s=now_s)
    if any(report.wants_more for report in fresh):
        since_s = now_s if before.wanted_s is None else before.wanted_s
        if now_s - since_s < bounds.patience_s:
            return replace(found, wanted_s=since_s)
        more = min(max(2 * found.relays, 1), bounds.most)
        return replace(found, relays=more, wanted_s=now_s)
    found = replace(found, wanted_s=None)
    if now_s - found.needed_s >= bounds.rest_s and found.relays > bounds.least:
        return replace(found, relays=found.relays - 1, needed_s=now_s)
    return found
