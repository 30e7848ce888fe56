"""The roll: the nodes of a cluster and the parts they announce; without threads, sockets or clocks.

Nodes announce themselves every second. A node that has not done so for `LEASE_S` is *silent*: trainers are told about
it only if no other node holds its part, since they may still be able to reach it. Once announced, a part stays known
until a node at the same address announces something else. If all its holders are gone the part is *missing*: trainers
are told its name, and never see a smaller data set. If the registry has a state file, known parts outlive the process.

A new roll knows no nodes yet. It starts answering after every node has had time to announce itself, so that the first
node is not mistaken for the whole data set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cachetools import LRUCache

from sophon.cluster.members import Member, Members
from sophon.errors import ConfigError, RetryableError
from sophon.link.membership import (
    BEAT_S,
    PART_MARK,
    Held,
    NodeRecord,
    dataset_of,
    held_from,
    is_data_set,
    part_numbers,
)
from sophon.server.access import EVERYTHING, Rights

SETTLE_S = 3 * BEAT_S  # two announcements by every node, plus a margin for the network
MOST_PARTS = 4096  # of one data set: as many as there are nodes
_MOST_KNOWN = 1 << 16  # parts of all data sets together, in the file of a registry too, besides what shares guarantee
_MOST_LEFT = 4096  # remembered: the nodes that have left last
_MOST_UNSEEN = 64  # names of parts that were never announced; messages show fewer


@dataclass(frozen=True)
class PartHolders:
    """A part of a data set and the nodes that hold it.

    Args:
        held: Description of the part.
        urls: Addresses of its holders; empty if the part is missing.
        silent: How many of the holders have not announced themselves recently.
    """

    held: Held
    urls: tuple[str, ...]
    silent: int = 0


class Roll:
    """The known nodes and the parts they hold.

    Args:
        now_s: The time at the start.
        known: Parts announced to an earlier roll, by data set, as returned by `known`.
        settle_s: How long to wait before the first answer.
        named: Data sets that tokens of nodes name. Each has a share of the parts that a roll keeps.
    """

    def __init__(
        self,
        now_s: float,
        known: Mapping[str, Iterable[Held]] | None = None,
        settle_s: float = SETTLE_S,
        named: Collection[str] = (),
    ) -> None:
        self._start_s = now_s
        self._settle_s = settle_s
        self._named = frozenset(named)
        self._share = min(MOST_PARTS, _MOST_KNOWN // max(len(self._named), 1))
        self._members = Members()
        self._left: LRUCache[tuple[int, str], None] = LRUCache(_MOST_LEFT)
        self._known: dict[str, dict[str, Held]] = {
            name: {held.fingerprint: held for held in parts} for name, parts in (known or {}).items()
        }

    # --- what nodes announce ------------------------------------------------------------------------------------------

    def announce(self, record: NodeRecord, now_s: float, by: Rights = EVERYTHING) -> bool:
        """Record a node's announcement; return whether a part was announced for the first time.

        Args:
            record: The announcement.
            now_s: The time.
            by: Rights of the token that announces it, which allow all of its data sets.

        Raises:
            ConfigError: The announcement contradicts that of another node, or there are too many nodes.
        """
        if (by.tenant, record.node) in self._left:
            return False  # the announcement was under way for a long time: names are of processes, which do not return
        for name, held in record.datasets.items():
            self._check(record, name, held, now_s)
        before = self._members.add(Member(record, now_s, by))
        is_new = False
        for name, held in _parts_of(record):
            parts = self._known.get(name, {})
            if held.fingerprint not in parts:
                self._supersede(name, held)
                if self._has_space(name):
                    self._known.setdefault(name, {})[held.fingerprint] = held
                    is_new = True
        self._replace(before, record)
        return is_new

    def knows(self, record: NodeRecord) -> bool:
        """Return whether all parts of an announcement are kept, so that trainers are told of them."""
        return all(held.fingerprint in self._known.get(name, {}) for name, held in _parts_of(record))

    def _has_space(self, dataset: str) -> bool:
        """Return whether a part of a data set can be kept; one that tokens name always has its share."""
        count = len(self._known.get(dataset, {}))
        is_within = dataset in self._named and count < self._share
        return is_within or (count < MOST_PARTS and sum(map(len, self._known.values())) < _MOST_KNOWN)

    def _replace(self, before: Iterable[Member], record: NodeRecord) -> None:
        """Forget the parts that a node no longer announces, unless other nodes hold them."""
        for member in before:
            for name, held in member.record.datasets.items():
                is_gone = not held.part and record.datasets.get(name) != held
                if is_gone and not self._by_part(name)[held.fingerprint]:
                    self._drop_part(name, held.fingerprint)

    def _drop_part(self, dataset: str, fingerprint: str) -> None:
        parts = self._known.get(dataset, {})
        parts.pop(fingerprint, None)
        if not parts:
            self._known.pop(dataset, None)

    def leave(self, node: str, by: Rights = EVERYTHING) -> None:
        """Record that a token's node has stopped; its parts stay known."""
        self._left[by.tenant, node] = None
        member = self._members.get(by, node)
        if member is not None:
            self._members.drop(member)

    def forget(self, dataset: str) -> int:
        """Forget the parts of a data set that no node holds; return how many there were."""
        parts, holders = self._known.get(dataset, {}), self._by_part(dataset)
        gone = [fingerprint for fingerprint in parts if fingerprint not in holders]
        for fingerprint in gone:
            self._drop_part(dataset, fingerprint)
        return len(gone)

    def _check(self, record: NodeRecord, name: str, held: Held, now_s: float) -> None:
        """Raise if a node divides a data set differently from other announced nodes."""
        if not held.part:
            return
        for member in self._members.of(name):
            other = member.record.datasets[name]
            is_current = member.record.url != record.url and not member.is_silent(now_s)
            if not other.part or not is_current or member.record.is_leaving:
                continue
            if other.whole != held.whole:
                raise ConfigError(
                    f"{record.url} serves part {held.part} of {name} with the fingerprint {held.whole}, and "
                    f"{member.record.url} part {other.part} of one with {other.whole}: they list different files; copy "
                    "the same files to both, or serve under another name"
                )
            if other.part.partition("/")[2] != held.part.partition("/")[2]:
                raise ConfigError(
                    f"{record.url} serves part {held.part} of {name}, and {member.record.url} part {other.part}: a "
                    "data set is divided in one way at a time; stop one of them"
                )

    def _supersede(self, name: str, held: Held) -> None:
        """Forget the old parts of a data set once it is divided differently."""
        parts, holders = self._known.get(name, {}), self._by_part(name)
        for fingerprint, other in list(parts.items()):
            is_other = bool(held.part or other.part) and (held.whole, held.part.partition("/")[2]) != (
                other.whole,
                other.part.partition("/")[2],
            )
            if (is_other or (held.part and held.part == other.part)) and fingerprint not in holders:
                self._drop_part(name, fingerprint)

    # --- what trainers are told ---------------------------------------------------------------------------------------

    def datasets(self) -> list[str]:
        """Return the names of all data sets."""
        return sorted({name for name, parts in self._known.items() if parts})

    def parts(self, dataset: str, now_s: float, to: Rights = EVERYTHING) -> list[PartHolders]:
        """Return the parts of a data set with their holders; holders that are not silent come first.

        Args:
            dataset: Name of the data set.
            now_s: The time.
            to: Rights of the caller, who is told no names of other data sets.

        Raises:
            RetryableError: The roll is new, and some nodes may not have announced themselves yet; or no node has
                announced the data set.
        """
        left_s = self._start_s + self._settle_s - now_s
        if left_s > 0:
            raise RetryableError(
                f"this registry has just started and is waiting {left_s:.1f} s for nodes to announce themselves"
            )
        known = self._known.get(dataset)
        if not known:
            there = ", ".join(to.readable(self.datasets())) or "none"
            raise RetryableError(f"no node has announced a data set {dataset[:80]!r} here; known data sets: {there}")
        holders = self._by_part(dataset)
        found = [_part(held, holders.get(held.fingerprint, []), now_s) for held in known.values()]
        found += [PartHolders(Held(part=name), ()) for name in _unseen(known.values())]
        return sorted(found, key=lambda one: _order(one.held))

    def relays(self, dataset: str | None, now_s: float) -> list[str]:
        """Return the addresses of relays that are not silent, for one data set or for all."""
        return [
            f"{member.record.url}/{name}"
            for member in self._members.all()
            if member.record.role == "relay" and not member.record.is_leaving and not member.is_silent(now_s)
            for name in member.record.datasets
            if dataset is None or dataset_of(name) == dataset
        ]

    def upstreams(self, now_s: float) -> dict[str, list[str]]:
        """Return the addresses of all nodes that are not silent, by a relay's name for their data."""
        found: dict[str, list[str]] = {}
        for dataset, known in self._known.items():
            holders = self._by_part(dataset)
            all_parts = [_part(held, holders.get(held.fingerprint, []), now_s) for held in known.values()]
            parts = sorted(all_parts, key=lambda part: _order(part.held))
            for number, part in enumerate(parts, start=1):
                name = dataset if len(parts) == 1 else f"{dataset}{PART_MARK}{number}"
                if part.urls and not part.silent:
                    found[name] = [f"{url}/{dataset}" for url in part.urls]
        return found

    def _by_part(self, dataset: str) -> defaultdict[str, list[Member]]:
        """Return the holders of each part of a data set, by the part's fingerprint, in one pass over its nodes."""
        found: defaultdict[str, list[Member]] = defaultdict(list)
        for member in self._members.of(dataset):
            found[member.record.datasets[dataset].fingerprint].append(member)
        return found

    # --- for people, and for the next roll ----------------------------------------------------------------------------

    def status(self, now_s: float) -> list[dict[str, Any]]:
        """Return a human-readable status row for each node."""
        return [
            {
                "node": member.record.node,
                "role": member.record.role,
                "url": member.record.url,
                "cores": member.record.cores,
                "release": member.record.release,
                "heard_s": round(now_s - member.heard_s, 3),
                "state": _state(member, now_s),
                "datasets": {name: dict(vars(held)) for name, held in member.record.datasets.items()},
            }
            for member in sorted(self._members.all(), key=lambda one: one.record.url)
        ]

    def known(self) -> dict[str, list[dict[str, Any]]]:
        """Return all parts announced so far, by data set, as JSON."""
        return {name: [dict(vars(held)) for held in parts.values()] for name, parts in self._known.items() if parts}


def known_from(said: Mapping[str, Any]) -> dict[str, list[Held]]:
    """Return the parts that `Roll.known` described, or raise `ProtocolError`.

    Names that nodes may not announce, of an earlier release, are left out: nobody could ever hold or forget them.
    """
    return {name: [held_from(one) for one in parts] for name, parts in said.items() if is_data_set(name)}


def _parts_of(record: NodeRecord) -> list[tuple[str, Held]]:
    """Return the parts that a node holds, with the names of their data sets; none if it is a relay."""
    return [(name, held) for name, held in record.datasets.items() if record.role != "relay" and held.fingerprint]


def _part(held: Held, holders: list[Member], now_s: float) -> PartHolders:
    well = [member for member in holders if not member.is_silent(now_s) and not member.record.is_leaving]
    chosen = well or holders
    urls = tuple(sorted(member.record.url for member in chosen))
    return PartHolders(held, urls, 0 if well else len(urls))


def _unseen(known: Iterable[Held]) -> list[str]:
    """Return the first few parts that must exist, judging by the number of parts, but have never been announced."""
    numbers: dict[int, set[int]] = {}
    for held in known:
        if held.part:
            number, of = part_numbers(held.part)
            numbers.setdefault(of, set()).add(number)
    names = (f"{n}/{of}" for of, seen in numbers.items() for n in range(1, of + 1) if n not in seen)
    return list(islice(names, _MOST_UNSEEN))


def _order(held: Held) -> tuple[int, int, str]:
    number, of = part_numbers(held.part) if held.part else (0, 0)
    return of, number, "" if held.part else held.fingerprint


def _state(member: Member, now_s: float) -> str:
    if member.record.is_leaving:
        return "leaving"
    return "silent" if member.is_silent(now_s) else "well"
