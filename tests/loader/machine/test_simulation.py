"""The trainer's logic against everything that nodes, links and consumers do, in virtual time, by seeds.

A failure names its seed; `python -m tests.loader.machine.simulation SEED` tells its story.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from sophon.loader.machine.machine import Machine
from sophon.loader.machine.parts import Parts
from sophon.loader.machine.placement import Placement
from sophon.loader.machine.standing import Choice
from tests.loader.machine.simulation.content import Pictures
from tests.loader.machine.simulation.ledger import BrokenPromiseError
from tests.loader.machine.simulation.world import World

ROOT = Path(__file__).parents[3]
SEEDS, AT_ONCE = 200, 10
MANY, MANY_AT_ONCE = 20_000, 1_000


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
@pytest.mark.matrix(every=2)
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


@pytest.mark.slow
def test_the_worlds_are_as_wild_as_they_should_be():
    found = set()
    for seed in range(SEEDS):
        world = World(seed).run()
        found |= {event[2] for event in world.events}
        for trainer in world.trainers:
            found |= {f"{name}!" for name in ("seconds", "tries") if getattr(trainer.ledger, name)}
            found.add(type(trainer.outcome).__name__)
        found.add("resumed" if world.is_resumed else "whole")
        found.add(_division(world))
    assert found >= {"ask", "reply", "ended", "failed", "surplus", "replan", "batch", "seconds!", "tries!"}
    assert found >= {"NoneType", "ConfigError", "UnavailableError", "resumed", "whole"}
    assert found >= {
        "moved",
        "divided",
        "one node",
        "copies",
        "parts",
        "parts with copies",
        "parts of the fallback alone",
    }


def _division(world):
    sizes = {len(holders) for holders in world.holders}
    if len(world.holders) == 1:
        return "one node" if sizes == {1} else "copies"
    if 0 in sizes:
        return "parts of the fallback alone"
    return "parts" if sizes == {1} else "parts with copies"


def _run(machine_type, seeds=SEEDS, **more):
    for seed in range(seeds):
        World(seed, machine_type, **more).run()


# --- whether it would notice ------------------------------------------------------------------------------------------


class TakesSecondReplies(Machine):
    def reply(self, request, position, size_bytes, now_s):
        super().reply(request, position, size_bytes, now_s)
        return request in self._requests


class ForgetsWhatFailed(Machine):
    def failed(self, request, error, now_s):
        super().failed(request, error, now_s)
        for queue in self._queues:
            queue.clear()


class ForgetsOneOfThem(Machine):
    def failed(self, request, error, now_s):
        super().failed(request, error, now_s)
        for queue in self._queues:
            if len(queue) > 1:
                queue.pop()


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
        for wait in self._waits:
            wait.since_s = wait.since_s or 0.0


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
        return [*super().surplus(), *[n for n, r in self._requests.items() if r.positions and not r.is_hoped_for]]


# --- parts and their holders


class AsksAnybody(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        everybody = range(self._config.nodes)
        pick = self._standings.pick
        self._standings.pick = lambda now_s, _, full: pick(now_s, everybody, full)


class AsksForEverything(Machine):
    def _choose(self, _):
        return super()._choose(lambda _: True)


class HedgesAtStrangers(Machine):
    def _by_source(self, positions, pick):
        everybody = tuple(range(self._config.nodes))
        return super()._by_source(positions, lambda _: pick(everybody))


class LetsOneLaneHaveAll(Machine):
    def _full(self):
        return set(range(9)) if self._hoped_for >= self.max_requests else set()


class LetsOthersAnswerForAPart(Machine):
    def reply(self, request, position, size_bytes, now_s):
        wanted = super().reply(request, position, size_bytes, now_s)
        for wait in self._waits if wanted else ():
            wait.since_s = None if wait.since_s is None else now_s
        return wanted


class BlamesOthers(Machine):
    def check(self, now_s):
        parts = self._parts
        self._parts = Parts((*parts.holders[1:], parts.holders[0]), parts.of)
        try:
            super().check(now_s)
        finally:
            self._parts = parts


class ForgetsAPart(Machine):
    def _first(self, accepts):
        return super()._first(lambda part: part < 2 and accepts(part))


class FallsBackForEveryPart(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        standings, holders = self._standings, self._parts.holders
        falls_back = standings._falls_back
        standings._falls_back = lambda _: any(falls_back(its) for its in holders)
        pick = standings.pick

        def pick_fallback_first(now_s, its, full):
            choice = pick(now_s, its, full)
            fallback = Choice(self._config.nodes)
            falls = choice is not None and self._config.nodes not in full and standings._falls_back(its)
            return fallback if falls else choice

        standings.pick = pick_fallback_first


class WantsWhatItHasNoRoomFor(Machine):
    def _first(self, accepts):
        found = super()._first(accepts)
        if found is None and self.wanted < self.count:
            self._want()
        return found


class ForgetsWhatMoves(Machine):
    def divide(self, parts, now_s):
        super().divide(parts, now_s)
        for queue in self._queues:
            queue.clear()


class AsksWhoeverHeldIt(Machine):
    def divide(self, parts, now_s):
        pass


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (TakesSecondReplies, "every position is received exactly once"),
        (ForgetsWhatFailed, "nobody comes to the deadline|an epoch comes to its end|a deadline is kept"),
        (ForgetsOneOfThem, "nobody comes to the deadline|an epoch comes to its end|a deadline is kept"),
        (LetsSamplesComeLate, "nobody comes later than promised"),
        (SleepsThroughRetries, "nobody sleeps too long|a deadline is kept"),
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
        (AsksAnybody, "a request goes to a holder of all its positions"),
        (AsksForEverything, "a request goes to a holder of all its positions"),
        (HedgesAtStrangers, "a request goes to a holder of all its positions"),
        (LetsOneLaneHaveAll, "lanes share requests in proportion to their nodes"),
        (LetsOthersAnswerForAPart, "a deadline is kept"),
        (BlamesOthers, "the error names the holders of the part|the last failure is named"),
        (ForgetsAPart, "an epoch comes to its end|something comes of what happens"),
        (FallsBackForEveryPart, "the fallback is asked while every holder has failed"),
        (ForgetsWhatMoves, "nobody comes to the deadline|an epoch comes to its end|a deadline is kept"),
        (AsksWhoeverHeldIt, "a request goes to a holder of all its positions"),
        (WantsWhatItHasNoRoomFor, "bytes held stay within the buffer"),
    ],
)
def test_a_machine_that_breaks_a_promise_is_caught_by_it(broken, promise):
    with pytest.raises(BrokenPromiseError, match=promise):
        _run(broken)


# --- relays -----------------------------------------------------------------------------------------------------------

RELAY_SEEDS = 100


@pytest.mark.parametrize("first", range(0, RELAY_SEEDS, AT_ONCE))
@pytest.mark.matrix(every=2)
def test_nor_where_relays_stand_between_and_come_and_go(first):
    for seed in range(first, first + AT_ONCE):
        World(seed, has_relays=True).run()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(RELAY_SEEDS, RELAY_SEEDS + MANY, MANY_AT_ONCE))
def test_nor_in_many_more_worlds_with_relays(first):
    for seed in range(first, first + MANY_AT_ONCE):
        World(seed, has_relays=True).run()


def test_real_pictures_through_relays_have_the_bits_of_the_uncut_run_too():
    content = Pictures()
    for seed in range(10):
        World(seed, content=content, has_relays=True).run()


def test_worlds_with_relays_ask_all_of_them_and_stand_in_for_each_other():
    found = set()
    for seed in range(RELAY_SEEDS):
        world = World(seed, has_relays=True).run()
        found |= {("relay" if event[4] in world.relays else "node") for event in world.events if event[2] == "ask"}
        for trainer in world.trainers:
            parts = trainer.parts
            if parts.stand_ins:
                order = {sample: place for place, sample in enumerate(trainer.order)}
                assert len(order) == len(set(trainer.order))
                found |= {"two ways" for holders in parts.holders if set(holders) & set(world.relays)}
    assert found >= {"relay", "node", "two ways"}


class AsksStandInsAnyTime(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._standings.is_any_well = lambda _: False


class NeverAsksStandIns(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._standings.is_any_well = lambda _: True
        pick = self._standings.pick_instead
        self._standings.pick_instead = lambda than, now_s, holders: pick(than, now_s, holders[:1])


class AsksNodesInTheLaneOfRelays(Machine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._lanes = [tuple(range(self._config.nodes + 1))]


class ReroutesWhatIsAskedFor(Machine):
    def reroute(self, is_relayed):
        self._parts = self._parts.rerouted(is_relayed)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (AsksStandInsAnyTime, "a stand-in is asked only while no holder is well"),
        (NeverAsksStandIns, "a stand-in is asked while no holder is well"),
        (
            AsksNodesInTheLaneOfRelays,
            "lanes share requests in proportion to their nodes|bounded, but for one of each lane",
        ),
        (ReroutesWhatIsAskedFor, "samples that are already wanted keep their route"),
        (TakesSecondReplies, "every position is received exactly once"),
    ],
)
def test_a_machine_that_breaks_a_promise_about_relays_is_caught_by_it(broken, promise):
    with pytest.raises(BrokenPromiseError, match=promise):
        _run(broken, RELAY_SEEDS, has_relays=True)
