"""Books on what a machine was told and said, kept apart from it, and compared with what it promises.

Every check names the sentence of `machine`'s docstring, `nodes`' or `patience`'s that it holds it to.
"""

import math
from collections.abc import Iterable

from sophon.errors import Error, RetryableError, UnavailableError
from sophon.loader.machine.machine import Ask, Machine, MachineConfig

_EPS_S = 1e-9
_TRIAL_S = 0.05  # learned patience may be shorter than a trial's own quarter of a second
_SHARE = 0.1  # of the samples asked for may be asked for twice: patience's promise


class BrokenPromiseError(AssertionError):
    """A promise that was not kept."""


def hold(kept: bool, promise: str, *found: object) -> None:
    """Raise unless a promise was kept."""
    if not kept:
        raise BrokenPromiseError(f"{promise}: {found}")


class _Request:
    def __init__(self, ask: Ask, now_s: float) -> None:
        self.owes = set(ask.positions)
        self.node = ask.source
        self.heard_s = now_s
        self.is_trial = ask.is_trial


class Ledger:
    """The books on one machine."""

    def __init__(self, machine: Machine, config: MachineConfig, expected_bytes: int, sizes_are_even: bool) -> None:
        self._machine = machine
        self._config = config
        self._expected_bytes = self._payload_bytes = float(expected_bytes)
        self._sizes_are_even = sizes_are_even
        self._has_others = config.nodes > 1 or config.has_fallback
        # "silent": half a dozen sources can be tried within a deadline.
        self.silent_s = min(5.0, config.deadline_s / 6) if self._has_others else math.inf
        self.requests: dict[int, _Request] = {}
        self.owers: dict[int, list[int]] = {}  # position → requests, while it is asked for or to be asked for again
        self.since_s: float | None = None
        self.last_failure: Error | None = None
        self.final: Error | None = None
        self._seen: Error | None = None
        self.seen_s = 0.0  # when the deadline had passed
        self.tries = 0
        self.seconds = self.asked = self.twice = 0
        self._answered_s: dict[int, float] = {}
        self._next_new = 0
        self._received: set[int] = set()
        self._held: dict[int, int] = {}
        self._surplus: set[int] = set()
        self._told_surplus: set[int] = set()

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, ask: Ask, now_s: float) -> None:
        hold(ask.request not in self.requests, "a request has a number of its own", ask)
        hold(0 < len(ask.positions) <= self._config.request_samples, "a request is bounded", ask)
        hold(len(set(ask.positions)) == len(ask.positions), "a request names a sample once", ask)
        hold(0 <= ask.source < self._config.nodes + self._config.has_fallback, "a request goes to somebody", ask)
        hold(not self._received.intersection(ask.positions), "what was received is not asked for again", ask)
        seconds = [p for p in ask.positions if self.owers.get(p)]
        if seconds:
            hold(len(seconds) == len(ask.positions), "a second request is for what another owes", ask)
            self._second(ask, now_s)
        else:
            reckoned = (len(ask.positions) - 1) * self._payload_bytes
            hold(reckoned < self._config.request_bytes, "a request is bounded in bytes", ask)
            for position in ask.positions:
                self._first(position)
        self.requests[ask.request] = _Request(ask, now_s)
        for position in ask.positions:
            self.owers.setdefault(position, []).append(ask.request)
            hold(len(self.owers[position]) <= 2, "owed by at most two requests", position)
        self.asked += len(ask.positions)
        if not seconds:
            alone = sum(any(len(self.owers[p]) == 1 for p in r.owes) for r in self.requests.values())
            hold(alone <= self._machine.max_requests, "requests under way are bounded", alone)
        if self.since_s is None:
            self.since_s = now_s
        self.balance()

    def _first(self, position: int) -> None:
        if position in self.owers:
            return  # once more, after a failure
        hold(position == self._next_new, "samples are asked for in order", position, self._next_new)
        self._next_new += 1
        machine = self._machine
        is_next = position < (machine.taken + 1) * machine.batch_size
        most = min(machine.ahead_bytes, self._config.buffer_bytes)
        held = sum(self._held.values())
        hold(is_next or held + self._expected_bytes <= most, "bytes held stay within the buffer", position, held, most)
        self._held[position] = int(self._expected_bytes)

    def _second(self, ask: Ask, now_s: float) -> None:
        """A second request is for one that is late; beyond a tenth of all samples only for one that is lost."""
        hold(self._has_others or self._config.hedge is not False, "nobody is asked twice unless it is wanted", ask)
        owers = {number for p in ask.positions for number in self.owers[p]}
        silent_s = {number: now_s - self.requests[number].heard_s for number in owers}
        for position in ask.positions:
            if len(self.owers[position]) == 2:  # both are lost: the older one is let go for the third
                both = self.owers[position]
                hold(
                    all(silent_s[n] >= self.silent_s - _EPS_S for n in both),
                    "owed by at most two requests: only who is lost is let go",
                    ask,
                    silent_s,
                )
                self._let_go(both[0], position)
        left = {number for p in ask.positions for number in self.owers[p]}
        is_lost = all(silent_s[number] >= self.silent_s - _EPS_S for number in left)
        hold(len(left) == 1, "a second request is for one other", ask, left)
        if is_lost:
            answered_s = self._answered_s.get(ask.source, -math.inf)
            same = [n for n in left if self.requests[n].node == ask.source and answered_s <= self.requests[n].heard_s]
            hold(not same, "who is lost is not asked in its own stead, unless it has answered others since", ask)
        elif all(self.requests[number].is_trial for number in left):
            # Who has failed before is not waited for: but its sample is asked of somebody else.
            (number,) = left
            hold(silent_s[number] >= _TRIAL_S - _EPS_S, "a trial has its time", ask, silent_s)
            hold(self.requests[number].node != ask.source, "what a trial owes is asked of another", ask)
        else:
            limit_s = 0.05 if self._config.hedge is True else float(self._config.hedge or math.inf)
            hold(silent_s[min(left)] >= limit_s - _EPS_S, "a second request is for one that is late", ask, silent_s)
            most = _SHARE * (self.asked + len(ask.positions))
            hold(self.twice <= most, "second requests are a tenth of all", ask, self.twice, self.asked)
        self.twice += len(ask.positions)
        self.seconds += 1

    def _let_go(self, number: int, position: int) -> None:
        self.owers[position].remove(number)
        request = self.requests[number]
        request.owes.discard(position)
        if not request.owes:
            self._surplus.add(number)

    # --- what happens to requests -------------------------------------------------------------------------------------

    def reply(self, number: int, position: int, size_bytes: int, wanted: bool, now_s: float) -> None:
        request = self.requests.get(number)
        is_over = self._machine.fatal is not None
        is_owed = request is not None and position in request.owes and not is_over
        hold(wanted == is_owed, "every position is received exactly once", number, position, wanted)
        if request is not None and not is_over:
            request.heard_s = self._answered_s[request.node] = now_s
            request.is_trial = False
        if not wanted:
            return
        for other in list(self.owers[position]):
            self.requests[other].owes.discard(position)
            if other != number and not self.requests[other].owes:
                self._surplus.add(other)
        del self.owers[position]
        hold(position not in self._received, "every position is received exactly once", number, position)
        self._received.add(position)
        self._payload_bytes += 0.05 * (size_bytes - self._payload_bytes)
        self._held[position] = max(size_bytes, self._held[position])
        self.tries = 0
        self.since_s = now_s if self.owers else None
        self.balance()

    def surplus(self, found: list[int]) -> None:
        for number in found:
            hold(number not in self._told_surplus, "surplus is told once", number)
            self._told_surplus.add(number)
            if number in self.requests:
                hold(not self.requests[number].owes, "surplus owes nothing", number, self.requests[number].owes)
        missed = self._surplus - self._told_surplus
        hold(not missed, "who owes nothing since others were faster is surplus", missed)

    def over(self, number: int, error: Error | None) -> None:
        """A request has ended, or failed; the machine was told."""
        request = self.requests.pop(number, None)
        if request is None:
            return
        for position in request.owes:
            self.owers[position].remove(number)
        if error is not None and not isinstance(error, RetryableError):
            self.final = self.final or self._seen or error
            hold(self._machine.fatal is self.final, "a final error ends the epoch", error, self._machine.fatal)
        elif request.owes:
            self.tries += 1
            self.last_failure = error
        self.balance()

    def resume(self) -> None:
        if not self.requests:
            self.since_s = None

    # --- samples and batches ------------------------------------------------------------------------------------------

    def finished(self, position: int, size_bytes: int) -> None:
        self._held[position] = size_bytes
        self._expected_bytes += 0.05 * (size_bytes - self._expected_bytes)
        self.balance()

    def taken(self, positions: Iterable[int]) -> None:
        for position in positions:
            hold(position in self._received, "what is handed out was received", position)
            del self._held[position]
        self.balance()

    def balance(self) -> None:
        """Compare bytes; where sizes are as expected they stay within the buffer, but for the next batch."""
        held, machine = sum(self._held.values()), self._machine
        hold(machine.held_bytes == held, "bytes held are those of what was asked for and not taken", held)
        if self._sizes_are_even:
            most = max(self._config.buffer_bytes, machine.batch_size * self._expected_bytes)
            hold(held <= most, "bytes held stay within the buffer, but the next batch may be completed", held, most)

    # --- the end ------------------------------------------------------------------------------------------------------

    def check(self, now_s: float, slack_s: float | None = None) -> None:
        """Compare the deadline; with a slack, it must have been noticed by then."""
        fatal = self._machine.fatal
        silent_s = 0.0 if self.since_s is None else now_s - self.since_s
        if fatal is None:
            is_late = slack_s is not None and silent_s > self._config.deadline_s + slack_s
            hold(not is_late, "a deadline is kept", silent_s)
            return
        if self.final is not None:
            hold(fatal is self.final, "a final error ends the epoch, that one", fatal, self.final)
            return
        if fatal is self._seen:
            return  # what fails afterwards changes nothing
        self._seen, self.seen_s = fatal, now_s
        hold(isinstance(fatal, UnavailableError), "a deadline is a typed error", fatal)
        hold(self.since_s is not None, "nobody is given up who owes nothing", fatal)
        hold(silent_s >= self._config.deadline_s - _EPS_S, "nobody is given up before the deadline", fatal, silent_s)
        if self.tries:
            hold(str(self.last_failure or "ended") in str(fatal), "the last failure is named", fatal, self.last_failure)
