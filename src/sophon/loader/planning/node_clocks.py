"""Speed of each node's link, cores and store, for nodes that hold different samples.

Each node has its own clock, which counts only the time in which that node has a stream open. So a node behind a slow
link is distinguished from the others, and a plan offloads more to it. The resources of a part are the sum of those of
its holders, each weighted by how much it works for that part.

The time is passed in and no clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sophon.loader.machine.parts import Parts
from sophon.loader.planning.clocks import LinkClock, believed
from sophon.plan.resources import Node

MOST_PARTS = 64  # nodes that are planned individually: each adds three resources to every plan


class NodeClocks:
    """The clocks of all nodes, for a data set that is divided into parts."""

    def __init__(self) -> None:
        self._clocks: dict[int, LinkClock] = {}
        self._source_of: dict[int, int] = {}
        self._believed: dict[int, float] = {}  # last known bytes per second of each node's link

    def began(self, request: int, source: int, now_s: float) -> None:
        """Record that a request was sent to a node."""
        self._source_of[request] = source
        self._clocks.setdefault(source, LinkClock(math.inf)).began(request, now_s)

    def got(
        self, request: int, size_bytes: int, cpu_s: float, computing_s: float, now_s: float, reading_s: float
    ) -> None:
        """Record a reply; see `LinkClock.got`."""
        if request in self._source_of:
            clock = self._clocks[self._source_of[request]]
            clock.got(request, size_bytes, cpu_s, computing_s, now_s, reading_s)

    def ended(self, request: int, now_s: float) -> None:
        """Record that a stream has ended, normally or with an error."""
        source = self._source_of.pop(request, None)
        if source is not None:
            self._clocks[source].ended(request, now_s)

    def turn(self) -> None:
        """Record that an epoch begins."""
        for clock in self._clocks.values():
            clock.turn()

    def hope(self) -> None:
        """Assume that slow nodes have become a quarter faster."""
        for clock in self._clocks.values():
            clock.hope()

    def nodes(
        self, parts: Parts, samples: int, cores: Sequence[float | None], ranks: int, lately: bool
    ) -> tuple[Node, ...]:
        """Return the resources of the holders of each part; empty if too little is known yet.

        Args:
            parts: Which nodes hold which samples.
            samples: Number of samples of the data set.
            cores: Number of cores for ops that each node reports.
            ranks: Number of ranks that share the nodes; each has measured its own part of them.
            lately: Whether to use the last seconds rather than the whole epoch.
        """
        if not 1 < len(parts.holders) <= MOST_PARTS:
            return ()
        of = np.zeros(samples, np.int64) if parts.of is None else parts.of
        counts = np.bincount(of, minlength=len(parts.holders)).astype(np.float64)
        load: dict[int, float] = {}  # samples that each node serves, if the holders of a part share it
        for part, holders in enumerate(parts.holders):
            for node in holders:
                load[node] = load.get(node, 0.0) + counts[part] / len(holders)
        seen = {node: self._link_of(node, lately) for node in load}
        rated = [rate for rate in seen.values() if rate is not None]
        if not rated:
            return ()
        usual = sum(rated) / len(rated)
        found = []
        for part, holders in enumerate(parts.holders):
            rates = {"link_bytes_per_s": 0.0, "storage_cores": 0.0, "store_reads_per_s": 0.0}
            for node in holders:
                share = counts[part] / len(holders) / max(load[node], 1e-9)
                has = cores[node] if node < len(cores) else None
                rates["link_bytes_per_s"] += share * ranks * (seen[node] or usual)
                rates["storage_cores"] += share * self._cores_of(node, 0.0 if has is None else has, ranks)
                rates["store_reads_per_s"] += share * ranks * self._reads_of(node)
            # Unknown rates are left out, because JSON has no infinity.
            known = {k: v for k, v in rates.items() if math.isfinite(v) and (v > 0 or k == "storage_cores")}
            found.append(Node(parts.called(part), known))
        return tuple(found) if all("link_bytes_per_s" in node.rates for node in found) else ()

    def _link_of(self, node: int, lately: bool) -> float | None:
        clock = self._clocks.get(node)
        link = None
        if clock is not None:
            link = clock.link_bytes_per_s if lately else clock.usual_link_bytes_per_s
        if clock is None or link is None:
            return None
        self._believed[node] = believed(link, clock.proven_bytes_per_s, self._believed.get(node), is_hasty=True)
        return self._believed[node]

    def _cores_of(self, node: int, told: float, ranks: int) -> float:
        clock = self._clocks.get(node)
        if clock is None:
            return told
        clock.cores = told / ranks
        return ranks * clock.storage_cores

    def _reads_of(self, node: int) -> float:
        clock = self._clocks.get(node)
        rate = None if clock is None else clock.store_samples_per_s
        return math.inf if rate is None else rate
