"""Chooses the next task: tenants take turns by the CPU seconds they have used.

Each tenant has its own queue. The next task comes from the tenant that has used the fewest seconds, so a tenant with
many or long tasks delays only its own. An idle tenant does not save up credit: it resumes at the level of those that
were working in the meantime. Seconds are measured; until a task has ended, the mean of its tenant's tasks is counted
for it, or the time it has been running.

Nothing here is thread-safe: the budget holds the lock. No clock is read; callers pass the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sophon.server.tenants.slot import Slot

FIRST_GUESS_S = 0.005  # per task, until one has been measured: decoding and cropping a photo
SLICE_S = 0.003  # how long a task runs before another tenant's task may take its place: half a photo
HELD_COSTS = 2.0  # factor on the seconds charged for a suspended task, since it keeps its process and memory
_SMOOTHING = 0.05
_LEAST_LOOK_S = 0.003  # between checks of a task that should be suspended but cannot be


@dataclass(eq=False)
class Turn:
    """A task that has started.

    Args:
        share: Share of its tenant.
        slot: Where the task runs.
        since_s: When the task began or resumed.
        ran_s: How long the task ran before it was suspended.
        counted_s: Seconds charged to its tenant so far.
        paid_s: Seconds already deducted from the budget's credit.
    """

    share: Share
    slot: Slot
    since_s: float
    ran_s: float = 0.0
    counted_s: float = 0.0
    paid_s: float = 0.0

    def count(self, seconds: float) -> None:
        """Charge the tenant for a total number of seconds."""
        self.share.had_s += seconds - self.counted_s
        self.counted_s = seconds


@dataclass(eq=False)
class Share:
    """One tenant's tasks.

    Args:
        had_s: CPU seconds that the tenant has used.
        task_s: Typical duration of a task.
        queue: Tasks that have not started.
        held: Suspended tasks.
        running: Running tasks.
    """

    had_s: float = 0.0
    task_s: float = FIRST_GUESS_S
    queue: deque[tuple[Any, Future[Any]]] = field(default_factory=deque)
    held: deque[Turn] = field(default_factory=deque)
    running: list[Turn] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether there is a task to start or resume."""
        return bool(self.queue or self.held)

    @property
    def is_active(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.queue or self.held or self.running)

    def work_s(self) -> float:
        """Return roughly how many seconds of work there are."""
        return (len(self.queue) + len(self.held) + len(self.running)) * self.task_s

    def measured(self, seconds: float) -> None:
        """Record the duration of a task."""
        self.task_s += _SMOOTHING * (seconds - self.task_s)


class Shares:
    """The tasks of all tenants."""

    def __init__(self) -> None:
        self._shares: dict[int, Share] = {}

    def of(self, tenant: int) -> Share:
        """Return the share of a tenant."""
        return self._shares.setdefault(tenant, Share())

    def add(self, tenant: int, item: tuple[Any, Future[Any]], is_first: bool) -> None:
        """Queue a tenant's task, ahead of its other tasks if `is_first`."""
        share = self.of(tenant)
        if not share.is_active:
            others = [other.had_s for other in self._shares.values() if other.is_active]
            # CPU used while no other tenant was waiting is not charged.
            start_s = min(others) if others else max(other.had_s for other in self._shares.values())
            share.had_s = max(share.had_s, start_s)
        if is_first:
            share.queue.appendleft(item)
        else:
            share.queue.append(item)

    def wait_s(self, tenant: int, cores: float) -> float:
        """Return how long one more of a tenant's tasks would wait."""
        share = self._shares.get(tenant)
        own_s = 0.0 if share is None else share.work_s()
        # Until its own tasks are done, every other tenant gets the same time, or less if it has less to do.
        others_s = sum(min(other.work_s(), own_s) for other in self._shares.values() if other is not share)
        return (own_s + others_s) / cores

    def work_s(self) -> float:
        """Return the seconds of work of all tenants."""
        return sum(share.work_s() for share in self._shares.values())

    def next(self, but_not: Share | None = None) -> Share | None:
        """Return the waiting tenant whose turn it is."""
        waiting = [share for share in self._shares.values() if share.waits and share is not but_not]
        return min(waiting, key=lambda share: share.had_s, default=None)

    def next_held(self) -> Share | None:
        """Return the tenant whose turn it is among those with suspended tasks."""
        return min(
            (share for share in self._shares.values() if share.held), key=lambda share: share.had_s, default=None
        )

    def due(self, now_s: float) -> tuple[list[Turn], float]:
        """Return the tasks that must yield to another tenant now, and when to check again if there are none.

        Such a task has run for a while, and its tenant has used more than a tenant that waits.
        """
        found, look_s = [], math.inf
        for share in self._shares.values():
            waiting = self.next(but_not=share)
            if waiting is None:
                continue
            for turn in share.running:
                ran_s = turn.ran_s + now_s - turn.since_s
                had_s = share.had_s + max(0.0, HELD_COSTS * ran_s - turn.counted_s)
                left_s = max(turn.since_s + SLICE_S - now_s, waiting.had_s - had_s)
                if left_s <= 0:
                    found.append(turn)
                look_s = min(look_s, now_s + max(left_s, _LEAST_LOOK_S))
        return found, look_s

    def withdraw(self, futures: set[Future[Any]]) -> None:
        """Take tasks out of the queues."""
        for share in self._shares.values():
            if any(item[1] in futures for item in share.queue):
                share.queue = deque(item for item in share.queue if item[1] not in futures)

    def clear(self) -> Iterable[Future[Any]]:
        """Empty all queues; return the tasks that were in them."""
        dropped = [future for share in self._shares.values() for _, future in share.queue]
        for share in self._shares.values():
            share.queue.clear()
        return dropped

    @property
    def are_several(self) -> bool:
        """Whether more than one tenant has been seen."""
        return len(self._shares) > 1

    def all(self) -> Iterable[Share]:
        """Return the tasks of each tenant."""
        return self._shares.values()
