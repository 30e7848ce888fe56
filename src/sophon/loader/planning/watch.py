"""Finds the bottleneck of training when nothing is planned: in local mode, or with fixed cuts.

Concurrency: called by the engine's threads.
"""

from __future__ import annotations

import math
import threading
import time

from sophon.codec.cut import Cut
from sophon.link.transport import Fetch
from sophon.link.wire import Reply
from sophon.loader.account.stats import Stats
from sophon.loader.planning.clocks import LinkClock
from sophon.process.renewal import renew_after_fork
from sophon.profile.verdict import Verdict


class Watch:
    """Times requests as a `Planner` does, but makes no plans.

    Args:
        is_remote: Whether samples come over a link.
        trainer_cores: Number of cores that finish samples here.
        stats: The loader's own counts.
        is_alone: Whether the thread that iterates does everything.
    """

    def __init__(self, is_remote: bool, trainer_cores: float, stats: Stats, is_alone: bool) -> None:
        self._is_remote = is_remote
        self._trainer_cores = trainer_cores
        self._stats = stats
        self._is_alone = is_alone
        self._clock = LinkClock(0.0)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.RLock()  # as in `stats`

    def began(self, request: int, source: int = 0) -> None:  # noqa: ARG002 - one clock for all
        """Record that a request was sent."""
        with self._lock:
            self._clock.began(request, time.monotonic())

    def received(self, request: int, sample: int, reply: Reply, asked: Cut, fetch: Fetch) -> None:  # noqa: ARG002
        """Record that a reply has arrived."""
        clock = fetch.clock
        with self._lock:
            self._clock.got(
                request, len(reply.payload), reply.cpu_s, clock.computing_s, time.monotonic(), clock.reading_s
            )

    def ended(self, request: int) -> None:
        """Record that a stream has ended."""
        with self._lock:
            self._clock.ended(request, time.monotonic())

    def spent(self, samples: int, size_bytes: int, cpu_s: float) -> None:
        """Not needed here: nothing is planned."""

    def verdict(self) -> Verdict | None:
        """Return the bottleneck of training so far; None if no sample has arrived."""
        stats = self._stats
        if not stats.samples:
            return None
        with self._lock:
            link, store = self._clock.link_bytes_per_s, self._clock.store_samples_per_s
            cutting = self._clock.cut_samples_per_s
        each_bytes = max(stats.link_bytes / stats.samples, 1.0)
        loop_s = stats.consumer_s + (stats.collate_s if self._is_alone else 0.0)
        cpu_s = stats.finish_cpu_s + (0.0 if self._is_alone else stats.collate_s)
        return Verdict(
            consumer_per_s=stats.samples / loop_s if loop_s > 0 else math.inf,
            io_per_s=link / each_bytes if self._is_remote and link else math.inf,
            cpu_per_s=self._trainer_cores * stats.samples / cpu_s if cpu_s > 0 else math.inf,
            store_per_s=store or math.inf,
            storage_per_s=cutting or math.inf,
        )
