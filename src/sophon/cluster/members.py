"""The nodes of a roll, found by data set and by address; each belongs to the token that announced it.

Two tokens that announce the same name or address are two nodes, so nobody takes the place of somebody else's node. A
node replaces another at its address only if its token may announce all that the other holds: it was started again
there. Once there are `MOST_NODES`, the token with the most of them gives way to those with fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sophon.errors import ConfigError
from sophon.link.membership import LEASE_S, NodeRecord, dataset_of
from sophon.server.access import Rights

MOST_NODES = 4096


@dataclass(frozen=True)
class Member:
    """A node that has announced itself.

    Args:
        record: Its last announcement.
        heard_s: The time of that announcement.
        by: Rights of the token that announced it.
    """

    record: NodeRecord
    heard_s: float
    by: Rights

    @property
    def key(self) -> tuple[int, str]:
        """What tells nodes apart: the token's number and the node's name."""
        return self.by.tenant, self.record.node

    def is_silent(self, now_s: float) -> bool:
        """Return whether the node has not announced itself recently."""
        return now_s - self.heard_s > LEASE_S


class Members:
    """All nodes of a roll."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, str], Member] = {}
        # By data set and by address: what one token announces does not slow down lookups of other data sets.
        self._holders: dict[str, dict[tuple[int, str], Member]] = {}
        self._at: dict[str, dict[tuple[int, str], Member]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def all(self) -> Collection[Member]:
        """Return all nodes."""
        return self._all.values()

    def of(self, dataset: str) -> Collection[Member]:
        """Return the nodes that announce a data set under this name."""
        return self._holders.get(dataset, {}).values()

    def get(self, by: Rights, node: str) -> Member | None:
        """Return a token's node."""
        return self._all.get((by.tenant, node))

    def add(self, member: Member) -> list[Member]:
        """Add a node, or what it announces now; return what was replaced.

        Raises:
            ConfigError: There are too many nodes, and no token has more of them than this one.
        """
        before = self._all.get(member.key)
        there = self._at.get(member.record.url, {}).values()
        replaced = [one for one in there if one is not before and _covers(member.by, one)]
        if before is not None:
            replaced.append(before)
        elif not replaced and len(self._all) >= MOST_NODES:
            self._make_space(member)
        for one in replaced:
            self.drop(one)
        self._all[member.key] = member
        self._at.setdefault(member.record.url, {})[member.key] = member
        for name in member.record.datasets:
            self._holders.setdefault(name, {})[member.key] = member
        return replaced

    def drop(self, member: Member) -> None:
        """Remove a node."""
        del self._all[member.key]
        _remove(self._at, member.record.url, member)
        for name in member.record.datasets:
            _remove(self._holders, name, member)

    def _make_space(self, newcomer: Member) -> None:
        giver = gives_way((one.by.tenant for one in self._all.values()), newcomer.by.tenant)
        oldest = min((one for one in self._all.values() if one.by.tenant == giver), key=lambda one: one.heard_s)
        if giver == newcomer.by.tenant and not oldest.is_silent(newcomer.heard_s):
            raise ConfigError(
                f"there are {MOST_NODES:,} nodes already, and no token has more of them than this one; stop some, or "
                "start another registry"
            )
        self.drop(oldest)  # the parts of a silent node stay known


def gives_way(tenants: Iterable[int], newcomer: int) -> int:
    """Return whose entry of a full table makes space for a newcomer's: its own, unless another tenant has more.

    After the exchange the newcomer has no more entries than the other, so the two never push each other out in turns.

    Args:
        tenants: The tenant of each entry.
        newcomer: The tenant that adds one.
    """
    counts = Counter(tenants)
    most = max(counts, key=lambda tenant: counts[tenant])
    return most if counts[most] > counts[newcomer] + 1 else newcomer


def _covers(by: Rights, other: Member) -> bool:
    names = {dataset_of(name) for name in other.record.datasets}
    return len(by.readable(names)) == len(names)


def _remove(index: dict[str, dict[tuple[int, str], Member]], name: str, member: Member) -> None:
    del index[name][member.key]
    if not index[name]:
        del index[name]
