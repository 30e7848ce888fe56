"""Resources of relays, measured with the loader's own clocks: cores, link, and speed relative to the trainer.

A relay reports the CPU seconds of each sample, so the speed of its CPU is measured rather than assumed. Its streams
report how long they waited for ops and for the node, just as a node's streams do for its store, so the same clock
measures the cores and links of nodes and relays.

Concurrency: the caller makes sure that only one thread at a time uses this.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from sophon.codec.cut import Cut
from sophon.codec.route import Route
from sophon.link.transport import Fetch
from sophon.link.wire import Reply
from sophon.loader.planning.clocks import LinkClock
from sophon.pipeline import Pipeline
from sophon.plan.plan import Plan
from sophon.plan.resources import Resources
from sophon.profile.columns import routes_to_profile
from sophon.profile.estimate import Relayed
from sophon.profile.table import Profile

_FEW = 16  # samples through relays before their times are trusted
_EXTREME = 10.0  # as in `estimate`


class Relaying:
    """Measurements of the relays of one loader.

    Args:
        pipeline: The pipeline to divide.
        cuts: The cuts that have a column in the profile.
    """

    def __init__(self, pipeline: Pipeline, cuts: tuple[Cut, ...]) -> None:
        self.routes: tuple[Route, ...] = routes_to_profile(pipeline, cuts)
        # One per relay: an idle relay cannot be judged by another one.
        self._clocks: defaultdict[int, LinkClock] = defaultdict(lambda: LinkClock(math.inf))
        self._requests: dict[int, LinkClock] = {}
        self._planned_s = 0.0
        self._spent_s = 0.0
        self._seen = 0
        self._to_trainer = 1.0
        self._finishing: list[float] = [0, 0.0]  # samples finished here, and seconds beyond what was planned
        self._more_s = 0.0

    @property
    def relayed(self) -> Relayed:
        """The routes to plan with, and the speed of the relays."""
        return Relayed(self.routes, self._to_trainer, self._more_s)

    def is_of(self, request: int) -> bool:
        """Return whether a request was sent to a relay."""
        return request in self._requests

    def began(self, request: int, relay: int, now_s: float) -> None:
        """Record that a request was sent to a relay."""
        clock = self._requests[request] = self._clocks[relay]
        clock.began(request, now_s)

    def received(
        self, request: int, sample: int, reply: Reply, fetch: Fetch, known: tuple[Plan, Profile] | None, now_s: float
    ) -> None:
        """Record a reply.

        Args:
            request: Number of the request.
            sample: Index of the sample.
            reply: The reply.
            fetch: The stream it came from.
            known: Plan and profile behind the request, if there are any.
            now_s: The time.
        """
        clock = fetch.clock
        self._requests[request].got(
            request, len(reply.payload), reply.relay_s, clock.computing_s, now_s, clock.reading_s
        )
        if known is None or reply.first is None or not reply.relay_s:
            return
        plan, profile = known
        column = int(plan.cut[sample]) if sample < len(plan) else 0
        if plan.routes[column].cuts == (reply.first, reply.cut) and "relay_s" in profile.more:
            self._planned_s += float(profile.more["relay_s"][sample, column])
            self._spent_s += reply.relay_s
            self._seen += 1

    def finished(self, planned_s: float, spent_s: float) -> None:
        """Record how long finishing took here for a sample that came through a relay, and how long was planned.

        Only relays send such payloads, so nothing else shows how long it takes to decode them.
        """
        self._finishing[0] += 1
        self._finishing[1] += spent_s - planned_s

    def ended(self, request: int, now_s: float) -> None:
        """Record that a stream has ended."""
        self._requests.pop(request).ended(request, now_s)

    def turn(self) -> None:
        """Record that a plan is being made: measurements since the last plan correct the estimated speed of relays."""
        if self._seen >= _FEW and self._planned_s > 0:
            to_trainer = self._to_trainer * self._spent_s / self._planned_s
            self._to_trainer = min(max(to_trainer, 1 / _EXTREME), _EXTREME)
            self._planned_s, self._spent_s, self._seen = 0.0, 0.0, 0
        count, beyond_s = self._finishing
        if count >= _FEW:
            self._more_s = max(self._more_s + beyond_s / count, 0.0)
            self._finishing = [0, 0.0]

    def hope(self) -> None:
        """Assume that slow relays have become faster; see `LinkClock.hope`."""
        for clock in self._clocks.values():
            clock.hope()

    def resources(self, before: Resources, cores: Mapping[int, float], ranks: int) -> Resources:
        """Return resources that include the relays.

        Args:
            before: Resources of the nodes and the trainer. A relay's link that was never full is assumed to be like
                theirs.
            cores: Number of cores that each answering relay reports, by the relay's number.
            ranks: Number of ranks that share the relays.
        """
        found = links = 0.0
        for number, its in cores.items():
            clock = self._clocks[number]
            clock.cores = its / ranks
            found += clock.storage_cores
            # The rate on a link that was not full only shows how much the trainer wanted.
            links += max(clock.full_link_bytes_per_s or 0.0, before.link_bytes_per_s / ranks)
        link = {"relay_link_bytes_per_s": ranks * links} if links else {}
        return before.having(relay_cores=ranks * found, **link)
