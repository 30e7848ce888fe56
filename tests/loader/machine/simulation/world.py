"""A world made from a seed: its sources, its trainers, and what must be true of every run.

Invariants 1 to 3 of the design: what the consumer gets are the bits of the uncut run, nothing is lost, repeated or
reordered, and a source may always do less than it was asked for. And these, beside what `ledger` checks at every step:

- While some holder of every part answers, or the fallback does, and a thread is left to ask it, an epoch comes to its
  end, and never to the deadline.
- Where nobody answers any more for a part, it comes to the deadline, half a second late at most (see `trainer`).
- All of that also where parts are added, moved or lost in the middle of an epoch.
- Whatever number of ranks goes on where others were interrupted, each sample comes once, but for padding; also if parts
  were divided otherwise, or moved to other nodes, meanwhile.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.codec.cut import RAW, Cut
from sophon.codec.route import Route
from sophon.errors import ConfigError, UnavailableError
from sophon.link.flight import SILENCE_S
from sophon.loader.machine.machine import Machine, MachineConfig
from sophon.loader.machine.parts import Parts
from sophon.loader.order.log import OrderLog
from sophon.loader.order.order import Order, epoch_order
from sophon.loader.order.ranks import Rank, each, share
from sophon.loader.order.state import Place, State
from sophon.loader.order.turns import Turns
from sophon.loader.sources.assignment import Assignment, within
from sophon.pipeline import Key
from tests.loader.machine.simulation.clock import Clock
from tests.loader.machine.simulation.content import Content, Numbers
from tests.loader.machine.simulation.ledger import BrokenPromiseError, hold
from tests.loader.machine.simulation.link import Wire
from tests.loader.machine.simulation.node import Manners, Mode, Relay, Source, Spell
from tests.loader.machine.simulation.trainer import Setup, Trainer

_MOST_STEPS = 60_000
_SAMPLE_BYTES = 200_000  # of a finished one


@dataclass
class _Pass:
    """What a trainer has to hand out: what is left of a rank's row, behind so many places."""

    row: Order
    left: Any
    places: int
    turns: Turns | None
    rank: int


class World:
    """One seeded run.

    Args:
        seed: Everything follows from it.
        machine_type: The machine, or one that is broken on purpose.
        content: What samples hold.
        has_relays: Whether there are relays, too.
    """

    def __init__(
        self,
        seed: int,
        machine_type: type[Machine] = Machine,
        content: Content | None = None,
        *,
        has_relays: bool = False,
    ) -> None:
        self.seed = seed
        self.random = r = random.Random(seed)
        self.clock = Clock()
        self.content = content or Numbers()
        self.events: list[tuple[Any, ...]] = []
        self.starved = 0
        self.trainers: list[Trainer] = []
        self._passes: dict[int, _Pass] = {}
        self._logs: dict[int, OrderLog] = {}
        self._machine_type = machine_type
        self.count = r.choice((1, r.randint(2, 20), r.randint(20, 120), r.randint(60, 250)))
        self.epoch = r.randrange(5)
        self.order = epoch_order(self.count, seed, self.epoch, shuffle=r.random() < 0.8)
        self.assignment = Assignment()
        self.max_delay = r.choice((None, None, None, 0, 1, 2, 5, 100))
        self.uneven = r.choice(("pad", "drop"))
        self.is_resumed = r.random() < 0.4
        self.fate = r.choices(("calm", "dead", "final", "wild", "orphan"), (6, 1.5, 1, 1.5, 0.7))[0]
        self.deadline_s = r.choice((6.0, 12.0, 60.0))
        self.workers = r.choice((0, 1, 2, 4, 4))
        nodes = r.choice((1, 1, 2, 3, 4))
        has_fallback = r.random() < 0.4
        if self.fate == "orphan":  # the holder of one part dies, and those of others answer slowly for a long time
            nodes, has_fallback, self.deadline_s = r.choice((2, 3)), False, 6.0
            self.count = max(self.count, 150)
            self.order = epoch_order(self.count, seed, self.epoch, shuffle=True)
        self.storage = nodes  # how many of the sources hold something themselves
        if has_relays:
            nodes += r.choice((1, 2, 2, 3))
        self.fallback = nodes if has_fallback else None
        self.good: set[int] = set()
        self.relays = {number: r.randrange(self.storage) for number in range(self.storage, nodes)}
        self.holders, self.part_of = self._divide(self.storage, has_fallback)
        self.sources = self._make_sources(nodes + has_fallback)
        self.config = MachineConfig(
            buffer_bytes=(10_000 if self.fate == "orphan" else r.choice((1, 3, 10, 40, 10_000))) * _SAMPLE_BYTES,
            deadline_s=self.deadline_s,
            max_requests=r.randint(1, 4),
            request_samples=r.choice((1, 3, 8, 64)),
            request_bytes=r.choice((2 * _SAMPLE_BYTES, 100 * _SAMPLE_BYTES)),
            max_delay=self.max_delay,
            nodes=nodes,
            has_fallback=has_fallback,
            hedge=r.choice((False, True, True, 0.1, 1.0)),
        )
        self.tell(0, "world", self.config, self.fate, self.count, self.workers, self.holders)
        for source in self.sources:
            self.tell(0, "source", source.number, source.spells, source.manners)
        self.replan()

    def parts_of(self, samples: Any) -> Parts:
        """Return who can answer for some samples."""
        samples = np.asarray(samples, np.int64)
        if not self.relays:
            return Parts(self.holders, self.part_of[samples])
        reached = [(*its, *(relay for relay, node in self.relays.items() if node in its)) for its in self.holders]
        is_relayed = self.assignment.are_relayed(samples)
        return Parts.among(reached, set(self.relays), self.part_of[samples].astype(np.uint16), is_relayed)

    def ways_of(self, samples: list[int]) -> list[Any]:
        """Return the cut, or the two cuts, that each of some samples is to have."""
        ways = zip(self.assignment.firsts_of(samples), self.assignment.of(samples), strict=True)
        return [cut if first is None else Route((first, cut)) for first, cut in ways]

    # --- made from the seed -------------------------------------------------------------------------------------------

    def _divide(self, nodes: int, has_fallback: bool) -> tuple[tuple[tuple[int, ...], ...], Any]:
        """Return who holds each part, and the part of each sample: copies, parts, or parts that have copies."""
        r = self.random
        if self.fate == "orphan":
            return tuple((node,) for node in range(nodes)), np.array([r.randrange(nodes) for _ in range(self.count)])
        parts = 1 if nodes == 1 or r.random() < 0.4 else r.choice((2, 2, 3, 5))
        if parts == 1:
            return (tuple(range(nodes)),), np.zeros(self.count, np.uint16)
        least = 0 if has_fallback and r.random() < 0.2 else 1
        holders = [set(r.sample(range(nodes), r.randint(least, r.choice((1, 1, nodes))))) for _ in range(parts)]
        for held in holders:
            if self.good and self.fallback not in self.good and not held & self.good:
                held.add(r.choice(sorted(self.good & set(range(nodes)))))  # parts were divided anew
        stripes = r.random() < 0.5
        part_of = [i * parts // self.count if stripes else r.randrange(parts) for i in range(self.count)]
        return tuple(tuple(sorted(held)) for held in holders), np.array(part_of, np.uint16)

    def _choose_good(self, count: int) -> None:
        """Choose who answers from `good_s` on in calm worlds: somebody for each part."""
        r = self.random
        self.good.add(r.randrange(count))
        for held in self.holders:
            if not self.good & {*held, self.fallback}:
                self.good.add(r.choice(held or (count - 1,)))  # who else than the fallback
        # Behind a relay that answers is a node that does.
        self.good |= {self.relays[number] for number in self.good if number in self.relays}

    def _make_sources(self, count: int) -> list[Source]:
        r = self.random
        self._choose_good(count)
        self.good_s = r.choice((0.0, 0.0, r.uniform(0, 20)))
        self.dead_s = r.uniform(0, 3)
        self.keepalive_s = self.deadline_s * r.uniform(0.02, 0.2)
        sources = []
        for number in range(count):
            is_good = self.fate == "calm" and number in self.good
            spells = self._make_spells(is_good, count)
            if self.fate == "orphan" and number == 0:
                spells = [Spell(self.dead_s, float("inf"), r.choice((Mode.REFUSING, Mode.GONE)))]
            told = (number, self.clock, self.content, r.randrange(1 << 62), spells, self._manners(is_good))
            relayed = self.relays.get(number)
            sources.append(Source(*told) if relayed is None else Relay(sources[relayed], *told))
        return sources

    def _manners(self, is_good: bool) -> Manners:
        r = self.random

        def sometimes(most: float) -> float:
            return r.uniform(0, most) if r.random() < 0.5 else 0.0

        common = {
            "first_s": r.choice((0.001, 0.02, 0.2)),
            "gap_s": r.choice((0.0005, 0.003, 0.05)),
            "shuffled": sometimes(1.0),
            "twice": sometimes(0.2),
            "late": sometimes(0.2),
            "small": sometimes(0.5),
        }
        if self.fate == "orphan":
            return Manners(first_s=0.02, gap_s=0.5)
        if is_good:
            return Manners(**common)
        return Manners(
            **common,
            tail=sometimes(0.1),
            tail_s=r.choice((0.1, 1.0)),
            short=sometimes(0.3),
            broken=sometimes(0.3),
            final=sometimes(0.3) if self.fate == "final" else 0.0,
            endless=sometimes(0.1) if self.workers else 0.0,
        )

    def _make_spells(self, is_good: bool, count: int) -> list[Spell]:
        r = self.random
        modes = [Mode.SMALL, Mode.REFUSING, Mode.GONE]
        if self.workers and (count > 1 or not is_good):
            # Who has one thread, or one source, waits for the transport to find out.
            modes += [Mode.MUTE, Mode.FROZEN]
        if self.fate == "orphan":
            return []  # but see `_make_sources`
        spells, start_s = [], r.choice((0.0, r.expovariate(1.0)))
        for _ in range(r.choice((0, 1, 2, 4))):
            end_s = start_s + r.expovariate(1 / r.choice((0.2, 2.0, 10.0)))
            spells.append(Spell(start_s, end_s, r.choice(modes)))
            start_s = end_s + r.expovariate(1.0)
        if is_good:
            return [s for s in spells if s.end_s <= self.good_s or s.mode is Mode.SMALL]
        if self.fate == "dead" or (self.fate == "calm" and r.random() < 0.5):
            last = r.choice([mode for mode in modes if mode is not Mode.SMALL])
            spells = [s for s in spells if s.end_s <= self.dead_s]
            spells.append(Spell(self.dead_s, float("inf"), last))
        return spells

    def _make_setup(self) -> Setup:
        r = self.random
        return Setup(
            config=self.config,
            batch_size=r.choice((1, 2, 4, 7, 16)),
            workers=self.workers,
            expected_bytes=_SAMPLE_BYTES,
            sizes_are_even=r.random() < 0.5,
            finish_s=r.choice((0.0005, 0.005, 0.05)),
            step_s=r.choice((0.0001, 0.01, 0.2)),
            pause=r.choice((0.0, 0.0, 0.2)),
            pause_s=r.choice((1.0, 2 * self.deadline_s)),
            wire=Wire(self.deadline_s, self.keepalive_s, min(SILENCE_S, self.deadline_s)),
            retunes=r.choice((0.0, 0.0, 0.05)) if self.workers else 0.0,
        )

    def replan(self) -> None:
        """Give the samples other cuts, within what trainer and nodes agree on."""
        r, cuts = self.random, self.content.cuts
        numbers = np.array([r.randrange(len(cuts)) for _ in range(self.count)], np.uint8)
        agreed = r.choice((cuts[-1].k, cuts[-1].k, 2, 0))
        firsts: tuple[Cut | None, ...] = ()
        if self.relays:  # each cut once from a node itself, and once through a relay
            behind = [r.choice([first for first in cuts if self.content.can_follow(first, cut)]) for cut in cuts]
            cuts, firsts = (*cuts, *cuts), (*[None] * len(cuts), *behind)
            numbers = np.array([r.randrange(len(cuts)) for _ in range(self.count)], np.uint8)
        planned = Assignment(cuts, numbers, firsts) if r.random() < 0.8 else Assignment((RAW,))
        self.assignment = within(planned, agreed)
        for trainer in self.trainers:
            trainer.reroute()

    # --- the run ------------------------------------------------------------------------------------------------------

    def tell(self, who: int, *what: Any) -> None:
        """Take note of something that happened."""
        self.events.append((self.clock.now_s, who, *what))

    @property
    def trace(self) -> str:
        """A digest of everything that happened, and when."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()

    def run(self) -> "World":
        """Run the epoch; in two parts, if it is interrupted."""
        try:
            self._run()
        except BrokenPromiseError as error:
            error.add_note(f"seed {self.seed}: python -m tests.loader.machine.simulation {self.seed}")
            raise
        return self

    def _run(self) -> None:
        r = self.random
        size = r.choice((1, 1, 2, 3, 4))
        stop = None
        self._setup = self._make_setup()
        if self.is_resumed:
            steps = -(-each(self.count, Rank(0, size), self.uneven) // self._setup.batch_size)
            stop = r.randint(0, steps)
        places = [Place() for _ in range(size)]
        for place in places:
            place.set_epoch(self.epoch)
        first = self._part(places, size, stop)
        if any(trainer.outcome for trainer in first):
            return
        delivered = [sample for trainer in first for batch in trainer.batches for sample, _ in batch]
        self._check_shares(delivered if stop is None else None, 0, size)
        if stop is None:
            return
        states = [self._state(place).to_dict() for place in places]
        if self.max_delay is None or stop in (0, steps):
            hold(all(state == states[0] for state in states), "the state is the same on all ranks", states)
        saved = [State.from_dict(json.loads(json.dumps(state))) for state in states]
        saved[0].require(self._state(places[0]))
        over = saved[0].epoch != self.epoch
        hold(over == (stop >= steps), "an epoch is over with its last batch", states[0], stop, steps)
        used = min(stop * self._setup.batch_size * size, self.count)
        if over:
            return
        hold(saved[0].cursor == used, "the cursor is what is used up", saved[0].cursor, used)
        if self.max_delay is None:
            hold(sorted(delivered) == sorted(self.order[:used].tolist()), "what is used up was handed out", stop)
            size = r.choice((1, 2, 3, 4))
            saved = [saved[0]] * size
            self._setup = self._make_setup()
        if r.random() < 0.5:
            self.holders, self.part_of = self._divide(self.storage, self.config.has_fallback)
            self.tell(0, "moved", self.holders)
        left = each(self.count - used, Rank(0, size), self.uneven)
        places = [Place() for _ in range(size)]
        for rank, (place, state) in enumerate(zip(places, saved, strict=True)):
            turns = None if state.turns is None else Turns.from_dict(state.turns, state.cursor, Rank(rank, size))
            place.load(state.epoch, state.cursor, left == 0, turns)
        if left == 0:
            return
        second = self._part(places, size, None)
        if any(trainer.outcome for trainer in second):
            return
        delivered += [sample for trainer in second for batch in trainer.batches for sample, _ in batch]
        self._check_shares(delivered, used if self.max_delay is None else 0, size)

    def _state(self, place: Place) -> State:
        turns = None if place.at[2] is None else place.at[2].to_dict()
        return State(self.seed, place.epoch, place.cursor, self.count, True, "data", "pipeline", turns=turns)

    def _part(self, places: list[Place], size: int, stop: int | None) -> list[Trainer]:
        """Run all ranks to their end, or until they have handed out so many batches."""
        start_s = self.clock.now_s
        self._places: dict[int, Place] = {}
        trainers: list[Trainer] = []
        for rank, place in enumerate(places):
            epoch, cursor, turns = place.begin()
            if turns is None and self.max_delay is not None:
                turns = Turns(Rank(rank, size), cursor)
            row = share(self.order, cursor if turns is None else turns.begun, Rank(rank, size), self.uneven)
            self._check_share(row, cursor if turns is None else turns.begun, rank, size)
            left, latest = np.arange(len(row)), None
            if turns is not None and self.max_delay is not None:
                left = turns.left(len(row))
                latest = turns.latest(left, self._setup.batch_size, self.max_delay)
            name = len(self.trainers) + len(trainers) + 1
            self._passes[name] = _Pass(row, left, 0 if turns is None else turns.places, turns, rank)
            mine = row[left]
            parts = self.parts_of(mine)
            trainer = Trainer(name, self._setup, mine, self.seed, epoch, self, self._machine_type, stop, latest, parts)
            self._places[trainer.name] = place
            trainers.append(trainer)
        self.trainers += trainers
        moves = self.random.choice((0, 0, 0, 1, 1, 3)) if self.fate != "orphan" else 0
        for _ in range(moves):
            self.clock.after(self.random.expovariate(1.0), self._redivide)
        last_s = self._last_s(start_s, trainers)
        while not all(trainer.is_over for trainer in trainers):
            hold(self.clock.steps < _MOST_STEPS, "something comes of what happens")
            hold(self.clock.now_s <= last_s, "an epoch comes to its end", last_s)
            self.clock.step()
        for trainer, place in zip(trainers, places, strict=True):
            self._check_end(trainer)
            if trainer.outcome is None and len(trainer.batches) == trainer.machine.batches:
                place.end(self.epoch)
        return trainers

    def _redivide(self) -> None:
        """Have other nodes hold the samples from now on, while all ranks are at work; also those that went on."""
        self.holders, self.part_of = self._divide(self.storage, self.config.has_fallback)
        self.tell(0, "divided", self.holders)
        for trainer in self.trainers:
            its = self._passes[trainer.name]
            trainer.divide(self.parts_of(its.row[its.left]))

    def moved(self, trainer: Trainer, positions: list[int]) -> None:
        """A trainer has handed out a batch: the loader's own reckoning of its place."""
        place, size, its = self._places[trainer.name], len(self._places), self._passes[trainer.name]
        cursor = min(place.cursor + trainer.setup.batch_size * size, self.count)
        if its.turns is not None:
            is_over = each(self.count - cursor, Rank(0, size), self.uneven) == 0
            its.turns = None if is_over else its.turns.after(its.left[positions])
        place.move(self.epoch, cursor, its.turns)

    def _last_s(self, start_s: float, trainers: list[Trainer]) -> float:
        """Return when an epoch must be over, generously: the consumer's time, and seconds for every request."""
        setup = trainers[0].setup
        steps = max(trainer.machine.batches for trainer in trainers)
        consumer_s = steps * (1.5 * setup.step_s + setup.pause_s)
        work_s = self.count * (60 * setup.finish_s + 1.0)
        bad_s = max([s.end_s for source in self.sources for s in source.spells if s.end_s < float("inf")], default=0.0)
        return max(start_s, self.good_s, bad_s) + consumer_s + work_s + 20 * self.deadline_s

    # --- what must be true --------------------------------------------------------------------------------------------

    def _check_end(self, trainer: Trainer) -> None:
        found = [pair for batch in trainer.batches for pair in batch]
        for sample, value in found:
            hold(value == self.content.whole(Key(self.seed, self.epoch, sample)), "the bits are the same", sample)
        samples = [sample for sample, _ in found]
        machine = trainer.machine
        positions = machine.taken_positions().tolist()
        hold(samples == [trainer.order[p] for p in positions], "batches hold what the machine says", samples)
        if self.max_delay is None:
            hold(samples == trainer.order[: len(samples)], "nothing is lost, repeated or reordered", samples)
        else:
            hold(len(set(positions)) == len(positions), "nothing is repeated", positions)
            size = trainer.setup.batch_size
            its = self._passes[trainer.name]
            placed = enumerate(its.left[positions].tolist(), its.places) if positions else ()
            late = [(p, at) for at, p in placed if at // size - p // size > self.max_delay]
            hold(not late, "nobody comes later than promised", late)
        self._check_log(trainer, positions)
        if trainer.outcome is None:
            if len(trainer.batches) == machine.batches:
                hold(len(samples) == len(trainer.order), "nothing is lost", len(samples))
                hold(machine.held_bytes == 0, "nothing is held in the end", machine.held_bytes)
            return
        self._check_outcome(trainer)

    def _check_outcome(self, trainer: Trainer) -> None:
        outcome, now_s = trainer.outcome, trainer.ledger.seen_s
        if isinstance(outcome, ConfigError):
            hold(outcome is trainer.ledger.final, "a final error ends the epoch, that one", outcome)
            return
        hold(isinstance(outcome, UnavailableError), "an epoch ends by a typed error", outcome)
        part = trainer.ledger.given_up
        hold(part is not None, "nobody is given up who owes nothing", outcome)
        assert part is not None
        since_s = trainer.ledger.waits[part].since_s
        if self._was_starved(trainer, part):
            self.starved += 1
            return
        able = {*trainer.parts.everybody(part), self.fallback}
        good = [s.number for s in self.sources if s.number in able and s.is_good_from(since_s or 0.0)]
        hold(not good, "while a source answers nobody comes to the deadline", outcome, since_s, now_s, good)

    def _was_starved(self, trainer: Trainer, part: int) -> bool:
        """Return whether the one thread there is was not left to try every source: a call may hang."""
        ledger = trainer.ledger
        if trainer.setup.workers:
            return False
        # One thread: each node may hold it up twice before the fallback is asked.
        able, since_s = {*trainer.parts.everybody(part), self.fallback}, ledger.waits[part].since_s or 0.0
        asked = sum(at_s >= since_s and who in able for at_s, who in trainer.asked_s)
        return asked <= 2 * len(trainer.parts.everybody(part)) + 1

    def _check_log(self, trainer: Trainer, positions: list[int]) -> None:
        """A rank's log, over both parts, gives the batches that it handed out."""
        if self.max_delay is None or not positions:
            return
        its = self._passes[trainer.name]
        log = self._logs.setdefault(its.rank, OrderLog("data", trainer.setup.batch_size))
        log.record(self.epoch, its.row, its.left[positions], begun=0, start=its.places)
        mine = [t for t in self.trainers if self._passes[t.name].rank == its.rank]
        handed = [sample for t in mine for batch in t.batches for sample, _ in batch]
        again = log.replay(self.epoch, its.row).tolist()
        hold(again[: len(handed)] == handed, "a replay has the same batches", again)
        hold(sorted(again) == sorted(its.row.tolist()), "a replay has all samples", again)

    def _check_share(self, order: Order, cursor: int, rank: int, size: int) -> None:
        """A rank has every so-many-th sample behind the cursor, and begins anew at the end of the order to fill up."""
        left = self.count - cursor
        mine = left // size if self.uneven == "drop" else -(-left // size)
        expected = [int(self.order[(cursor + rank + i * size) % self.count]) for i in range(mine)]
        hold(order.tolist() == expected, "a rank has its share", rank, size)

    def _check_shares(self, delivered: list[int] | None, cursor: int, size: int) -> None:
        """Over all ranks and parts every sample comes once; but some twice, or not, by the rules for uneven ones."""
        if delivered is None:
            return
        over = (self.count - cursor) % size
        expected = self.order.tolist()
        if over and self.uneven == "pad":
            expected += [int(self.order[i % self.count]) for i in range(size - over)]
        elif over:
            expected = expected[: self.count - over]
        hold(sorted(delivered) == sorted(expected), "every sample of the epoch comes once", delivered)
