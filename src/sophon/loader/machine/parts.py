"""Which sources can answer for which samples: a part of the machine.

A *part* is a share of an epoch's samples that the same nodes hold; these are its *holders*. Copies of a data set are
one part with several holders, a data set that is spread over nodes has several parts with one holder each, and anything
in between is possible. The fallback, if there is one, holds everything and belongs to no part.

A relay can answer for whatever the node behind it holds. The plan says which samples go through relays, and then one
part becomes two: the samples that nodes are asked for, with relays as *stand-ins*, and those that relays are asked
for, with nodes as stand-ins. A stand-in is asked while no holder is healthy, and for samples that a holder has owed for
too long.

Nodes that hold the same parts share a *lane*, which bounds the requests in flight at all of them together. Nodes of
other lanes cannot take over that work, so every lane may have requests in flight, however many the others have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sophon.errors import Error


@dataclass(frozen=True)
class Parts:
    """The parts of an epoch's samples.

    Args:
        holders: For each part the numbers of the nodes that hold it, ascending; empty if only the fallback has it.
        of: For each position the number of its part; None if there is only one part.
        names: Names of the nodes for messages; by default "node 0" and so on.
        stand_ins: For each part the numbers of its stand-ins; empty if no part has any.
        ways: For each part, the numbers of the two parts with the same samples: the one for nodes, and the one for
            relays.
    """

    holders: tuple[tuple[int, ...], ...]
    of: NDArray[np.uint16] | None = None
    names: tuple[str, ...] = field(default=(), repr=False)
    stand_ins: tuple[tuple[int, ...], ...] = ()
    ways: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @classmethod
    def copies(cls, nodes: int) -> Parts:
        """Return the one part that all nodes hold."""
        return cls((tuple(range(nodes)),))

    @classmethod
    def among(
        cls,
        holders: Sequence[tuple[int, ...]],
        relays: Collection[int],
        of: NDArray[np.uint16],
        is_relayed: NDArray[np.bool_],
        names: tuple[str, ...] = (),
    ) -> Parts:
        """Return parts in which nodes and relays stand in for each other.

        Args:
            holders: For each part the nodes and relays that can answer for it.
            relays: Which of them are relays.
            of: For each position the number of its part.
            is_relayed: Whether to ask a relay, for each position.
            names: Names of all nodes and relays.
        """
        kept, ways = list(holders), [(part, part) for part in range(len(holders))]
        stand_ins: list[tuple[int, ...]] = [()] * len(holders)
        for part, its in enumerate(holders):
            nodes = tuple(number for number in its if number not in relays)
            passing = tuple(number for number in its if number in relays)
            if nodes and passing:
                kept[part], stand_ins[part], ways[part] = nodes, passing, (part, len(kept))
                kept.append(passing)
                stand_ins.append(nodes)
                ways.append(ways[part])
        made = cls(tuple(kept), of, names, tuple(stand_ins), tuple(ways))
        return made.rerouted(is_relayed)

    def rerouted(self, is_relayed: NDArray[np.bool_], since: int = 0) -> Parts:
        """Return a copy with samples reassigned to the relayed or direct variant of their part.

        Args:
            is_relayed: Whether to ask a relay, for each position.
            since: First position that may be reassigned.
        """
        assert self.of is not None
        table = np.array(self.ways, np.uint16)
        changed = table[self.of[since:], is_relayed[since:].astype(np.intp)]
        return replace(self, of=np.concatenate([self.of[:since], changed]))

    def everybody(self, part: int) -> tuple[int, ...]:
        """Return all sources that can answer for a part, its stand-ins last."""
        return self.holders[part] if not self.stand_ins else (*self.holders[part], *self.stand_ins[part])

    def at(self, position: int) -> int:
        """Return the part of the sample at a position."""
        return 0 if self.of is None else int(self.of[position])

    def called(self, part: int) -> str:
        """Return the holders of a part in words."""
        names = [self.names[n] if n < len(self.names) else f"node {n}" for n in self.everybody(part)]
        return " and ".join(names) or "any node"

    def lanes(self, fallback: int | None) -> list[tuple[int, ...]]:
        """Return the lanes: for each, the sources that share its requests.

        Args:
            fallback: The number of the fallback, which has its own lane unless there is only one part.
        """
        alone = () if fallback is None else (fallback,)
        if len(self.holders) == 1:
            return [(*self.holders[0], *alone)]
        held: dict[tuple[int, ...], list[int]] = {}
        for node in sorted({node for holders in self.holders for node in holders}):
            held.setdefault(tuple(p for p, holders in enumerate(self.holders) if node in holders), []).append(node)
        return [tuple(lane) for lane in held.values()] + ([alone] if alone else [])


@dataclass
class Wait:
    """How long samples of one part have been owed.

    Time in which a holder could have been asked but the driver was busy does not count: a driver with one thread may be
    reading the samples of another part.
    """

    owed: int = 0  # positions that were asked for and not received
    asked: int = 0  # of these, the ones that a request in flight owes
    since_s: float | None = None  # when something was last asked for or received; None while nothing is owed
    left_s: float = 0.0  # when the last request for the part failed
    tries: int = 0  # failures since something was received
    failure: Error | None = None  # the last failure

    def asks(self, is_new: bool, now_s: float, ready_s: float) -> None:
        """Record that a position is requested.

        Args:
            is_new: Whether it is requested for the first time.
            now_s: The time.
            ready_s: Since when a holder could have been asked for it.
        """
        if self.since_s is None:
            self.since_s = now_s
        elif self.asked == 0:
            self.since_s += max(0.0, now_s - max(self.left_s, ready_s))
        self.owed += is_new
        self.asked += 1

    def received(self, now_s: float) -> None:
        """Record that a position was received."""
        self.owed -= 1
        self.asked -= 1
        self.since_s = now_s if self.owed else None
        self.left_s = now_s
        self.tries = 0

    def failed(self, positions: int, now_s: float) -> None:
        """Record that a number of positions have to be requested again."""
        self.asked -= positions
        self.left_s = now_s

    def inherit(self, other: Wait, is_asked: bool, since_s: float | None) -> None:
        """Take over an owed position from an earlier division, with the time it has waited so far.

        Args:
            other: The wait that the position was part of.
            is_asked: Whether a request in flight owes it.
            since_s: New start of the wait; None to continue the old one.
        """
        is_anew = since_s is not None and other.since_s is not None
        began_s, tries = (since_s, 0) if is_anew else (other.since_s, other.tries)
        if self.owed == 0:
            self.since_s, self.left_s = began_s, other.left_s
        elif began_s is not None:
            self.since_s = began_s if self.since_s is None else min(self.since_s, began_s)
            self.left_s = max(self.left_s, other.left_s)
        self.owed += 1
        self.asked += is_asked
        if tries > self.tries:
            self.tries, self.failure = tries, other.failure

    def waited_s(self, now_s: float, ready_s: float) -> float:
        """Return how long the wait has lasted.

        Args:
            now_s: The time.
            ready_s: As for `asks`.
        """
        if self.since_s is None:
            return 0.0
        until_s = now_s if self.asked else min(now_s, max(self.left_s, ready_s))
        return until_s - self.since_s
