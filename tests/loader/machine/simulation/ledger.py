"""Books on what a machine was told and said, kept apart from it, and compared with what it promises.

Every check names the sentence of `machine`'s docstring, `parts`', `standing`'s or `patience`'s that it holds it to.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sophon.errors import Error, RetryableError, UnavailableError
from sophon.loader.machine.machine import Ask, Machine, MachineConfig
from sophon.loader.machine.parts import Parts

_EPS_S = 1e-9
_TRIAL_S = 0.05  # learned patience may be shorter than a trial's own quarter of a second
_LATE_S = 0.05  # that a trainer without threads may be late each time it asks
_SHARE = 0.1  # of the samples asked for may be asked for twice: patience's promise


class BrokenPromiseError(AssertionError):
    """A promise that was not kept."""


def hold(kept: bool, promise: str, *found: object) -> None:
    """Raise unless a promise was kept."""
    if not kept:
        raise BrokenPromiseError(f"{promise}: {found}")


class _Request:
    def __init__(self, ask: Ask, silent_s: float, now_s: float) -> None:
        self.owes = set(ask.positions)
        self.node = ask.source
        self.heard_s = now_s
        self.is_trial = ask.is_trial
        self.silent_s = silent_s  # after which it is lost


class _Wait:
    """How long something of a part is owed."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.blocked_s = 0.0  # nobody was asked meanwhile, since a holder or the only thread had other things to do
        self.tries = 0
        self.failure: Error | None = None

    def begin(self, since_s: float | None) -> None:
        self.since_s, self.blocked_s = since_s, 0.0


class Ledger:
    """The books on one machine."""

    def __init__(
        self,
        machine: Machine,
        config: MachineConfig,
        expected_bytes: int,
        sizes_are_even: bool,
        parts: Parts,
        has_threads: bool,
    ) -> None:
        self._machine = machine
        self._config = config
        self._expected_bytes = self._payload_bytes = float(expected_bytes)
        self._sizes_are_even = sizes_are_even
        self._parts = parts
        self._has_threads = has_threads
        # "silent": half a dozen sources can be tried within a deadline.
        self._silent_s = min(5.0, config.deadline_s / 6)
        self._lane_of = self._lanes()
        self.requests: dict[int, _Request] = {}
        self.owers: dict[int, list[int]] = {}  # position → requests, while it is asked for or to be asked for again
        self.waits = [_Wait() for _ in parts.holders]
        self.given_up: int | None = None  # the part that was
        self.final: Error | None = None
        self._seen: Error | None = None
        self.seen_s = 0.0  # when the deadline had passed
        self.seconds = self.asked = self.twice = 0
        self._answered_s: dict[int, float] = {}
        self._struck: set[int] = set()  # who has failed since it last answered
        self._wanted = 0
        self._received: set[int] = set()
        self._held: dict[int, int] = {}
        self._surplus: set[int] = set()
        self._told_surplus: set[int] = set()
        self._looked_s = 0.0

    def _lanes(self) -> dict[int, int]:
        """Return the lane of each source: nodes that hold the same, or all where all hold the same."""
        parts, everybody = self._parts.holders, range(self._config.nodes + self._config.has_fallback)
        if len(parts) == 1:
            return dict.fromkeys(everybody, 0)
        held = {n: tuple(n in holders for holders in parts) for n in range(self._config.nodes)}
        kinds = sorted({kind for kind in held.values() if any(kind)})
        lanes = {n: kinds.index(kind) for n, kind in held.items() if any(kind)}
        return lanes | ({self._config.nodes: len(kinds)} if self._config.has_fallback else {})

    def _sources_of(self, position: int) -> set[int]:
        fallback = {self._config.nodes} if self._config.has_fallback else set()
        return {*self._parts.everybody(self._parts.at(position)), *fallback}

    def _silent_of(self, ask: Ask) -> float:
        """Return after what silence a request is lost: where others could be asked for some of it."""
        return self._silent_s if any(self._sources_of(p) - {ask.source} for p in ask.positions) else math.inf

    @property
    def tries(self) -> int:
        return sum(wait.tries for wait in self.waits)

    def look(self, now_s: float) -> None:
        """Add up how long parts have had nobody who was asked for them, though something of them is owed."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        owing = [request for request in self.requests.values() if request.owes]
        self._struck |= {request.node for request in owing if now_s - request.heard_s >= request.silent_s - _EPS_S}
        if len(self.waits) == 1:
            return
        busy = {request.node for request in self.requests.values() if request.owes or not self._has_threads}
        asked = {self._parts.at(p) for request in self.requests.values() for p in request.owes}
        for part, wait in enumerate(self.waits):
            able = {*self._parts.everybody(part), self._config.nodes}  # the fallback too
            others = busy & able if self._has_threads else busy
            if wait.since_s is not None and part not in asked and others:
                wait.blocked_s += passed_s

    # --- asking -------------------------------------------------------------------------------------------------------

    def wanted(self) -> None:
        """The machine was asked, and may want more than before."""
        machine, before = self._machine, self._wanted
        hold(before <= machine.wanted <= machine.count, "samples are wanted in order", before, machine.wanted)
        most = min(machine.ahead_bytes, self._config.buffer_bytes)
        held = sum(self._held.values())
        for position in range(before, machine.wanted):
            is_next = position < (machine.taken + 1) * machine.batch_size
            has_room = is_next or held + self._expected_bytes <= most
            hold(has_room, "bytes held stay within the buffer", position, held, most)
            self._held[position] = int(self._expected_bytes)
            held += self._held[position]
        self._wanted = machine.wanted
        if machine.wanted > before:
            self.balance()

    def ask(self, ask: Ask, now_s: float) -> None:
        self.look(now_s)
        hold(ask.request not in self.requests, "a request has a number of its own", ask)
        hold(0 < len(ask.positions) <= self._config.request_samples, "a request is bounded", ask)
        hold(len(set(ask.positions)) == len(ask.positions), "a request names a sample once", ask)
        hold(0 <= ask.source < self._config.nodes + self._config.has_fallback, "a request goes to somebody", ask)
        hold(not self._received.intersection(ask.positions), "what was received is not asked for again", ask)
        strangers = [p for p in ask.positions if ask.source not in self._sources_of(p)]
        hold(not strangers, "a request goes to a holder of all its positions, or to the fallback", ask, strangers)
        seconds = [p for p in ask.positions if self.owers.get(p)]
        if seconds:
            hold(len(seconds) == len(ask.positions), "a second request is for what another owes", ask)
            self._second(ask, now_s)
        else:
            reckoned = (len(ask.positions) - 1) * self._payload_bytes
            hold(reckoned < self._config.request_bytes, "a request is bounded in bytes", ask)
            hold(max(ask.positions) < self._wanted, "what is asked for is wanted", ask, self._wanted)
            self._check_fallback(ask)
            self._check_stand_ins(ask)
        for part in {self._parts.at(position) for position in ask.positions}:
            if self.waits[part].since_s is None:
                self.waits[part].begin(now_s)
        self.requests[ask.request] = _Request(ask, self._silent_of(ask), now_s)
        for position in ask.positions:
            self.owers.setdefault(position, []).append(ask.request)
            hold(len(self.owers[position]) <= 2, "owed by at most two requests", position)
        self.asked += len(ask.positions)
        if not seconds:
            self._check_bounds(ask)
        self.balance()

    def _check_bounds(self, ask: Ask) -> None:
        alone = [r.node for r in self.requests.values() if any(len(self.owers[p]) == 1 for p in r.owes)]
        lanes = Counter(self._lane_of.get(node, -1) for node in alone)  # who holds nothing any more is in none
        most, lane = self._machine.max_requests, self._lane_of[ask.source]
        hold(len(alone) <= most or lanes[lane] == 1, "requests under way are bounded, but for one of each lane", alone)
        if len(set(self._lane_of.values())) > 1:
            nodes = sum(its == lane for its in self._lane_of.values())
            share = math.ceil(most * nodes / max(1, len(self._lane_of) - self._config.has_fallback))
            hold(lanes[lane] <= share, "lanes share requests in proportion to their nodes", ask, lanes, share)

    def _check_fallback(self, ask: Ask) -> None:
        """Whoever is asked for the first time, or once more, is the fallback only where every holder has failed."""
        if not self._config.has_fallback or ask.source != self._config.nodes:
            return
        for position in ask.positions:
            well = set(self._parts.everybody(self._parts.at(position))) - self._struck
            hold(not well, "the fallback is asked while every holder has failed", ask, position, well)

    def _check_stand_ins(self, ask: Ask) -> None:
        """Whoever is asked for the first time, or once more, is a stand-in only where every holder has failed."""
        for position in ask.positions if self._parts.stand_ins else ():
            part = self._parts.at(position)
            if ask.source in self._parts.stand_ins[part]:
                well = set(self._parts.holders[part]) - self._struck
                hold(not well, "a stand-in is asked only while no holder is well", ask, position, well)

    def nobody(self, now_s: float) -> None:
        """Nobody is to be asked now: then no stand-in could be, who is well and has nothing to do."""
        self.look(now_s)
        if not self._parts.stand_ins or self.requests:
            return
        for position in range(self._wanted):
            if position not in self._received and not self.owers.get(position):
                part = self._parts.at(position)
                well = set(self._parts.everybody(part)) - self._struck
                hold(not well, "a stand-in is asked while no holder is well", position, well)

    def reroute(self, of: NDArray[np.uint16]) -> None:
        """Samples that are not wanted yet go another way."""
        assert self._parts.of is not None
        self._parts = replace(self._parts, of=np.concatenate([self._parts.of[: self._wanted], of[self._wanted :]]))
        ways = [self._machine.part_of(position) for position in range(self._wanted)]
        kept = ways == self._parts.of[: self._wanted].tolist()
        hold(kept, "samples that are already wanted keep their route", ways)

    def _second(self, ask: Ask, now_s: float) -> None:
        """A second request is for one that is late; beyond a tenth of all samples only for one that is lost."""
        owers = {number for p in ask.positions for number in self.owers[p]}
        can_be_lost = any(self.requests[number].silent_s < math.inf for number in owers)
        hold(can_be_lost or self._config.hedge is not False, "nobody is asked twice unless it is wanted", ask)
        silent_s = {number: now_s - self.requests[number].heard_s for number in owers}
        for position in ask.positions:
            if len(self.owers[position]) == 2:  # both are lost: the older one is let go for the third
                both = self.owers[position]
                hold(
                    all(silent_s[n] >= self.requests[n].silent_s - _EPS_S for n in both),
                    "owed by at most two requests: only who is lost is let go",
                    ask,
                    silent_s,
                )
                self._let_go(both[0], position)
        left = {number for p in ask.positions for number in self.owers[p]}
        is_lost = all(silent_s[number] >= self.requests[number].silent_s - _EPS_S for number in left)
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
        self.look(now_s)
        request = self.requests.get(number)
        is_over = self._machine.fatal is not None
        is_owed = request is not None and position in request.owes and not is_over
        hold(wanted == is_owed, "every position is received exactly once", number, position, wanted)
        if request is not None and not is_over:
            request.heard_s = self._answered_s[request.node] = now_s
            request.is_trial = False
            self._struck.discard(request.node)
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
        part = self._parts.at(position)
        self.waits[part].tries = 0
        self.waits[part].begin(now_s if any(self._parts.at(p) == part for p in self.owers) else None)
        self.balance()

    def surplus(self, found: list[int]) -> None:
        for number in found:
            hold(number not in self._told_surplus, "surplus is told once", number)
            self._told_surplus.add(number)
            if number in self.requests:
                hold(not self.requests[number].owes, "surplus owes nothing", number, self.requests[number].owes)
        missed = self._surplus - self._told_surplus
        hold(not missed, "who owes nothing since others were faster is surplus", missed)

    def over(self, number: int, error: Error | None, now_s: float) -> None:
        """A request has ended, or failed; the machine was told."""
        self.look(now_s)
        request = self.requests.pop(number, None)
        if request is None:
            return
        for position in request.owes:
            self.owers[position].remove(number)
        if error is not None and not isinstance(error, RetryableError):
            self.final = self.final or self._seen or error
            hold(self._machine.fatal is self.final, "a final error ends the epoch", error, self._machine.fatal)
        elif request.owes:
            self._struck.add(request.node)
            for part in {self._parts.at(position) for position in request.owes}:
                self.waits[part].tries += 1
                self.waits[part].failure = error
        self.balance()

    def divide(self, parts: Parts, now_s: float) -> None:
        """Who holds what has changed: where a holder was added the deadline begins anew, and nowhere else."""
        self.look(now_s)
        before, waits = self._parts, self.waits
        self._parts, self.waits = parts, [_Wait() for _ in parts.holders]
        self._lane_of = self._lanes()
        for position in self.owers:
            was, wait = waits[before.at(position)], self.waits[parts.at(position)]
            is_anew = not set(parts.everybody(parts.at(position))) <= set(before.everybody(before.at(position)))
            since_s = now_s if is_anew and was.since_s is not None else was.since_s
            known_s = [at_s for at_s in (since_s, wait.since_s) if at_s is not None]
            wait.since_s = min(known_s) if known_s else None
            wait.blocked_s = max(wait.blocked_s, 0.0 if is_anew else was.blocked_s)
            tries = 0 if since_s == now_s and is_anew else was.tries
            if tries > wait.tries:
                wait.tries, wait.failure = tries, was.failure
        for request in self.requests.values():
            if now_s - request.heard_s >= request.silent_s - _EPS_S:
                continue  # who is lost already stays lost
            others = any(self._sources_of(position) - {request.node} for position in request.owes)
            request.silent_s = self._silent_s if others else math.inf
        self.balance()

    def resume(self) -> None:
        if not self.requests:
            for wait in self.waits:
                wait.begin(None)

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
        """Compare the deadline; with a slack, it must have been noticed by then.

        A trainer without threads that asks now and then may come late to a part each time it tries.
        """
        self.look(now_s)
        fatal, deadline_s = self._machine.fatal, self._config.deadline_s
        if fatal is None:
            for wait in self.waits:
                if slack_s is not None and wait.since_s is not None:
                    more_s = 0.0 if len(self.waits) == 1 else _LATE_S * (wait.tries + 1)
                    waited_s = now_s - wait.since_s - wait.blocked_s
                    hold(waited_s <= deadline_s + slack_s + more_s, "a deadline is kept", waited_s, wait.tries)
            return
        if self.final is not None:
            hold(fatal is self.final, "a final error ends the epoch, that one", fatal, self.final)
            return
        if fatal is self._seen:
            return  # what fails afterwards changes nothing
        self._seen, self.seen_s = fatal, now_s
        hold(isinstance(fatal, UnavailableError), "a deadline is a typed error", fatal)
        waiting = {p: now_s - wait.since_s for p, wait in enumerate(self.waits) if wait.since_s is not None}
        hold(bool(waiting), "nobody is given up who owes nothing", fatal)
        late = [part for part, waited_s in waiting.items() if waited_s >= deadline_s - _EPS_S]
        hold(bool(late), "nobody is given up before the deadline", fatal, waiting)
        if len(self.waits) > 1:
            late = [part for part in late if f" from {self._called(part)}, " in str(fatal)]
            hold(bool(late), "the error names the holders of the part", fatal, waiting, self._parts)
        named = [part for part in late if self._is_named(self.waits[part], fatal)]
        hold(bool(named), "the last failure is named", fatal, [self.waits[part].failure for part in late])
        self.given_up = named[0]

    @staticmethod
    def _is_named(wait: _Wait, fatal: Error) -> bool:
        return not wait.tries or str(wait.failure or "ended") in str(fatal)

    def _called(self, part: int) -> str:
        return " and ".join(f"node {number}" for number in self._parts.everybody(part)) or "any node"
