"""The trainer's logic against everything that nodes, links and consumers do, in virtual time, by seeds.

A failure names its seed; `python -m tests.loader.machine.simulation SEED` tells its story.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from sophon.loader.machine.machine import Machine
from sophon.loader.machine.placement import Placement
from tests.loader.machine.simulation.content import Pictures
from tests.loader.machine.simulation.ledger import BrokenPromiseError
from tests.loader.machine.simulation.world import World

ROOT = Path(__file__).parents[3]
SEEDS, AT_ONCE = 200, 10
MANY, MANY_AT_ONCE = 20_000, 1_000


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_nothing_is_lost_repeated_reordered_or_changed_and_deadlines_are_kept(first):
    for seed in range(first, first + AT_ONCE):
        World(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + MANY, MANY_AT_ONCE))
def test_nor_in_many_more_worlds(first):
    for seed in range(first, first + MANY_AT_ONCE):
        World(seed).run()


def test_real_pictures_through_a_real_pipeline_have_the_bits_of_the_uncut_run_too():
    content = Pictures()
    for seed in range(20):
        World(seed, content=content).run()


def test_a_seed_is_a_whole_story():
    traces = [World(seed).run().trace for seed in range(20)]
    assert [World(seed).run().trace for seed in range(20)] == traces
    assert len(set(traces)) == 20
    told = subprocess.run(  # in a process of its own, where strings have other hashes
        [sys.executable, "-m", "tests.loader.machine.simulation", "7"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout
    assert told.splitlines()[-1] == f"trace {traces[7]}"


def test_the_worlds_are_as_wild_as_they_should_be():
    found = set()
    for seed in range(SEEDS):
        world = World(seed).run()
        found |= {event[2] for event in world.events}
        for trainer in world.trainers:
            found |= {f"{name}!" for name in ("seconds", "tries") if getattr(trainer.ledger, name)}
            found.add(type(trainer.outcome).__name__)
        found.add("resumed" if world.is_resumed else "whole")
    assert found >= {"ask", "reply", "ended", "failed", "surplus", "replan", "batch", "seconds!", "tries!"}
    assert found >= {"NoneType", "ConfigError", "UnavailableError", "resumed", "whole"}


def _run(machine_type):
    for seed in range(SEEDS):
        World(seed, machine_type).run()


# --- whether it would notice ------------------------------------------------------------------------------------------


class TakesSecondReplies(Machine):
    def reply(self, request, position, size_bytes, now_s):
        super().reply(request, position, size_bytes, now_s)
        return request in self._requests


class ForgetsWhatFailed(Machine):
    def failed(self, request, error, now_s):
        super().failed(request, error, now_s)
        self._again.clear()


class ForgetsOneOfThem(Machine):
    def failed(self, request, error, now_s):
        super().failed(request, error, now_s)
        if len(self._again) > 1:
            self._again.pop()


class LetsSamplesComeLate(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self._placement is not None:
            self._placement = _AnyPlace(self.count, self.batch_size, self._config.max_delay)


class _AnyPlace(Placement):
    def _may_have_next(self, _):
        return True


class SleepsThroughRetries(Machine):
    def wait_s(self, _):
        return 1.0


class SleepsALittleTooLong(Machine):
    def wait_s(self, now_s):
        return super().wait_s(now_s) + 0.02


class AsksTwiceWithoutBound(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._patience.may_ask_twice = lambda _: True


class AsksEverybody(Machine):
    def _repeat(self, request, now_s):
        owed = sorted(request.positions)
        return self._send(owed, request.source, now_s, True) if self._patience.may_ask_twice(len(owed)) else None


class NeverGivesUp(Machine):
    def check(self, now_s):
        pass


class GivesUpEarly(Machine):
    def check(self, now_s):
        super().check(now_s + 0.5)


class GivesUpOnTheConsumer(Machine):
    def _drop(self, request):
        super()._drop(request)
        self._waiting_since_s = self._waiting_since_s or 0.0


class WaitsForWhoIsLost(Machine):
    def _replace(self, *_):
        return None


class HoldsTooMuch(Machine):
    def _room_for(self, position):
        return super()._room_for(position) or self.held_bytes < 1.1 * self._config.buffer_bytes


class ForgetsToRelease(Machine):
    def take(self):
        held_bytes = self.held_bytes
        batch = super().take()
        self.held_bytes = held_bytes if batch == 1 else self.held_bytes
        return batch


class HandsOutTooEarly(Machine):
    def put(self, place):
        super().put(place)
        if self._placement is None and self._next_ready < self.batches and self._unfilled[self._next_ready] == 1:
            self._next_ready += 1


class SwallowsFinalErrors(Machine):
    def failed(self, request, error, now_s):
        super().failed(request, error, now_s)
        self.fatal = None


class KeepsWhatIsSurplus(Machine):
    def surplus(self):
        super().surplus()
        return []


class CancelsWhatIsOwed(Machine):
    def surplus(self):
        return [*super().surplus(), *[n for n, r in self._requests.items() if r.is_hedged and r.positions]]


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (TakesSecondReplies, "every position is received exactly once"),
        (ForgetsWhatFailed, "nobody comes to the deadline|an epoch comes to its end"),
        (ForgetsOneOfThem, "nobody comes to the deadline|an epoch comes to its end"),
        (LetsSamplesComeLate, "nobody comes later than promised"),
        (SleepsThroughRetries, "nobody sleeps too long"),
        (SleepsALittleTooLong, "nobody sleeps too long"),
        (AsksTwiceWithoutBound, "second requests are a tenth of all"),
        (AsksEverybody, "owed by at most two requests"),
        (NeverGivesUp, "a deadline is kept"),
        (GivesUpEarly, "nobody is given up before the deadline"),
        (GivesUpOnTheConsumer, "nobody is given up"),
        (WaitsForWhoIsLost, "nobody comes to the deadline"),
        (HoldsTooMuch, "bytes held stay within the buffer"),
        (ForgetsToRelease, "bytes held are those of what was asked for and not taken"),
        (HandsOutTooEarly, "a batch is whole"),
        (SwallowsFinalErrors, "a final error ends the epoch"),
        (KeepsWhatIsSurplus, "who owes nothing since others were faster is surplus"),
        (CancelsWhatIsOwed, "surplus owes nothing"),
    ],
)
def test_a_machine_that_breaks_a_promise_is_caught_by_it(broken, promise):
    with pytest.raises(BrokenPromiseError, match=promise):
        _run(broken)
