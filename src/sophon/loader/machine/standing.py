"""Chooses which source to ask next: one of the holders of a sample, or a path to fall back on.

A part of the machine, also without sockets, threads or clocks. The nodes are numbered 0 … count - 1; the
fallback, if there is one, has the number `count`. Every call names the holders to choose from; below, "every
node" and "others" mean these.

- A node that answers is *well*, and well nodes share the requests: the one with the fewest in flight gets the next; in
  a tie, the one that was asked longest ago.
- A node that fails is asked again after a pause that doubles with every further failure. As long as there is another
  source, it is asked for only a single sample, so that little depends on a node that may be gone, and others are asked
  in between: otherwise several dead nodes would leave a driver with one thread no time for a live one. It is also left
  alone for several times as long as the wait that it caused.
- The fallback is asked while every node has failed twice in a row: a node that only has to reconnect is well again at
  the second try. Requests that were in flight together fail together and count as one failure.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_REST = 4.0  # times the wait that a node has caused: how long it is left alone while others answer
_LONGEST_REST_S = 60.0
_GIVEN_UP = 2  # failures in a row of every node before the fallback is asked


@dataclass
class _Standing:
    tries: int = 0  # failures since the last reply
    failed_at_s: float = 0.0  # time of the last failure
    retry_at_s: float = 0.0
    rests_until_s: float = 0.0
    under_way: int = 0
    turn: int = 0  # orders sources by when they were last asked


@dataclass(frozen=True)
class Choice:
    """Which source to ask.

    Args:
        source: Its number.
        is_trial: Whether it has failed before and others could be asked instead.
    """

    source: int
    is_trial: bool = False


class Standings:
    """The sources of one epoch, and their recent health.

    Args:
        count: Number of nodes.
        has_fallback: Whether there is a path to fall back on.
        first_pause_s: Pause before the first retry; doubles with each further one.
        longest_pause_s: The longest pause before a retry.
        now_s: The time at the start.
        seed: Seed of the jitter of pauses, so that many trainers do not retry in step.
    """

    def __init__(
        self, count: int, has_fallback: bool, first_pause_s: float, longest_pause_s: float, now_s: float, seed: int
    ) -> None:
        self._nodes = [_Standing(retry_at_s=now_s) for _ in range(count)]
        self._every = range(count)
        self._fallback = _Standing(retry_at_s=now_s) if has_fallback else None
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._random = random.Random(seed)
        self._tried = False  # whether the source asked last had failed
        self._turns = 0

    def begin(self, seed: int) -> None:
        """Begin an epoch: no requests are in flight, and the health of each source is unchanged."""
        self._random.seed(seed)  # a forked process has a copy of its parent's generator
        for node in (*self._nodes, *([] if self._fallback is None else [self._fallback])):
            node.under_way = 0

    def pick(self, now_s: float, holders: Sequence[int] | None = None, full: Collection[int] = ()) -> Choice | None:
        """Return the source to ask now; None while all of them pause or are full.

        Args:
            now_s: The time.
            holders: The nodes to choose from; None for all.
            full: Sources that have reached their limit of requests.
        """
        holders = self._every if holders is None else holders
        is_well = any(self._nodes[number].tries == 0 for number in holders)
        free = [number for number in holders if number not in full]
        well = [number for number in free if self._nodes[number].tries == 0]
        due = [number for number in free if self._nodes[number].tries and self._nodes[number].retry_at_s <= now_s]
        untried = [number for number in due if self._may_be_tried(number, now_s)]
        falls_back = self._falls_back(holders)
        if untried and (is_well or falls_back) and not self._tried:
            return Choice(min(untried, key=self._soonest), is_trial=True)
        if well:
            return Choice(min(well, key=self._idlest))
        fallback = len(self._nodes)
        if falls_back and fallback not in full and self._at(fallback).retry_at_s <= now_s:
            return Choice(fallback)
        return Choice(min(due, key=self._soonest), is_trial=falls_back) if due and not is_well else None

    def pick_other(self, than: Collection[int], now_s: float, holders: Sequence[int] | None = None) -> int | None:
        """Return the source to ask for samples that others owe but do not send; None if there is no other."""
        holders = self._every if holders is None else holders
        well = [number for number in holders if self._nodes[number].tries == 0 and number not in than]
        if well:
            return min(well, key=self._idlest)
        fallback = len(self._nodes)
        if self._fallback is not None and fallback not in than and self._fallback.retry_at_s <= now_s:
            return fallback
        return None

    def pick_instead(self, than: Collection[int], now_s: float, holders: Sequence[int] | None = None) -> int | None:
        """Return the source to ask instead of lost ones; if need be, one that has failed or a lost one that answers."""
        other = self.pick_other(than, now_s, holders)
        if other is not None:
            return other
        nodes = self._every if holders is None else holders
        due = [number for number in nodes if number not in than and self._nodes[number].retry_at_s <= now_s]
        if due:
            return min(due, key=self._soonest)
        return next((number for number in sorted(than) if self._at(number).tries == 0), None)

    def ready_s(self, holders: Sequence[int]) -> float:
        """Return the earliest time at which one of these nodes, or the fallback if it is its turn, can be asked."""
        times_s = [node.retry_at_s if node.tries else 0.0 for node in (self._nodes[number] for number in holders)]
        if self._fallback is not None and self._falls_back(holders):
            times_s.append(self._fallback.retry_at_s)
        return min(times_s, default=0.0)

    def is_any_well(self, holders: Sequence[int]) -> bool:
        """Return whether one of these nodes has not failed since it last answered."""
        return any(self._nodes[number].tries == 0 for number in holders)

    def has_others(self, holders: Sequence[int]) -> bool:
        """Return whether there is more than one source for the data of these nodes."""
        return len(holders) + (self._fallback is not None) > 1

    def _falls_back(self, holders: Sequence[int]) -> bool:
        return self._fallback is not None and all(self._nodes[number].tries >= _GIVEN_UP for number in holders)

    @property
    def retries_s(self) -> list[float]:
        """When the pause of each source ends, or ended."""
        everybody = (*self._nodes, *([] if self._fallback is None else [self._fallback]))
        return [at_s for node in everybody for at_s in (node.retry_at_s, node.rests_until_s)]

    def asked(self, number: int) -> None:
        """Count a request that was sent."""
        node = self._at(number)
        self._turns += 1
        node.turn = self._turns
        node.under_way += 1
        self._tried = node.tries > 0

    def replied(self, number: int) -> None:
        """Record a reply: the node is well."""
        node = self._at(number)
        node.tries, node.retry_at_s, node.rests_until_s = 0, 0.0, 0.0

    def ended(self, number: int) -> None:
        """Record that a request is over, whether it failed or not."""
        self._at(number).under_way -= 1

    def failed(self, number: int, sent_s: float, now_s: float) -> None:
        """Record that a node has failed, or is silent: it is left alone for a while.

        Args:
            number: Number of the source.
            sent_s: When the failed request was sent: all requests in flight then fail together, and count once.
            now_s: The time.
        """
        node = self._at(number)
        if node.tries and sent_s <= node.failed_at_s:
            return
        pause_s = min(self._first_pause_s * 2.0 ** min(node.tries, 30), self._longest_pause_s)
        node.tries += 1
        node.failed_at_s = now_s
        node.retry_at_s = now_s + pause_s * self._random.uniform(0.5, 1.0)
        node.rests_until_s = now_s + min(_REST * (now_s - sent_s), _LONGEST_REST_S)

    def _at(self, number: int) -> _Standing:
        if number < len(self._nodes):
            return self._nodes[number]
        assert self._fallback is not None
        return self._fallback

    def _may_be_tried(self, number: int, now_s: float) -> bool:
        node = self._nodes[number]
        return node.under_way == 0 and node.rests_until_s <= now_s

    def _soonest(self, number: int) -> tuple[float, int]:
        return self._nodes[number].retry_at_s, self._nodes[number].tries

    def _idlest(self, number: int) -> tuple[int, int]:
        """Return a sort key: the number of requests in flight, then when the source was last asked."""
        return self._nodes[number].under_way, self._nodes[number].turn
