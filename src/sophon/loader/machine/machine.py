"""Decides what to ask for next, and what to do about an answer, a failure or a deadline.

A state machine without sockets, threads or clocks: its input is what happened and when, its output what to do. Threads
and Flight drive it in production, a seeded simulator with virtual time in tests.

The samples of an epoch stand in a row; their *positions* are 0 … count - 1. Batches have *places* 0 … count - 1 in the
same way, and every `batch_size` of them are a batch. In strict order the sample at a position gets the place of that
number. In relaxed order it gets the first free place when it is finished, so that slow samples do not hold up others.
A position goes through these states, and back only along the one arrow::

    (to come) ──▶ wanted ──ask──▶ asked ──reply──▶ received ──finished──▶ finished ──placed──▶ put ──taken──▶ (released)
                    ▲               │
                    └─failed, ended─┘

Samples first become wanted, in order and as far as there is room; then each is requested from one of its holders.
`parts` lists the holders: copies, parts of a data set and the fallback are treated alike. A sample whose holders pause
or are full stays wanted, while other holders are asked for samples further ahead.

A request that has brought no reply for a long time is *late*, and one whose node gives no sign of life is *lost*.
Either is hedged: another holder (or, if there is none, the same node again) is asked for what the request still owes,
and the first answer counts. A request that owes nothing any more is surplus and may be cancelled. The node of a lost
request counts as failed; if the second request is lost as well, the first is given up in favour of a third. `standing`
says which source to ask, and `patience` how long a long time is.

An implementation that breaks any of these rules has a bug:

- Every position is received exactly once; a second reply for it is refused.
- A position is owed by at most two requests, and by at least one while it is asked for.
- A request goes to a holder of all its positions, or to one that stands in for them, or to the fallback.
- A stand-in gets the first request for a position only while no holder is healthy.
- Every position gets exactly one place, and every place exactly one position.
- Batches become ready in order.
- In relaxed order no sample comes more than `max_delay` batches after the batch it would be in by strict order: when
  the free places of a batch are just enough for the samples that must not wait any longer, they are reserved for them.
- The bytes held for positions between wanted and taken stay within `buffer_bytes`, except that the batch that comes
  next may always be completed. Until its reply arrives, a sample counts as much as recently finished ones: only samples
  in flight can turn out to be larger, and then nothing more is wanted until there is room.
- A failure is followed by the next try after a pause that grows as long as nothing is received, and by `fatal` once
  `deadline_s` has passed since something of a part was asked for or received, while something of it is still owed;
  answers from holders of other parts do not matter. The error names the holders of that part.
- The holders may change at any time (`divide`). Positions that were wanted, asked for or received stay so.
- Requests in flight are bounded by `max_requests`, which lanes share in proportion to their nodes; but every lane may
  have one, so that no lane waits for another.
- A driver that wakes up on events and after `wait_s` sends every request as early as possible.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sophon.errors import Error, RetryableError, UnavailableError
from sophon.loader.machine.batches import Batches
from sophon.loader.machine.parts import Parts, Wait
from sophon.loader.machine.patience import Patience
from sophon.loader.machine.placement import Placement, Placing
from sophon.loader.machine.standing import Choice, Standings

_WAITING, _ASKED, _AGAIN, _RECEIVED, _FINISHED = range(5)
_SILENT_S = 5.0  # how long a node may be silent if there is another source; after that it counts as failed
_CAREFUL_SAMPLES = 16  # per request at the beginning of an epoch that is planned while it runs
_TRIAL_S = 0.25  # like `_SILENT_S`, for a node that has failed before, while a batch waits for its samples
_SOURCES_TRIED = 6  # how many sources are tried one after the other before the deadline
_LONGEST_NAP_S = 1.0  # longest wait of a driver, which events wake up anyway
_SHORTEST_NAP_S = 1e-3  # rounding may leave a pause that is shorter than a clock can measure


@dataclass(frozen=True)
class MachineConfig:
    """Bounds and times.

    Args:
        buffer_bytes: Bound on the bytes held for samples that are asked for and not yet taken.
        deadline_s: How long to wait without any reply before the epoch is given up.
        max_requests: Bound on requests in flight.
        request_samples: Samples in one request.
        request_bytes: Expected bytes of the payloads in one request.
        first_pause_s: Pause before the first retry; doubles with each further one.
        longest_pause_s: The longest pause before a retry.
        max_delay: How many batches late a sample may come in relaxed order; None for strict order.
        nodes: How many storage nodes there are.
        has_fallback: Whether there is a path to fall back on.
        hedge: After how many seconds of silence a request is sent again; True to learn the time; False for never.
        careful: Number of samples at the beginning to ask for in small requests, because their results change how the
            others are asked for.
    """

    buffer_bytes: int = 1 << 30
    deadline_s: float = 60.0
    max_requests: int = 2
    request_samples: int = 64
    request_bytes: int = 8 << 20
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    max_delay: int | None = None
    nodes: int = 1
    has_fallback: bool = False
    hedge: bool | float = False
    careful: int = 0


@dataclass(frozen=True)
class Ask:
    """Send a request for the samples at these positions to a source; number `nodes` is the fallback."""

    request: int
    positions: tuple[int, ...]
    source: int = 0
    is_second: bool = False
    is_trial: bool = False


@dataclass
class _Request:
    positions: set[int]
    source: int
    sent_s: float
    got_s: float  # when the request was sent or last got a reply
    heard_s: float  # when it was sent, or its node or connection last gave a sign of life
    hedged: set[int] = field(default_factory=set)  # positions for which there is a replacement request
    can_be_lost: bool = False  # whether other sources hold some of its samples
    is_suspect: bool = False
    is_second: bool = False
    is_trial: bool = False  # sent to a node that has failed before

    @property
    def is_hoped_for(self) -> bool:
        """Whether the request owes something that has no replacement request."""
        return not self.positions <= self.hedged


class _Choices(dict[int, Choice | None]):
    """The source to ask for each part now; None if there is none. Computed on demand, since there may be many parts."""

    def __init__(self, standings: Standings, parts: Parts, full: set[int], now_s: float) -> None:
        super().__init__()
        self._standings, self._parts, self._full, self._now_s = standings, parts, full, now_s

    def __missing__(self, part: int) -> Choice | None:
        holders = self._parts.holders[part]
        if self._parts.stand_ins and not self._standings.is_any_well(holders):
            holders = self._parts.everybody(part)
        choice = self[part] = self._standings.pick(self._now_s, holders, self._full)
        return choice


class Machine:
    """The course of one epoch.

    Args:
        count: Samples in the epoch.
        batch_size: Samples in a batch; the last one may be smaller.
        config: Bounds and times.
        expected_bytes: First guess at the bytes held for one sample.
        now_s: The time at the start.
        seed: Seed of the jitter of pauses, so that many trainers do not retry in step.
        standings: How the sources did in the previous epoch; by default nothing is known about them.
        sizes: Samples in each batch, in strict order, if batches differ in size.
        latest: In relaxed order, for every position the last batch that its sample may be in; by default `max_delay`
            batches after its own (see `placement`).
        parts: Holders of each part; by default all nodes hold everything.

    Attributes:
        max_requests: Bound on requests in flight; may be changed during the epoch.
        ahead_bytes: Bound on the bytes held, at most `buffer_bytes`; may be changed during the epoch.
        wanted: How many positions, from the first, have been wanted so far.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        config: MachineConfig,
        expected_bytes: int,
        now_s: float,
        seed: int = 0,
        standings: Standings | None = None,
        sizes: Sequence[int] | None = None,
        latest: NDArray[np.int64] | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.count = count
        assert sizes is None or config.max_delay is None
        self.division = Batches(count, batch_size, sizes)
        self.batch_size = batch_size
        self.batches = len(self.division)
        self.fatal: Error | None = None
        self.wanted = 0
        self.held_bytes = 0
        self.max_requests = config.max_requests
        self.ahead_bytes = config.buffer_bytes
        self._config = config
        self._standings = standings or Standings(
            config.nodes, config.has_fallback, config.first_pause_s, config.longest_pause_s, now_s, seed
        )
        self._standings.begin(seed)
        self._patience = Patience(config.hedge, math.inf)
        self._know(parts or Parts.copies(config.nodes))
        self._state = np.zeros(count, np.uint8)
        self._held: dict[int, int] = {}
        self._expected_bytes = float(expected_bytes)
        self._payload_bytes = float(expected_bytes)  # mean of recent replies
        self._queues: list[list[int]] = [
            [] for _ in self._parts.holders
        ]  # for each part, a heap of wanted positions that are not asked for
        self._queued: set[int] = set()  # the parts whose heaps may not be empty
        self._waits = [Wait() for _ in self._parts.holders]
        self._requests: dict[int, _Request] = {}
        self._request_number = 0
        self._surplus: list[int] = []
        self._unfilled = [self.division.size_of(batch) for batch in range(self.batches)]
        self._placement = None
        if config.max_delay is not None:
            self._placement = Placement(count, batch_size, config.max_delay, latest)
        self._next_ready = 0
        self._taken = 0

    def _know(self, parts: Parts) -> None:
        """Record the holders of each part."""
        self._parts = parts
        self._lanes = parts.lanes(self._config.nodes if self._config.has_fallback else None)
        self._holding_nodes = len({node for holders in parts.holders for node in holders}) or 1
        self._silent_s = min(_SILENT_S, self._config.deadline_s / _SOURCES_TRIED)
        has_others = any(self._standings.has_others(parts.everybody(part)) for part in range(len(parts.holders)))
        self._patience.most_s = self._silent_s if has_others else math.inf

    def divide(self, parts: Parts, now_s: float) -> None:
        """Continue with other holders: parts were added, moved or lost.

        Requests in flight stay in flight, even if their samples have other holders now. The deadline of a part restarts
        if it gained a holder, but not if it only lost some.

        Args:
            parts: The new holders of each part, among the same sources.
            now_s: The time.
        """
        before, waits, queues = self._parts, self._waits, self._queues
        self._know(parts)
        self._queues = [[] for _ in parts.holders]
        self._queued = set()
        self._waits = [Wait() for _ in parts.holders]
        for position in (position for queue in queues for position in queue):
            self._queue(position, parts.at(position))
        for position in np.flatnonzero((self._state == _ASKED) | (self._state == _AGAIN)).tolist():
            part, was = parts.at(position), before.at(position)
            has_more = not set(parts.everybody(part)) <= set(before.everybody(was))
            self._waits[part].inherit(waits[was], self._state[position] == _ASKED, now_s if has_more else None)
        for request in self._requests.values():
            request.can_be_lost = self._have_others(request.positions, request.source)
            if request.can_be_lost:  # its node may no longer hold the samples, and another one may
                self._patience.most_s = self._silent_s

    @property
    def tries(self) -> int:
        """Failures since the last reply, for the part with the most failures."""
        return max(wait.tries for wait in self._waits)

    @property
    def standings(self) -> Standings:
        """How the sources are doing, for the epoch that follows."""
        return self._standings

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, now_s: float) -> Ask | None:
        """Return the next request to send, or None if there is nothing to ask for now."""
        self.check(now_s)
        if self.fatal:
            return None
        hedge = self._hedge(now_s)
        if hedge is not None:
            return hedge
        choices = _Choices(self._standings, self._parts, self._full(), now_s)
        part = self._first(lambda part: choices[part] is not None)
        choice = None if part is None else choices[part]
        if part is None or choice is None:
            return None
        positions = [self._choose_one(part)] if choice.is_trial else self._choose(lambda part: choices[part] == choice)
        return self._send(positions, choice.source, now_s, is_trial=choice.is_trial)

    def _full(self) -> set[int]:
        """Return the sources that have reached their limit of requests."""
        hoped_for = Counter(request.source for request in self._requests.values() if request.is_hoped_for)
        is_full = hoped_for.total() >= self.max_requests
        full: set[int] = set()
        for lane in self._lanes:
            under_way = sum(hoped_for[source] for source in lane)
            share = -(-self.max_requests * len(lane) // self._holding_nodes)
            if under_way >= share or (is_full and under_way):
                full.update(lane)
        return full

    def _send(
        self, positions: list[int], source: int, now_s: float, is_second: bool = False, is_trial: bool = False
    ) -> Ask:
        self._request_number += 1
        request = _Request(set(positions), source, now_s, now_s, now_s, is_second=is_second, is_trial=is_trial)
        request.can_be_lost = self._have_others(positions, source)
        self._requests[self._request_number] = request
        for position in positions:
            if self._state[position] != _ASKED:
                part = self._parts.at(position)
                self._waits[part].asks(self._state[position] == _WAITING, now_s, self._ready_s(part, now_s))
                self._state[position] = _ASKED
        self._standings.asked(source)
        self._patience.asked(len(positions), is_second)
        return Ask(self._request_number, tuple(positions), source, is_second, is_trial)

    def _ready_s(self, part: int, now_s: float) -> float:
        """Return the time from which a part could have been requested; irrelevant if there is only one part."""
        return now_s if len(self._waits) == 1 else self._standings.ready_s(self._parts.everybody(part))

    def _first(self, accepts: Callable[[int], bool]) -> int | None:
        """Return the accepted part whose next wanted sample comes first.

        If there is none, add wanted samples until one is accepted.
        """
        waiting = [part for part in self._queued if self._queues[part] and accepts(part)]
        if waiting:
            return min(waiting, key=lambda part: self._queues[part][0])
        if not any(map(accepts, range(len(self._queues)))):
            return None  # no source can be asked for anything that is wanted
        while self.wants_new:
            part = self._want()
            if accepts(part):
                return part
        return None

    def _want(self) -> int:
        """Mark one more sample as wanted; return its part."""
        part = self._parts.at(self.wanted)
        self._hold(self.wanted, int(self._expected_bytes))
        self._queue(self.wanted, part)
        self.wanted += 1
        return part

    def _queue(self, position: int, part: int) -> None:
        heapq.heappush(self._queues[part], position)
        self._queued.add(part)

    def _choose(self, accepts: Callable[[int], bool]) -> list[int]:
        """Choose samples of the accepted parts for one request to a holder."""
        chosen: list[int] = []
        size_bytes = 0.0
        most = self._config.request_samples
        if self.wanted < self._config.careful:
            most = min(most, _CAREFUL_SAMPLES)
        while len(chosen) < most and size_bytes < self._config.request_bytes:
            part = self._first(accepts)
            if part is None:
                break
            chosen.append(heapq.heappop(self._queues[part]))
            size_bytes += self._payload_bytes
        self._queued = {part for part in self._queued if self._queues[part]}
        return chosen

    def _choose_one(self, part: int) -> int:
        """Choose a sample for a node that may not answer: the one that is needed last."""
        if self.wants_new and self._parts.at(self.wanted) == part:
            self._want()
        queue = self._queues[part]
        position = max(queue)
        queue.remove(position)
        heapq.heapify(queue)
        return position

    # --- asking a second time -----------------------------------------------------------------------------------------

    def _hedge(self, now_s: float) -> Ask | None:
        # Sums, as in `wait_s`: a difference may be rounded to less than the limit when it has just been reached.
        late = [(n, r) for n, r in self._requests.items() if r.positions and min(self._times_s(r)) <= now_s]
        for _, request in late:
            if self._times_s(request)[1] <= now_s and not request.is_suspect:
                request.is_suspect = True
                self._standings.failed(request.source, request.sent_s, now_s)
        for number, request in late:
            ask = self._replace(number, now_s) if request.is_suspect else self._repeat(request, now_s)
            if ask is not None:
                return ask
        return None

    def _times_s(self, request: _Request) -> tuple[float, float]:
        """Return when a request is late, and when it is lost."""
        limit_s = self._patience.limit_s
        late_s = request.got_s + (min(limit_s, _TRIAL_S) if request.is_trial else limit_s)
        return late_s, request.heard_s + (self._patience.most_s if request.can_be_lost else math.inf)

    def _repeat(self, request: _Request, now_s: float) -> Ask | None:
        """Request late samples a second time."""
        owed = [] if request.is_second else self._owed_alone(request)
        if not owed or not self._is_needed(owed[0]):
            return None
        found = self._by_source(owed, lambda holders: self._standings.pick_other({request.source}, now_s, holders))
        source, positions = next(iter(found.items()))
        if source is None if request.is_trial else not self._patience.may_ask_twice(len(positions)):
            return None
        if source is None and not self._is_held(positions, request.source):
            return None
        request.hedged.update(positions)
        return self._send(positions, request.source if source is None else source, now_s, is_second=True)

    def _replace(self, number: int, now_s: float) -> Ask | None:
        """Ask another source for a lost request's samples; if that one is lost too, a third replaces the first."""
        request = self._requests[number]
        ask = self._ask_instead(request, None, self._owed_alone(request), now_s)
        if ask is not None:
            return ask
        for rival in [other for n, other in self._requests.items() if n > number and self._is_rival(request, other)]:
            ask = self._ask_instead(request, rival, sorted(request.positions & rival.positions), now_s)
            if ask is not None:
                if not request.positions:
                    self._surplus.append(number)
                return ask
        return None  # there is no other source: when this one fails, it is asked again

    def _ask_instead(self, request: _Request, rival: _Request | None, owed: list[int], now_s: float) -> Ask | None:
        """Request samples of a lost request elsewhere; if its rival is lost too, the new request replaces the first."""
        asked = {request.source} if rival is None else {request.source, rival.source}
        found = self._by_source(owed, lambda holders: self._standings.pick_instead(asked, now_s, holders))
        source = next((one for one in found if one is not None and self._is_held(found[one], one)), None)
        if source is None:
            return None
        positions = found[source]
        if rival is None:
            request.hedged.update(positions)
        else:
            rival.hedged.update(positions)
            request.positions.difference_update(positions)
        return self._send(positions, source, now_s, is_second=True)

    def _by_source(
        self, positions: list[int], pick: Callable[[tuple[int, ...]], int | None]
    ) -> dict[int | None, list[int]]:
        """Return which source is picked for which positions, the most urgent first."""
        picked = {part: pick(self._parts.everybody(part)) for part in {self._parts.at(p) for p in positions}}
        found: dict[int | None, list[int]] = {}
        for position in positions:
            found.setdefault(picked[self._parts.at(position)], []).append(position)
        return found

    def _is_held(self, positions: list[int], source: int) -> bool:
        """Return whether a source holds all these samples or is a stand-in for a holder; the fallback holds all."""
        if source >= self._config.nodes:
            return True
        return all(source in self._parts.everybody(self._parts.at(position)) for position in positions)

    def _have_others(self, positions: Iterable[int], source: int) -> bool:
        """Return whether another source can provide some of these samples."""
        if self._config.has_fallback and source < self._config.nodes:
            return True
        parts = {self._parts.at(position) for position in positions}
        return any(number != source for part in parts for number in self._parts.everybody(part))

    @staticmethod
    def _is_rival(request: _Request, other: _Request) -> bool:
        """Return whether another request owes some of the same samples and is lost too."""
        return other.is_suspect and not request.positions.isdisjoint(other.positions)

    def _owed_alone(self, request: _Request) -> list[int]:
        """Return the positions that only this request owes, the most urgent first."""
        others = [other.positions for other in self._requests.values() if other is not request]
        return sorted(p for p in request.positions if not any(p in positions for positions in others))

    def _is_needed(self, position: int) -> bool:
        """Return whether the next batch waits for a sample; in relaxed order it may wait for any."""
        return self._placement is not None or position < self.division.start(self._next_ready + 1)

    @property
    def _hoped_for(self) -> int:
        """Number of requests in flight that owe something and have no replacement request."""
        return sum(request.is_hoped_for for request in self._requests.values())

    @property
    def calls(self) -> int:
        """Number of calls that must be allowed to be open at once.

        Cancelling a call that hangs may not end it. So calls that have been replaced do not count among the requests,
        and there is one more call for the next replacement. With several lanes, a call that owes nothing and does not
        end must not block another lane either.
        """
        most = self.max_requests + len(self._lanes) - 1
        if self._patience.most_s == math.inf and not self._config.hedge and len(self._lanes) == 1:
            return most
        hoped_for = self._hoped_for
        return max(most, hoped_for) + 1 + len(self._requests) - hoped_for

    def surplus(self) -> list[int]:
        """Return the requests that owe nothing any more since others were faster; each is returned once."""
        found, self._surplus = self._surplus, []
        return found

    # --- room ---------------------------------------------------------------------------------------------------------

    def _room_for(self, position: int) -> bool:
        needed_next = position < self.division.start(self._taken + 1)
        most_bytes = min(self.ahead_bytes, self._config.buffer_bytes)
        return needed_next or self.held_bytes + self._expected_bytes <= most_bytes

    @property
    def full(self) -> bool:
        """Whether there is more to ask for, but no room for it."""
        return self.wanted < self.count and not self.wants_new and not self._waits_to_be_asked

    @property
    def wants_more(self) -> bool:
        """Whether there is more to ask for, and room for it."""
        return self._waits_to_be_asked or self.wants_new

    @property
    def _waits_to_be_asked(self) -> bool:
        return any(self._queues[part] for part in self._queued)

    @property
    def wants_new(self) -> bool:
        """Whether another sample can be queued: one is left, and there is room for it."""
        return self.wanted < self.count and self._room_for(self.wanted)

    def _hold(self, position: int, size_bytes: int) -> None:
        self.held_bytes += size_bytes - self._held.get(position, 0)
        self._held[position] = size_bytes

    def part_of(self, position: int) -> int:
        """Return the number of the part that a sample belongs to."""
        return self._parts.at(position)

    @property
    def has_ways(self) -> bool:
        """Whether samples can be routed through relays or directly to nodes."""
        return bool(self._parts.ways)

    def reroute(self, is_relayed: NDArray[np.bool_]) -> None:
        """Choose nodes or relays for samples that are not wanted yet; samples that are already wanted keep their route.

        Args:
            is_relayed: For each position, whether to ask a relay.
        """
        self._parts = self._parts.rerouted(is_relayed, self.wanted)

    # --- what happens to requests -------------------------------------------------------------------------------------

    def reply(self, request: int, position: int, size_bytes: int, now_s: float) -> bool:
        """Record a reply; return False if it is not wanted: it is late, unknown or a duplicate."""
        asked = self._requests.get(request)
        if asked is None or self.fatal:
            return False  # a given-up request stays given up, even if it is answered a moment later
        self._hear(asked, now_s)
        if position not in asked.positions:
            return False
        for number, other in self._requests.items():
            if position in other.positions:
                other.positions.discard(position)
                if other is not asked and not other.positions:
                    self._surplus.append(number)
        self._state[position] = _RECEIVED
        self._payload_bytes += 0.05 * (size_bytes - self._payload_bytes)
        self._hold(position, max(size_bytes, self._held[position]))
        self._waits[self._parts.at(position)].received(now_s)
        return True

    def _hear(self, request: _Request, now_s: float) -> None:
        self._patience.waited(now_s - request.got_s)
        request.got_s = request.heard_s = now_s
        request.is_suspect = request.is_trial = False
        self._standings.replied(request.source)

    def heard(self, request: int, at_s: float) -> None:
        """Record a sign of life: nothing was received, but the node is at work, or a large reply is on its way."""
        asked = self._requests.get(request)
        if asked is not None and at_s > asked.heard_s:
            asked.heard_s, asked.is_suspect = at_s, False

    def ended(self, request: int, now_s: float) -> None:
        """Record that a reply stream has ended."""
        asked = self._requests.get(request)
        if asked is not None and asked.positions:
            missing = len(asked.positions)
            self.failed(request, RetryableError(f"the reply ended {missing} samples early"), now_s)
        elif asked is not None:
            self._drop(request)

    def resume(self) -> None:
        """Restart the deadline, for a driver that only drives while its consumer waits."""
        if not self._requests:
            for wait in self._waits:
                wait.since_s = None

    def failed(self, request: int, error: Error, now_s: float) -> bool:
        """Record that a request has failed; what it still owes is asked for again, unless the error is final.

        Returns:
            Whether the request still owed something.
        """
        asked = self._requests.get(request)
        if asked is None:
            return False
        if not asked.positions and isinstance(error, RetryableError):
            self._drop(request)  # it was cancelled, or broke after its last reply
            return False
        again = self._owed_alone(asked)
        for position in again:
            self._state[position] = _AGAIN
            self._queue(position, self._parts.at(position))
        self._drop(request)
        for other in self._requests.values():
            if other.positions & asked.positions:
                other.hedged -= asked.positions  # only one of the two requests is left
                other.is_second = False
        if not isinstance(error, RetryableError):
            self.fatal = self.fatal or error
            return True
        for part, positions in Counter(map(self._parts.at, again)).items():
            self._waits[part].failed(positions, now_s)
        for part in {self._parts.at(position) for position in asked.positions}:
            self._waits[part].tries += 1
            self._waits[part].failure = error
        self._standings.failed(asked.source, asked.sent_s, now_s)
        self.check(now_s)
        return True

    def _drop(self, request: int) -> None:
        self._standings.ended(self._requests.pop(request).source)

    def check(self, now_s: float) -> None:
        """Give up if the deadline has passed."""
        if self.fatal:
            return
        deadline_s = self._config.deadline_s
        for part, wait in enumerate(self._waits):
            if wait.since_s is None or now_s - wait.since_s < deadline_s:
                continue
            if wait.waited_s(now_s, self._ready_s(part, now_s)) >= deadline_s:
                who = "" if len(self._waits) == 1 else f" from {self._parts.called(part)}"
                if wait.tries:
                    what = f"after {wait.tries} {'try' if wait.tries == 1 else 'tries'}; the last one: {wait.failure}"
                else:
                    what = "although the connection is up"
                self.fatal = UnavailableError(f"no answer for {deadline_s:g} s{who}, {what}")
                return

    # --- what happens to samples and batches --------------------------------------------------------------------------

    def finished(self, position: int, size_bytes: int) -> list[Placing]:
        """Record that a sample is finished, and how large it is now; return which position gets which place.

        In relaxed order there may be none, if the free places are kept for others, or several that have waited.
        """
        assert self._state[position] == _RECEIVED
        self._state[position] = _FINISHED
        self._hold(position, size_bytes)
        self._expected_bytes += 0.05 * (size_bytes - self._expected_bytes)
        return [(position, position)] if self._placement is None else self._placement.add(position)

    def put(self, place: int) -> bool:
        """Record that a sample is in its place; return whether this completes its batch."""
        batch = self.division.of(place)
        self._unfilled[batch] -= 1
        while self._next_ready < self.batches and self._unfilled[self._next_ready] == 0:
            self._next_ready += 1
        return self._unfilled[batch] == 0

    def position_at(self, place: int) -> int:
        """Return the position whose sample gets a place; in relaxed order only for places already assigned."""
        return place if self._placement is None else int(self._placement.position_at[place])

    @property
    def ready(self) -> int:
        """How many batches, from the first, are complete."""
        return self._next_ready

    @property
    def ready_bytes(self) -> float:
        """Approximate number of bytes in complete batches that have not been handed out."""
        return (self.division.start(self._next_ready) - self.division.start(self._taken)) * self._expected_bytes

    @property
    def taken(self) -> int:
        """How many batches, from the first, have been handed out."""
        return self._taken

    def take(self) -> int:
        """Hand out the next batch, which must be ready, and release its bytes."""
        assert self._taken < self._next_ready
        batch = self._taken
        self._taken += 1
        for place in range(self.division.start(batch), self.division.start(batch + 1)):
            self.held_bytes -= self._held.pop(self.position_at(place))
        return batch

    def positions_in(self, batch: int) -> NDArray[np.int64]:
        """Return the positions of the samples in a batch that was handed out."""
        start, stop = self.division.start(batch), self.division.start(batch + 1)
        return np.arange(start, stop) if self._placement is None else self._placement.position_at[start:stop].copy()

    def taken_positions(self) -> NDArray[np.int64]:
        """Return the positions of the samples in the batches handed out so far, in the order of their places."""
        stop = self.division.start(self._taken)
        return np.arange(stop) if self._placement is None else self._placement.position_at[:stop].copy()

    def wait_s(self, now_s: float) -> float:
        """How long it makes sense to wait for an event before asking again."""
        times_s = [now_s + _LONGEST_NAP_S, *self._standings.retries_s]
        for request in self._requests.values():
            if request.positions:
                times_s += self._times_s(request)
        return max(min(at_s - now_s for at_s in times_s if at_s > now_s), _SHORTEST_NAP_S)
