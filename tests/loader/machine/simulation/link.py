"""One request on its way: what comes of it, when, in which order, and how often."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sophon.codec.cut import Cut
from sophon.codec.route import Route
from sophon.errors import ConfigError, Error, RetryableError
from sophon.pipeline import Key
from tests.loader.machine.simulation.clock import Clock
from tests.loader.machine.simulation.node import Mode, Source

POISON = -1  # what a second reply holds: whoever takes it has a wrong sample


@dataclass(frozen=True)
class Answer:
    """A reply as the trainer sees it."""

    index: int  # in the request
    cut: Cut
    payload: Any
    size_bytes: int
    cpu_s: float
    computing_s: float  # of its stream, since it began


class Reader(Protocol):
    """Who reads a stream."""

    def got(self, request: int, answer: Answer) -> None:
        """A reply has come."""

    def over(self, request: int, error: Error | None) -> None:
        """The stream has ended, or failed; nobody reads it any more."""


@dataclass(frozen=True)
class Wire:
    """How the transport is set.

    Args:
        timeout_s: After which a request fails, whatever has come of it: gRPC's own deadline.
        keepalive_s: After which the transport finds out that the other side is gone.
        silence_s: After which it gives up a connection on which nothing comes.
    """

    timeout_s: float
    keepalive_s: float
    silence_s: float


class Stream:
    """A request and its replies.

    As a Flight call it cannot be cancelled before its first word has come, which a node that is well sends at once; and
    as long as a node shows that it is at work, a stream that says nothing else is nobody's concern but the machine's.
    """

    def __init__(
        self,
        request: int,
        keys: Sequence[Key],
        cuts: Sequence[Cut | Route],
        source: Source,
        wire: Wire,
        clock: Clock,
        reader: Reader,
    ) -> None:
        self._request = request
        self._keys, self._cuts = keys, cuts
        self._source, self._wire, self._clock, self._reader = source, wire, clock, reader
        self._random, self._manners = source.random, source.manners
        self._is_over = self._is_cancelled = False
        self._has_spoken = source.mode in (Mode.WELL, Mode.SMALL)
        self._turn = 0  # what was to happen is forgotten when it changes
        self._computing_s = 0.0
        r, manners = self._random, self._manners
        self._left = list(range(len(keys)))
        self._error: Error | None = None
        if r.random() < manners.shuffled:
            r.shuffle(self._left)
        if r.random() < manners.short:
            self._left = self._left[: r.randrange(len(keys))]
        elif r.random() < manners.broken:
            self._left = self._left[: r.randint(0, len(keys))]
            self._error = RetryableError(f"node {source.number}: connection reset")
        elif r.random() < manners.final:
            self._left = self._left[: r.randrange(len(keys))]
            self._error = ConfigError(f"node {source.number}: no such data set")
        self._is_endless = self._error is None and r.random() < manners.endless
        source.streams[id(self)] = self
        clock.after(wire.timeout_s, self._fail, f"node {source.number}: timed out")
        if source.mode is Mode.REFUSING:
            self._then(r.uniform(0.0005, 0.01), self._fail, f"node {source.number}: connection refused")
        elif source.mode is Mode.GONE:
            self._then(wire.keepalive_s, self._fail, f"node {source.number}: no route")
        elif source.mode in (Mode.MUTE, Mode.FROZEN):
            self._then(wire.silence_s, self._fail, f"node {source.number}: nothing came")
        else:
            self._then(self._lag(manners.first_s), self._speak)

    def _then(self, delay_s: float, action: Any, *args: Any) -> None:
        self._turn += 1
        self._clock.after(delay_s, self._do, self._turn, action, args)

    def _do(self, turn: int, action: Any, args: Any) -> None:
        if turn == self._turn and not self._is_over:
            action(*args)

    def _lag(self, mean_s: float) -> float:
        r, manners = self._random, self._manners
        lag_s = mean_s * r.uniform(0.5, 1.5)
        if manners.tail and r.random() < manners.tail:
            lag_s += min(manners.tail_s * r.paretovariate(1.2), 20 * manners.tail_s)
        return lag_s

    def _speak(self) -> None:
        """Send a message of some replies; then the next, or the end."""
        r = self._random
        self._has_spoken = True
        if self._is_cancelled:
            self._fail(f"node {self._source.number}: cancelled")
            return
        for _ in range(min(len(self._left), r.choice((1, 1, 2, 5)))):
            self._send(self._left.pop(0))
            if self._is_over:
                return
        if self._left:
            self._then(self._lag(self._manners.gap_s), self._speak)
        elif not self._is_endless:
            self._then(self._lag(self._manners.gap_s), self._end)

    def _send(self, index: int) -> None:
        r, manners = self._random, self._manners
        cut, payload = self._source.answer(self._keys[index], self._cuts[index])
        cpu_s = r.uniform(0.0, 0.01) * cut.k
        self._computing_s += cpu_s * r.uniform(0, 4)
        answer = Answer(index, cut, payload, self._size(cut), cpu_s, self._computing_s)
        self._reader.got(self._request, answer)
        again = Answer(index, cut, POISON, answer.size_bytes, 0.0, self._computing_s)
        if r.random() < manners.twice and not self._is_over:
            self._reader.got(self._request, again)
        if r.random() < manners.late:
            self._clock.after(r.expovariate(0.3), self._reader.got, self._request, again)

    def _size(self, cut: Cut) -> int:
        return int(self._random.uniform(0.2, 1.0) * (200_000 if cut.k == 0 else 100_000))

    def _end(self) -> None:
        self._finish(self._error)

    def _fail(self, text: str) -> None:
        if not self._is_over:
            self._finish(RetryableError(text))

    def _finish(self, error: Error | None) -> None:
        self._is_over = True
        del self._source.streams[id(self)]
        self._reader.over(self._request, error)

    def cancel(self) -> None:
        """Give up reading; before the first word that is of no use."""
        self._is_cancelled = True
        if self._has_spoken and not self._is_over:
            self._then(0.001, self._fail, f"node {self._source.number}: cancelled")

    def weather(self, before: Mode, now: Mode) -> None:
        """Take note that the source has changed."""
        name = f"node {self._source.number}"
        if now is Mode.REFUSING:
            self._then(0.0, self._fail, f"{name}: connection reset")
        elif now is Mode.GONE:
            self._then(self._wire.keepalive_s, self._fail, f"{name}: connection lost")
        elif now in (Mode.MUTE, Mode.FROZEN):
            self._then(self._wire.silence_s, self._fail, f"{name}: nothing came")
        elif before is Mode.FROZEN:
            self._then(self._lag(self._manners.gap_s), self._speak)
