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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sophon.errors import ConfigError, RetryableError
from sophon.link.membership import (
    BEAT_S,
    LEASE_S,
    PART_MARK,
    Held,
    NodeRecord,
    dataset_of,
    held_from,
    part_numbers,
)

SETTLE_S = 3 * BEAT_S  # two announcements by every node, plus a margin for the network
MOST_NODES = 4096
MOST_PARTS = 4096  # of one data set: as many as there are nodes
_MOST_KNOWN = 1 << 16  # parts of all data sets together, in the file of a registry too
_MOST_UNSEEN = 64  # names of parts that were never announced; messages show fewer


@dataclass
class _Member:
    record: NodeRecord
    heard_s: float


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
    """

    def __init__(
        self, now_s: float, known: Mapping[str, Iterable[Held]] | None = None, settle_s: float = SETTLE_S
    ) -> None:
        self._start_s = now_s
        self._settle_s = settle_s
        self._members: dict[str, _Member] = {}
        self._known: dict[str, dict[str, Held]] = {
            name: {held.fingerprint: held for held in parts} for name, parts in (known or {}).items()
        }

    # --- what nodes announce ------------------------------------------------------------------------------------------

    def announce(self, record: NodeRecord, now_s: float) -> bool:
        """Record a node's announcement; return whether a part was announced for the first time.

        Raises:
            ConfigError: The announcement contradicts that of another node, or there are too many nodes.
        """
        for name, held in record.datasets.items():
            self._check(record, name, held, now_s)
        before = [one for one in self._members.values() if one.record.url == record.url]
        for member in before:
            if member.record.node != record.node:
                del self._members[member.record.node]  # the announcing node was started in its place
        if record.node not in self._members and len(self._members) >= MOST_NODES:
            raise ConfigError(f"there are {MOST_NODES:,} nodes already; start another registry")
        self._members[record.node] = _Member(record, now_s)
        is_new = False
        for name, held in record.datasets.items() if record.role != "relay" else ():
            parts = self._known.setdefault(name, {})
            if held.fingerprint and held.fingerprint not in parts:
                self._supersede(name, held)
                if len(parts) < MOST_PARTS and sum(map(len, self._known.values())) < _MOST_KNOWN:
                    parts[held.fingerprint] = held
                    is_new = True
        self._replace(before)
        return is_new

    def _replace(self, before: Iterable[_Member]) -> None:
        """Forget the parts that a node no longer announces, unless other nodes hold them."""
        for member in before:
            for name, held in member.record.datasets.items():
                if not held.part and not self._by_part(name)[held.fingerprint]:
                    self._known.get(name, {}).pop(held.fingerprint, None)

    def displaced(self, record: NodeRecord) -> set[str]:
        """Return the names of the data sets that a record replaces: those of the same node or the same address."""
        held: set[str] = set()
        for member in self._members.values():
            if record.node == member.record.node or record.url == member.record.url:
                held |= set(member.record.datasets)
        return held

    def leave(self, node: str) -> None:
        """Record that a node has stopped; its parts stay known."""
        self._members.pop(node, None)

    def forget(self, dataset: str) -> int:
        """Forget the parts of a data set that no node holds; return how many there were."""
        parts, holders = self._known.get(dataset, {}), self._by_part(dataset)
        gone = [fingerprint for fingerprint in parts if fingerprint not in holders]
        for fingerprint in gone:
            del parts[fingerprint]
        return len(gone)

    def _check(self, record: NodeRecord, name: str, held: Held, now_s: float) -> None:
        """Raise if a node divides a data set differently from other announced nodes."""
        if not held.part:
            return
        for member in self._members.values():
            other = member.record.datasets.get(name)
            is_current = member.record.url != record.url and now_s - member.heard_s <= LEASE_S
            if other is None or not other.part or not is_current or member.record.is_leaving:
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
        parts, holders = self._known[name], self._by_part(name)
        for fingerprint, other in list(parts.items()):
            is_other = bool(held.part or other.part) and (held.whole, held.part.partition("/")[2]) != (
                other.whole,
                other.part.partition("/")[2],
            )
            if (is_other or (held.part and held.part == other.part)) and fingerprint not in holders:
                del parts[fingerprint]

    # --- what trainers are told ---------------------------------------------------------------------------------------

    def datasets(self) -> list[str]:
        """Return the names of all data sets."""
        return sorted({name for name, parts in self._known.items() if parts})

    def parts(self, dataset: str, now_s: float) -> list[PartHolders]:
        """Return the parts of a data set with their holders; holders that are not silent come first.

        Raises:
            RetryableError: The roll is new, and some nodes may not have announced themselves yet.
            ConfigError: There is no such data set.
        """
        left_s = self._start_s + self._settle_s - now_s
        if left_s > 0:
            raise RetryableError(
                f"this registry has just started and is waiting {left_s:.1f} s for nodes to announce themselves"
            )
        known = self._known.get(dataset)
        if not known:
            there = ", ".join(self.datasets()) or "none"
            raise RetryableError(f"no node has announced a data set {dataset[:80]!r} here; known data sets: {there}")
        holders = self._by_part(dataset)
        found = [_part(held, holders.get(held.fingerprint, []), now_s) for held in known.values()]
        found += [PartHolders(Held(part=name), ()) for name in _unseen(known.values())]
        return sorted(found, key=lambda one: _order(one.held))

    def relays(self, dataset: str | None, now_s: float) -> list[str]:
        """Return the addresses of relays that are not silent, for one data set or for all."""
        return [
            f"{member.record.url}/{name}"
            for member in self._members.values()
            if member.record.role == "relay" and not member.record.is_leaving and now_s - member.heard_s <= LEASE_S
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

    def _by_part(self, dataset: str) -> defaultdict[str, list[_Member]]:
        """Return the holders of each part of a data set, by the part's fingerprint, in one pass over all nodes."""
        found: defaultdict[str, list[_Member]] = defaultdict(list)
        for member in self._members.values():
            held = member.record.datasets.get(dataset)
            if held is not None:
                found[held.fingerprint].append(member)
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
            for member in sorted(self._members.values(), key=lambda one: one.record.url)
        ]

    def known(self) -> dict[str, list[dict[str, Any]]]:
        """Return all parts announced so far, by data set, as JSON."""
        return {name: [dict(vars(held)) for held in parts.values()] for name, parts in self._known.items() if parts}


def known_from(said: Mapping[str, Any]) -> dict[str, list[Held]]:
    """Return the parts that `Roll.known` described, or raise `ProtocolError`."""
    return {name: [held_from(one) for one in parts] for name, parts in said.items()}


def _part(held: Held, holders: list[_Member], now_s: float) -> PartHolders:
    well = [m for m in holders if now_s - m.heard_s <= LEASE_S and not m.record.is_leaving]
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


def _state(member: _Member, now_s: float) -> str:
    if member.record.is_leaving:
        return "leaving"
    return "well" if now_s - member.heard_s <= LEASE_S else "silent"
