"""A trainer: drives the real machine as `engine` does, with virtual threads.

It is woken by what wakes the engine's threads, and by nothing else:

- a fetching thread that has nothing to ask for, by the end of a request, a batch that becomes ready or is taken, or
  after `wait_s`; one that reads a stream, by that stream alone;
- the consumer, which waits for a batch, by a batch that becomes ready, or every half second, when it looks at the
  deadline (`CHECK_S`).

With no workers there is one thread, the consumer's: it asks, reads to the end of the stream, finishes, and looks for
something to ask for every 50 ms (`POLL_S`).
"""

import copy
import heapq
import math
import random
from dataclasses import dataclass
from typing import Any

from sophon.errors import Error
from sophon.loader.machine.machine import Ask, Machine, MachineConfig
from sophon.loader.machine.parts import Parts
from sophon.loader.order.order import Order
from sophon.loader.planning.clocks import LinkClock
from sophon.loader.planning.replanning import Replanning, moved
from sophon.pipeline import Key
from sophon.plan.resources import Resources
from tests.loader.machine.simulation.clock import Clock
from tests.loader.machine.simulation.content import Content
from tests.loader.machine.simulation.ledger import Ledger, hold
from tests.loader.machine.simulation.link import Answer, Stream, Wire
from tests.loader.machine.simulation.node import Source

CHECK_S = 0.5  # between two looks of a consumer that waits
POLL_S = 0.05  # between two questions of a trainer without workers
_GRAIN_S = 2e-3  # a nap is never shorter than half of it, so it may be too long by as much
_STRAY = 0.02  # of the replies are followed by one that nobody asked for
_PROBED = 0.1  # of the times that everybody sleeps it is checked that nobody sleeps too long


@dataclass(frozen=True)
class Setup:
    """What one trainer is told; the same for all ranks of a world but for the order."""

    config: MachineConfig
    batch_size: int
    workers: int
    expected_bytes: int
    sizes_are_even: bool
    finish_s: float  # mean; a few samples take far longer
    step_s: float  # mean, of the consumer
    pause: float  # how likely it pauses after a step
    pause_s: float
    wire: Wire
    retunes: float  # how likely a finished sample changes the setting


class Trainer:
    """One rank's pass over its part of an epoch."""

    def __init__(
        self,
        name: int,
        setup: Setup,
        order: Order,
        seed: int,
        epoch: int,
        world: Any,
        machine_type: type[Machine] = Machine,
        stop_after: int | None = None,
        latest: Any = None,
        parts: Parts | None = None,
    ) -> None:
        self.setup = setup
        self.name = name
        self.order = order.tolist()
        self.batches: list[list[Any]] = []  # what the consumer got: (sample, value)
        self.outcome: Error | None = None
        self.is_over = False
        self.replans = 0
        self.asked_s: list[tuple[float, int]] = []  # when, and whom
        self._seed, self._epoch = seed, epoch
        self._world = world
        self._clock: Clock = world.clock
        self._sources: list[Source] = world.sources
        self._content: Content = world.content
        self._random = world.random
        self._stop_after = stop_after
        self.parts = parts or Parts.copies(setup.config.nodes)
        now_s = self._clock.now_s
        self.machine = machine_type(
            len(order), setup.batch_size, setup.config, setup.expected_bytes, now_s, seed, latest=latest, parts=parts
        )
        self.ledger = Ledger(
            self.machine, setup.config, setup.expected_bytes, setup.sizes_are_even, self.parts, setup.workers > 0
        )
        self._asks: dict[int, Ask] = {}
        self._streams: dict[int, Stream] = {}
        self._received: list[tuple[float, int, Answer]] = []
        self._busy = 0
        self._made: dict[int, Any] = {}
        self._places: dict[int, list[Any]] = {}
        self._poke = self._sleep = self._look = 0  # only the latest counts
        self._is_poked = self._is_pausing = False
        self._link = LinkClock(cores=2.0)
        self._replanning = Replanning()
        self._replanning.settle(self._clock.now_s)
        self._planned = Resources(1e6, 2.0, 1.0)
        self._begin()

    def tell(self, *what: Any) -> None:
        self._world.tell(self.name, *what)

    def _begin(self) -> None:
        if not self.order or self._stop_after == 0:
            self._close(None)
            return
        if self.setup.workers:
            self._notify()
        self._wait()

    # --- the consumer -------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._is_pausing = False
        if not self.setup.workers:
            self.machine.resume()
            self.ledger.resume()
        self._check()

    def _check(self) -> None:
        """Take the next batch if it is there; give up if the machine does; else wait on."""
        if self.is_over or self._is_pausing:
            return
        now_s = self._clock.now_s
        self._look += 1
        if self.machine.ready > self.machine.taken:
            self._take()
            return
        self.machine.check(now_s)
        # A trainer without workers that reads a stream is woken by that stream alone.
        reads = not self.setup.workers and self._streams
        self.ledger.check(now_s, None if reads else CHECK_S + 1e-9)
        if self.machine.fatal is not None:
            self._close(self.machine.fatal)
            return
        if self.setup.workers:
            self._clock.after(CHECK_S, self._check_again, self._look)
        elif not self._streams:
            ask = self._asked(now_s)
            if self.machine.fatal is not None:
                self._close(self.machine.fatal)
            elif ask is not None:
                self._send(ask)
            else:
                self._clock.after(min(POLL_S, self._wait_s()), self._check_again, self._look)

    def _check_again(self, look: int) -> None:
        if look == self._look:
            self._check()

    def _take(self) -> None:
        machine, setup, r = self.machine, self.setup, self._random
        batch = machine.taken
        places = range(batch * setup.batch_size, min((batch + 1) * setup.batch_size, machine.count))
        found = self._places.pop(batch, [])
        hold(len(found) == len(places) and None not in found, "a batch is whole", batch)
        hold(batch == len(self.batches) == machine.take(), "batches become ready in order", batch)
        positions = [machine.position_at(place) for place in places]
        self.ledger.taken(positions)
        self.batches.append(found)
        self.tell("batch", batch, tuple(positions))
        self._world.moved(self, positions)
        if len(self.batches) in (machine.batches, self._stop_after):
            self._close(None)
            return
        self._notify()
        self._is_pausing = True
        pause_s = setup.step_s * r.uniform(0.5, 1.5)
        if r.random() < setup.pause:
            pause_s += setup.pause_s
        self._clock.after(pause_s, self._wait)

    def _close(self, outcome: Error | None) -> None:
        self.is_over, self.outcome = True, outcome
        self.tell("over", str(outcome))
        for stream in list(self._streams.values()):
            stream.cancel()

    # --- the fetching threads -----------------------------------------------------------------------------------------

    @property
    def _threads(self) -> int:
        if not self.setup.workers:
            return 1
        return self.machine.calls

    def _notify(self) -> None:
        """Wake everybody who waits."""
        if self.setup.workers and not self._is_poked:
            self._is_poked = True
            self._clock.after(self._random.uniform(0.0, 0.001), self._woken)

    def _woken(self) -> None:
        self._is_poked = False
        if not self.is_over:
            self._pump()
            self._check()

    def _pump(self) -> None:
        now_s = self._clock.now_s
        while len(self._streams) < self._threads:
            ask = self._asked(now_s)
            self.ledger.check(now_s)
            if self.machine.fatal is not None:
                self._check()  # the consumer is woken; the other threads have nothing to do any more
                return
            if ask is None:
                self._nap(now_s)
                return
            self._send(ask)

    def _asked(self, now_s: float) -> Ask | None:
        ask = self.machine.ask(now_s)
        self.ledger.wanted()
        if ask is None and self.machine.fatal is None:
            self.ledger.nobody(now_s)
        return ask

    def _nap(self, now_s: float) -> None:
        self._sleep += 1
        wait_s = self._wait_s()
        self._clock.after(wait_s, self._wake, self._sleep)
        # Until something happens, or the nap is over, nobody would have been asked: otherwise it was slept through.
        nap_s = min(self._clock.next_s - now_s, wait_s) - _GRAIN_S
        if nap_s > 0 and self._random.random() < _PROBED:
            early = self._copy().ask(now_s + nap_s)
            hold(early is None, "nobody sleeps too long", now_s, wait_s, nap_s, early)

    def _copy(self) -> Machine:
        jitter = self.machine._standings._random  # long to copy, and of no matter
        return copy.deepcopy(self.machine, {id(jitter): random.Random(0)})

    def _wait_s(self) -> float:
        wait_s = self.machine.wait_s(self._clock.now_s)
        hold(math.isfinite(wait_s) and wait_s > 0, "it makes sense to wait", wait_s)
        return wait_s

    def _wake(self, sleep: int) -> None:
        if sleep == self._sleep and not self.is_over and not self._is_poked:
            self._pump()

    def _send(self, ask: Ask) -> None:
        now_s = self._clock.now_s
        self.ledger.ask(ask, now_s)
        self.asked_s.append((now_s, ask.source))
        self.tell("ask", ask.request, ask.source, ask.positions)
        samples = [self.order[position] for position in ask.positions]
        cuts = self._world.ways_of(samples)
        self._asks[ask.request] = ask
        self._link.began(ask.request, now_s)
        keys = [Key(self._seed, self._epoch, sample) for sample in samples]
        source = self._sources[ask.source]
        self._streams[ask.request] = Stream(ask.request, keys, cuts, source, self.setup.wire, self._clock, self)

    def got(self, request: int, answer: Answer) -> None:
        """A reply has come, maybe to a request that is long over."""
        if self.is_over:
            return
        now_s = self._clock.now_s
        position = self._asks[request].positions[answer.index]
        wanted = self.machine.reply(request, position, answer.size_bytes, now_s)
        self.tell("reply", request, position, wanted)
        self.ledger.reply(request, position, answer.size_bytes, wanted, now_s)
        if self._random.random() < _STRAY:
            self._stray(request, now_s)
        self._cancel()
        if not wanted:
            return
        self._link.got(request, answer.size_bytes, answer.cpu_s, answer.computing_s, now_s)
        self._replan(now_s)
        if self.setup.workers:
            heapq.heappush(self._received, (position - self._random.choice((0, 0, 0, 3)), position, answer))
            self._work()
        else:
            self._finish(position, answer)

    def _stray(self, request: int, now_s: float) -> None:
        """A reply for what its request did not ask for, maybe for what there is not."""
        position = self._random.randint(-1, len(self.order))
        if position not in self._asks[request].positions:
            wanted = self.machine.reply(request, position, 1, now_s)
            self.ledger.reply(request, position, 1, wanted, now_s)

    def over(self, request: int, error: Error | None) -> None:
        """A stream has come to its end."""
        del self._streams[request]
        if self.is_over:
            return
        now_s = self._clock.now_s
        self.tell("ended" if error is None else "failed", request, str(error))
        if error is None:
            self.machine.ended(request, now_s)
        else:
            self.machine.failed(request, error, now_s)
        self.ledger.over(request, error, now_s)
        self.ledger.check(now_s)
        self._link.ended(request, now_s)
        if self.setup.workers:
            self._notify()
        else:
            self._check()

    def divide(self, parts: Parts) -> None:
        """Parts were added, moved or lost."""
        if self.is_over or self.machine.fatal is not None:
            return
        now_s = self._clock.now_s
        self.machine.divide(parts, now_s)
        self.ledger.divide(parts, now_s)
        self.parts = parts
        self._notify()

    def _cancel(self) -> None:
        found = self.machine.surplus()
        self.ledger.surplus(found)
        for request in found:
            self.tell("surplus", request)
            if request in self._streams:
                self._streams[request].cancel()

    # --- the workers --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._received and self._busy < self.setup.workers and not self.is_over:
            _, position, answer = heapq.heappop(self._received)
            self._busy += 1
            r = self._random
            finish_s = self.setup.finish_s * (r.uniform(0.2, 2.0) if r.random() < 0.95 else 40.0)
            self._clock.after(finish_s, self._worked, position, answer)

    def _worked(self, position: int, answer: Answer) -> None:
        self._busy -= 1
        if not self.is_over:
            self._finish(position, answer)
            self._work()

    def _finish(self, position: int, answer: Answer) -> None:
        sample, setup = self.order[position], self.setup
        key = Key(self._seed, self._epoch, sample)
        self._made[position] = (sample, self._content.finish(key, answer.cut, answer.payload))
        size_bytes = setup.expected_bytes
        if not setup.sizes_are_even:
            size_bytes = int(size_bytes * self._random.uniform(0.5, 2.0))
        placed = self.machine.finished(position, size_bytes)
        self.ledger.finished(position, size_bytes)
        for who, place in placed:
            if setup.workers:
                self._clock.after(self._random.uniform(0.0, 0.002), self._put, place, self._made.pop(who))
            else:
                self._put(place, self._made.pop(who))
        if self._random.random() < setup.retunes:
            self.machine.max_requests = self._random.randint(1, 4)
            self.machine.ahead_bytes = int(setup.config.buffer_bytes * self._random.uniform(0.3, 1.5))
            self._notify()

    def _put(self, place: int, made: Any) -> None:
        if self.is_over:
            return
        batch, slot = divmod(place, self.setup.batch_size)
        size = min(self.setup.batch_size, self.machine.count - batch * self.setup.batch_size)
        seats = self._places.setdefault(batch, [None] * size)
        hold(seats[slot] is None, "every place gets one sample", place)
        seats[slot] = made
        ready = self.machine.ready
        self.machine.put(place)
        if self.machine.ready != ready:
            self._notify()

    def reroute(self) -> None:
        """The plan has changed, and with it who is asked for what."""
        parts = self._world.parts_of(self.order)
        if parts.stand_ins and not self.is_over:
            self.machine.reroute(self._world.assignment.are_relayed(self.order))
            self.ledger.reroute(parts.of)

    # --- planning anew ------------------------------------------------------------------------------------------------

    def _replan(self, now_s: float) -> None:
        speed, cores = self._link.link_bytes_per_s, self._link.storage_cores
        for found in (speed, cores):
            hold(found is None or (math.isfinite(found) and found > 0), "clocks are finite and above nothing", found)
        if self._replanning.is_due(now_s):
            self._replanning.looked(now_s)
            seen = Resources(speed or 1e9, cores, 1.0)
            if moved(seen, self._planned):
                self._replanning.settle(now_s)
                self._planned = seen
                self.replans += 1
                self._world.replan()
                self.tell("replan", round(seen.link_bytes_per_s), round(seen.storage_cores, 3))
