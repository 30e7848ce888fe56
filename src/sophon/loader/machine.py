"""What to ask for next, and what to do with an answer, a failure and a deadline.

A state machine without sockets, threads or clocks: it is told what happened and when, and says what to do. Threads and
Flight drive it in production, a seeded simulator with virtual time in tests.

The samples of an epoch stand in a row; their *positions* are 0 … count - 1. Batches have *places* 0 … count - 1 in the
same way, and every `batch_size` of them are a batch. In strict order the sample at a position gets the place of that
number. In relaxed order it gets the first free place when it is finished, so that slow samples hold up no others.
A position goes through these states, and never back but for the one arrow::

    waiting ──ask──▶ asked ──reply──▶ received ──finished──▶ finished ──placed──▶ put ──taken──▶ (released)
       ▲               │
       └─failed, ended─┘

If the implementation is inconsistent with the following, it is a bug:

- Every position is received exactly once; a second reply for it is refused.
- Every position gets exactly one place, and every place exactly one position.
- Batches become ready in order.
- In relaxed order no sample comes more than `max_delay` batches behind the batch it would be in by strict order: where
  a batch has as many free places as there are samples that must not wait any longer, these places are kept for them.
- The bytes held for positions between ask and taken stay within `buffer_bytes`, except that the batch to be delivered
  next may always be completed.
- A failure is followed by the next try after a pause that grows as long as nothing is received, and by `fatal` once
  `deadline_s` has passed since something was asked for or received, while something is still owed.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sophon.errors import Error, RetryableError

_WAITING, _ASKED, _RECEIVED, _FINISHED = range(4)

Placing = tuple[int, int]  # a position and the place that its sample gets


@dataclass(frozen=True)
class MachineConfig:
    """Bounds and times.

    Args:
        buffer_bytes: Bytes held for samples that are asked for and not yet taken.
        deadline_s: How long nothing may come before the epoch is given up.
        max_requests: Requests under way at once.
        request_samples: Samples in one request.
        request_bytes: Expected bytes in one request.
        first_pause_s: Before the first retry; doubles with each further one.
        longest_pause_s: Bound on that.
        max_delay: Batches that a sample may come late, in relaxed order; None for strict order.
    """

    buffer_bytes: int = 1 << 30
    deadline_s: float = 60.0
    max_requests: int = 2
    request_samples: int = 64
    request_bytes: int = 8 << 20
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    max_delay: int | None = None


@dataclass(frozen=True)
class Ask:
    """Send a request for the samples at these positions."""

    request: int
    positions: tuple[int, ...]


@dataclass
class _Request:
    positions: set[int]


class Machine:
    """The course of one epoch.

    Args:
        count: Samples in the epoch.
        batch_size: Samples in a batch; the last one may be smaller.
        config: Bounds and times.
        expected_bytes: First guess at the bytes held for one sample.
        now_s: The time at the start.
        seed: Of the jitter of pauses, so that many trainers do not retry in step.

    Attributes:
        max_requests: Requests under way at once; may be changed on the way.
        ahead_bytes: Bytes held at once, at most `buffer_bytes`; may be changed on the way.
    """

    def __init__(
        self, count: int, batch_size: int, config: MachineConfig, expected_bytes: int, now_s: float, seed: int = 0
    ) -> None:
        self.count = count
        self.batch_size = batch_size
        self.batches = -(-count // batch_size)
        self.fatal: Error | None = None
        self.tries = 0
        self.held_bytes = 0
        self.max_requests = config.max_requests
        self.ahead_bytes = config.buffer_bytes
        self._config = config
        self._random = random.Random(seed)
        self._state = np.zeros(count, np.uint8)
        self._held: dict[int, int] = {}
        self._expected_bytes = float(expected_bytes)
        self._next_new = 0
        self._again: list[int] = []
        self._requests: dict[int, _Request] = {}
        self._request_number = 0
        self._unfilled = [min(batch_size, count - b * batch_size) for b in range(self.batches)]
        self._placement = None if config.max_delay is None else _Placement(count, batch_size, config.max_delay)
        self._next_ready = 0
        self._taken = 0
        self._retry_at_s = now_s
        self._last_failure: Error | None = None
        self._waiting_since_s: float | None = None  # for an answer; None while nothing is owed to us

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, now_s: float) -> Ask | None:
        """Return the next request to send, or None if there is nothing to ask for now."""
        self.check(now_s)
        if self.fatal or now_s < self._retry_at_s or len(self._requests) >= self.max_requests:
            return None
        positions = self._choose()
        if not positions:
            return None
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        self._request_number += 1
        self._requests[self._request_number] = _Request(set(positions))
        for position in positions:
            self._state[position] = _ASKED
        return Ask(self._request_number, tuple(positions))

    def _choose(self) -> list[int]:
        chosen: list[int] = []
        size_bytes = 0.0
        while len(chosen) < self._config.request_samples and size_bytes < self._config.request_bytes:
            if self._again:
                chosen.append(heapq.heappop(self._again))
            elif self._next_new < self.count and self._room_for(self._next_new):
                self._hold(self._next_new, int(self._expected_bytes))
                chosen.append(self._next_new)
                self._next_new += 1
            else:
                break
            size_bytes += self._expected_bytes
        return chosen

    def _room_for(self, position: int) -> bool:
        needed_next = position < (self._taken + 1) * self.batch_size
        most_bytes = min(self.ahead_bytes, self._config.buffer_bytes)
        return needed_next or self.held_bytes + self._expected_bytes <= most_bytes

    @property
    def full(self) -> bool:
        """Whether there is more to ask for, but no room for it."""
        return not self._again and self._next_new < self.count and not self._room_for(self._next_new)

    @property
    def wants_more(self) -> bool:
        """Whether there is more to ask for, and room for it."""
        return bool(self._again) or (self._next_new < self.count and self._room_for(self._next_new))

    def _hold(self, position: int, size_bytes: int) -> None:
        self.held_bytes += size_bytes - self._held.get(position, 0)
        self._held[position] = size_bytes

    # --- what happens to requests -------------------------------------------------------------------------------------

    def reply(self, request: int, position: int, size_bytes: int, now_s: float) -> bool:
        """Take note of a reply; False if it is not wanted, being late, unknown or the second one."""
        asked = self._requests.get(request)
        if asked is None or position not in asked.positions or self._state[position] != _ASKED:
            return False
        asked.positions.discard(position)
        self._state[position] = _RECEIVED
        self._hold(position, max(size_bytes, self._held[position]))
        self._waiting_since_s = now_s
        self.tries = 0
        return True

    def ended(self, request: int, now_s: float) -> None:
        """Take note that a reply stream has come to its end."""
        asked = self._requests.get(request)
        if asked is not None and asked.positions:
            missing = len(asked.positions)
            self.failed(request, RetryableError(f"the reply ended {missing} samples early"), now_s)
        else:
            self._requests.pop(request, None)
            if not self._requests and not self._again:
                self._waiting_since_s = None

    def resume(self) -> None:
        """Start the deadline anew, for a driver that only drives while its consumer waits."""
        if not self._requests:
            self._waiting_since_s = None

    def failed(self, request: int, error: Error, now_s: float) -> None:
        """Take note that a request has failed; what it still owes is asked for again, unless the error is final."""
        asked = self._requests.pop(request, None)
        if asked is None:
            return
        for position in asked.positions:
            self._state[position] = _WAITING
            heapq.heappush(self._again, position)
        if not isinstance(error, RetryableError):
            self.fatal = self.fatal or error
            return
        pause_s = min(self._config.first_pause_s * 2.0 ** min(self.tries, 30), self._config.longest_pause_s)
        self.tries += 1
        self._last_failure = error
        self._retry_at_s = max(self._retry_at_s, now_s + pause_s * self._random.uniform(0.5, 1.0))
        self.check(now_s)

    def check(self, now_s: float) -> None:
        """Give up if the deadline has passed."""
        if self.fatal:
            return
        deadline_s = self._config.deadline_s
        if self._waiting_since_s is None or now_s - self._waiting_since_s < deadline_s:
            return
        if self.tries:
            text = f"no answer for {deadline_s:g} s, after {self.tries} tries; the last one: {self._last_failure}"
        else:
            text = f"no answer for {deadline_s:g} s, though the connection stands"
        self.fatal = RetryableError(text)

    # --- what happens to samples and batches --------------------------------------------------------------------------

    def finished(self, position: int, size_bytes: int) -> list[Placing]:
        """Take note that a sample is finished, and how large it is now; return who gets which place.

        In relaxed order that may be nobody, if the free places are kept for others, or several who have waited.
        """
        assert self._state[position] == _RECEIVED
        self._state[position] = _FINISHED
        self._hold(position, size_bytes)
        self._expected_bytes += 0.05 * (size_bytes - self._expected_bytes)
        return [(position, position)] if self._placement is None else self._placement.add(position)

    def put(self, place: int) -> None:
        """Take note that a sample lies in its place."""
        self._unfilled[place // self.batch_size] -= 1
        while self._next_ready < self.batches and self._unfilled[self._next_ready] == 0:
            self._next_ready += 1

    def position_at(self, place: int) -> int:
        """Return whose place it is; in relaxed order only for places that have been given away."""
        return place if self._placement is None else int(self._placement.position_at[place])

    @property
    def ready(self) -> int:
        """How many batches, from the first, are complete."""
        return self._next_ready

    @property
    def taken(self) -> int:
        """How many batches, from the first, have been handed out."""
        return self._taken

    def take(self) -> int:
        """Hand out the next batch, which must be ready, and release its bytes."""
        assert self._taken < self._next_ready
        batch = self._taken
        self._taken += 1
        for place in range(batch * self.batch_size, min((batch + 1) * self.batch_size, self.count)):
            self.held_bytes -= self._held.pop(self.position_at(place))
        return batch

    def taken_positions(self) -> NDArray[np.int64]:
        """Return the positions of the samples in the batches handed out so far, in the order of their places."""
        stop = min(self._taken * self.batch_size, self.count)
        return np.arange(stop) if self._placement is None else self._placement.position_at[:stop].copy()

    def wait_s(self, now_s: float) -> float:
        """How long it makes sense to wait for an event before asking again."""
        if self._again or self._next_new < self.count:
            return max(0.0, min(self._retry_at_s - now_s, 1.0)) or 1.0
        return 1.0


class _Placement:
    """Who gets which place in relaxed order: first come, first served, but for those who have waited long enough.

    A sample is *due* when the batch being filled is the last one that it may come in. Batches are filled one after the
    other and samples become due in whole batches, so it suffices that no batch is left with fewer free places than
    samples that are due: then no later batch can be either.
    """

    def __init__(self, count: int, batch_size: int, max_delay: int) -> None:
        self.position_at = np.full(count, -1, np.int64)
        self._batch_size = batch_size
        self._max_delay = max_delay
        self._next = 0
        self._parked: list[int] = []  # finished, without a place
        self._unplaced = [min(batch_size, count - start) for start in range(0, count, batch_size)]

    def add(self, position: int) -> list[Placing]:
        """Take note of a finished sample; return who gets which place now."""
        heapq.heappush(self._parked, position)
        placed: list[Placing] = []
        while self._parked and self._may_have_next(self._parked[0]):
            position = heapq.heappop(self._parked)
            self.position_at[self._next] = position
            self._unplaced[position // self._batch_size] -= 1
            placed.append((position, self._next))
            self._next += 1
        return placed

    def _may_have_next(self, position: int) -> bool:
        filling = self._next // self._batch_size
        due_batch = filling - self._max_delay
        if position // self._batch_size <= due_batch or due_batch < 0:
            return True
        free = (filling + 1) * self._batch_size - self._next
        # Samples of earlier batches were due earlier, and have their places.
        return self._unplaced[due_batch] < free
