"""A running epoch: fetches and finishes samples and delivers batches, as the machine decides.

Concurrency: fetching threads send requests and take replies (`sources.driver`). Finishing threads finish samples,
starting with the most urgent ones, and make a batch as soon as its last sample is in it; each does the work itself or
lets a worker process do it (`finishers`). The consumer's thread takes batches. All of them call the machine under one
lock and do slow work outside it. With a tuner, the number of threads changes during the epoch. Without finishing
threads everything happens in the consumer's thread. Nothing outlives `close` except a request to a node that has just
fallen silent, which ends within `link.flight.SILENCE_S`. `leaving` handles an epoch that is never closed.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import BatchTimeoutError, Error, OpError, WorkerError, forget_values
from sophon.link.wire import Reply
from sophon.loader.account.stats import Stats
from sophon.loader.epoch import leaving
from sophon.loader.epoch.batch import EMPTY, Batch
from sophon.loader.epoch.collate import pinned
from sophon.loader.epoch.costs import Costs
from sophon.loader.epoch.device import Device, Sent
from sophon.loader.epoch.finishers import Finisher, Finishers
from sophon.loader.epoch.finishing import Finishing, Layout, Made
from sophon.loader.epoch.mending import Mending
from sophon.loader.machine.gauge import Gauge
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.machine.tuner import Setting, Tuner
from sophon.loader.order.order import Order
from sophon.loader.planning.planner import Planner
from sophon.loader.sources.driver import Driver
from sophon.loader.sources.samples import Samples, Watcher
from sophon.pipeline import Key
from sophon.process.crew import Crew
from sophon.process.renewal import renew_after_fork

_FINISH_S = 60.0  # how long a thread may take to finish its sample
_LEAVE_S = 1.0  # how long a fetching thread may take to end; one that can be cancelled needs a millisecond


@dataclass(frozen=True)
class Stretch:
    """An epoch, or the rest of one.

    Args:
        order: Samples in the order they are wanted.
        epoch: Number of the epoch.
        batch_size: Samples in a batch.
        workers: Threads that finish samples; 0 for none.
        sizes: Samples in each batch, if they differ.
        has_collate: Whether the user's own function makes batches.
        latest: In relaxed order, the last batch that each sample may be in; None for `max_delay` batches after its own.
        positions: Position of each sample in the order of the whole epoch, over all ranks; None if it is the position
            in `order`.
        keys: The numbers by which random ops identify the samples, if some are repeated; None for their indexes.
        pin: Copies a batch into pinned memory, if that is wanted.
        timeout_s: How long the next batch may take.
        device: Where batches go, if they do not stay on the host.
    """

    order: Order
    epoch: int
    batch_size: int
    workers: int
    sizes: Sequence[int] | None = None
    has_collate: bool = False
    latest: NDArray[np.int64] | None = None
    positions: NDArray[np.int64] | None = None
    keys: Order | None = None
    pin: Callable[[Any], Any] | None = None
    timeout_s: float = math.inf
    device: Device | None = None


@dataclass(frozen=True)
class Hands:
    """The parts that carry out an epoch.

    Args:
        samples: Where samples come from.
        finishing: How samples are finished.
        finishers: What finishes samples.
        mending: Handles bad samples.
        stats: Counts to add to.
        costs: How long finishing each sample takes.
        planner: Learns from every sample and may change cuts during the epoch; None if cuts are fixed.
        tuner: Decides how many threads there are, instead of the stretch's number, unless that is 0.
        watcher: Observes requests, if there is no planner.
    """

    samples: Samples
    finishing: Finishing
    finishers: Finishers
    mending: Mending
    stats: Stats
    costs: Costs
    planner: Planner | None = None
    tuner: Tuner | None = None
    watcher: Watcher | None = None


class Engine:
    """Runs one epoch.

    Args:
        hands: The parts that do the work.
        stretch: The samples to deliver.
        config: Bounds and times.
    """

    def __init__(self, hands: Hands, stretch: Stretch, config: MachineConfig) -> None:
        self._samples, self._finishing, self._finishers = hands.samples, hands.finishing, hands.finishers
        self._mending, self._stats, self._costs, self._planner = hands.mending, hands.stats, hands.costs, hands.planner
        self._stretch = stretch
        self._order = stretch.order
        self._strict = config.max_delay is None
        now_s = time.monotonic()
        machine = self._samples.sources.machine(
            stretch.order,
            stretch.batch_size,
            config,
            self._finishing.result_bytes,
            stretch.latest,
            stretch.sizes,
            self._samples.are_relayed(stretch.order),
        )
        self._machine = machine
        watcher = self._planner or hands.watcher
        errand = self._samples.errand(stretch.epoch, stretch.order, self._stats, watcher, stretch.keys)
        self._driver = Driver(machine, errand, self._samples.raise_fatal)
        # If the user's own function receives samples one by one, an array only helps if other processes can see it.
        self._may_place = self._finishers.writes_alone or not stretch.has_collate
        self._layout: Layout | None = self._finishing.layout if self._may_place else None
        self._batches: dict[int, Batch] = {}
        self._crash: BaseException | None = None
        # The user's own code, which runs in processes, has no time limit; nor does reading local files.
        is_bound = any(node.is_remote for node in self._samples.sources) and not self._finishers.writes_alone
        self._finish_within_s = config.deadline_s if is_bound else math.inf
        self._is_stuck = False
        self._begun: dict[int, float] = {}  # position and start time of samples being finished
        self._gauge = Gauge(now_s)
        self._tuner = hands.tuner if stretch.workers else None
        self._setting = Setting(stretch.workers, config.max_requests, config.buffer_bytes)
        self._start_empty()
        renew_after_fork(self)
        if self._tuner is not None:
            self._tuner.begin()
            self._setting = self._tuner.setting
        if stretch.workers:
            leaving.running[self] = lambda: self.close(_LEAVE_S)  # slow samples are not waited for
            try:
                with self._lock:
                    self._apply(self._setting)
            except BaseException:  # Ctrl-C, or no more threads available: nothing else would close this engine
                self.close()
                raise

    def _start_empty(self) -> None:
        self._is_stopped = False
        self._lock = self._driver.lock
        self._changed = self._driver.changed
        self._work = threading.Condition(self._lock)  # notified when a reply waits to be finished
        self._received: list[tuple[float, int, Reply]] = []  # a heap, ordered by when finishing has to start
        self._made: dict[int, Made] = {}
        self._fetchers = Crew("sophon-fetch", self._fetch_loop, lambda: self._machine.calls, self._crashed)
        self._workers = Crew("sophon-finish", self._finish_loop, lambda: self._setting.workers, self._crashed)
        self._free = list(range(self._setting.workers if self._tuner is None else self._tuner.most.workers))

    def renew(self) -> None:
        """End in a forked child: threads and requests stayed with the parent, possibly with the lock held."""
        self._driver.renew()
        self._start_empty()
        self._is_stopped = self._driver.is_stopped = True
        leaving.running.pop(self, None)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions of the samples in the batches delivered so far, in order."""
        with self._lock:
            return self._machine.taken_positions()

    def positions_in(self, batch: int) -> NDArray[np.int64]:
        """Return the positions of the samples in a complete batch."""
        with self._lock:
            return self._machine.positions_in(batch)

    def _key_of(self, batch: int) -> Key:
        """Return what identifies a complete batch: the position of its first sample in the epoch."""
        first, positions = int(self.positions_in(batch)[0]), self._stretch.positions
        return Key(self._finishing.seed, self._stretch.epoch, first if positions is None else int(positions[first]))

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the epoch in order."""
        for number in range(self._machine.batches):
            start_s, start_cpu_s = time.monotonic(), time.thread_time()
            try:
                batch = self._wait_for(number) if self._setting.workers else self._make(number)
                result = batch.take() if batch.is_over else self._mended(number, batch)
                if isinstance(result, Sent) and self._stretch.device is not None:
                    result = self._stretch.device.receive(result)
            finally:
                now_s = time.monotonic()
                self._stats.add(waited_s=now_s - start_s)
            if self._setting.workers and self._planner is not None:
                self._planner.overhead(time.thread_time() - start_cpu_s)
            del batch
            if self._stats.fallback:
                self._samples.sources.warn_of_fallback(stacklevel=5)
            yield result
            del result  # if the consumer has freed it too, its memory can be reused
            self._stats.add(consumer_s=time.monotonic() - now_s)

    def close(self, finish_s: float = _FINISH_S) -> None:
        """Stop all threads, even in the middle of an epoch; wait a limited time for those working on a sample."""
        with self._lock:
            if not self._is_stopped:
                self._samples.sources.keep(self._machine)
            self._is_stopped = True
            self._fetchers.stop()
            self._workers.stop()
            self._work.notify_all()
        self._driver.stop()
        self._finishers.stop()
        leaving.running.pop(self, None)
        here = threading.current_thread()
        if self._fetchers.has(here) or self._workers.has(here) or leaving.by_collector():
            return
        now_s = time.monotonic()
        # A request whose node has not answered at all cannot be cancelled (see `link.flight`). Its thread is left
        # running: it holds nothing that others wait for, and ends when the silence is noticed.
        self._fetchers.join(now_s + _LEAVE_S)
        self._workers.join(now_s + (_LEAVE_S if self._is_stuck else finish_s))

    # --- threads, and how many; called with the lock held -------------------------------------------------------------

    def _apply(self, setting: Setting) -> None:
        """Start the threads that a setting adds, and end those that it removes."""
        self._setting = setting
        self._machine.max_requests, self._machine.ahead_bytes = setting.requests, setting.ahead_bytes
        self._fetchers.staff()
        self._workers.staff()
        self._changed.notify_all()
        self._work.notify_all()

    def _tune(self, now_s: float) -> None:
        if self._tuner is not None and not self._is_stopped and (seen := self._gauge.look(now_s)) is not None:
            setting = self._tuner.look(seen)
            if setting != self._setting:
                self._apply(setting)

    def _deepen(self) -> None:
        """Read further ahead if the consumer waits while nothing is running and nothing more may be requested."""
        idle = self._machine.full and not self._received and self._driver.is_idle
        if self._tuner is not None and idle and self._tuner.deepen():
            self._apply(self._tuner.setting)

    def _crashed(self, error: BaseException) -> None:
        with self._lock:
            if not self._is_stopped:
                self._crash = self._crash or error
            self._changed.notify_all()

    # --- in the consumer's thread -------------------------------------------------------------------------------------

    def _wait_for(self, number: int) -> Batch:
        with self._lock:
            start_s = time.monotonic()
            self._gauge.waits(True, start_s)
            while not self._is_ready(number):
                now_s = time.monotonic()
                self._machine.check(now_s)
                self._raise_if_over()
                self._raise_if_stuck(now_s)
                self._deepen()
                left_s = start_s + self._stretch.timeout_s - now_s
                if left_s <= 0:
                    raise BatchTimeoutError(
                        f"batch {number} did not arrive within timeout={self._stretch.timeout_s:g} seconds; raise it, "
                        "use more workers, or leave it out to wait as long as it takes"
                    )
                self._changed.wait(min(0.5, left_s))
            self._gauge.waits(False, time.monotonic())
            self._machine.take()
            self._gauge.took(self._machine.ready_bytes)
            self._changed.notify_all()
            return self._batches.pop(number)

    def _is_ready(self, number: int) -> bool:
        """Return whether a batch is complete, or waits for this thread to handle its bad samples."""
        if self._machine.ready <= number:
            return False
        batch = self._batches[number]
        return batch.is_over or bool(batch.errors)

    def _make(self, number: int) -> Batch:
        """Make a batch in this thread. More samples are requested than it needs, but only its own are finished."""
        self._machine.resume()
        stop = self._machine.division.start(number + 1) if self._strict else len(self._order)
        while self._machine.ready <= number:
            for position, reply in self._driver.inline(lambda: bool(self._received) and self._received[0][1] < stop):
                heapq.heappush(self._received, (position, position, reply))
            self._raise_if_over()
            _, position, reply = heapq.heappop(self._received)
            self._finish(self._finishers[0], position, reply)
        self._machine.take()
        return self._batches.pop(number)

    def _mended(self, number: int, batch: Batch) -> Any:
        """Return a batch without its bad samples; raise the error of the first one if that is the policy."""
        finisher = self._finishers[0]
        if self._mending.may_raise:
            self._driver.stop()  # what would come while the name of the file is asked for is not needed
        for slot in sorted(batch.errors):
            made = batch.at(slot)
            batch.mend(slot, self._mending.mend(made.key, batch.errors[slot], finisher))
        if not batch.kept:
            return EMPTY
        return self._result(finisher, number, batch)

    def _raise_if_over(self) -> None:
        if self._crash is not None:
            raise self._crash
        self._driver.raise_if_over()
        if self._is_stopped and not leaving.without_a_word():
            raise Error("the epoch was closed by another thread")

    def _raise_if_stuck(self, now_s: float) -> None:
        """Raise if a thread has been working on a sample from a node for longer than the deadline.

        A file can be crafted to keep a decoder busy for hours. The thread cannot be stopped; it is left behind.
        """
        begun = self._begun.copy()  # copied in one step, since finishing threads keep changing it without the lock
        position, begun_s = min(begun.items(), key=lambda item: item[1], default=(0, math.inf))
        if self._finish_within_s < now_s - begun_s:
            sample = int(self._order[position])
            problem = f"decoding and transforming took longer than the deadline of {self._finish_within_s:g} s"
            remedy = "Look at the file, leave it out, or raise Faults(deadline_s=…)."
            self._is_stuck = True
            raise OpError(f"{problem}.", sample=sample, remedy=remedy)

    # --- in the fetching threads --------------------------------------------------------------------------------------

    def _fetch_loop(self) -> None:
        # While one thread fetches, another must be free to send requests.
        self._driver.fetch(self._fetchers.is_done, self._queue, self._fetchers.staff)

    def _queue(self, position: int, reply: Reply) -> None:
        """Queue a reply for the workers by urgency: slow samples are moved a few positions ahead of their turn."""
        begin = position - self._costs.lead(int(self._order[position]), self._setting.workers)
        heapq.heappush(self._received, (begin, position, reply))  # positions are unique: replies are never compared
        self._work.notify()

    # --- in the finishing threads -------------------------------------------------------------------------------------

    def _finish_loop(self) -> None:
        with self._lock:
            while not self._free:  # a thread that is ending has yet to return its finisher
                self._work.wait(0.1)
            number = self._free.pop(0)
        begun_s = time.thread_time()
        try:
            while (item := self._next_reply()) is not None:
                other_s = self._finish(self._finishers[number], *item)
                now_s = time.thread_time()
                if self._planner is not None:
                    self._planner.overhead(max(now_s - begun_s + other_s, 0.0))
                begun_s = now_s
        finally:
            with self._lock:
                self._free.append(number)

    def _next_reply(self) -> tuple[int, Reply] | None:
        with self._lock:
            while not self._workers.is_done():
                if self._received:
                    _, position, reply = heapq.heappop(self._received)
                    return position, reply
                self._work.wait()
            self._work.notify()  # the notification that woke this thread was meant for one that stays
            return None

    def _finish(self, finisher: Finisher, position: int, reply: Reply) -> float:
        """Finish a sample, and make each batch that it completes.

        Returns:
            CPU seconds to add to those of this thread; the sum is the cost of finishing beyond the ops themselves.
        """
        start_s = time.monotonic()
        sample = int(self._order[position])
        known_by = sample if self._stretch.keys is None else int(self._stretch.keys[position])
        key = Key(self._finishing.seed, self._stretch.epoch, known_by)
        with self._lock:
            self._gauge.began(start_s)
            self._begun[position] = start_s
            # In strict order the place is known beforehand, and the sample can be written straight into it.
            batch = self._batch(position) if self._strict else None
        try:
            made = self._run(finisher, reply, key, batch, position)
        finally:
            self._begun.pop(position, None)
        now_s = time.monotonic()
        self._stats.add(finish_cpu_s=made.cpu_s)
        with self._lock:
            if self._layout is None and made.layout is not None and self._may_place:
                self._layout = made.layout  # for the user's own code, whose output is observed rather than declared
            self._made[position] = made
            self._costs.saw(sample, now_s - start_s)
            placed = self._machine.finished(position, made.size_bytes)
            self._gauge.ended(made.cpu_s, now_s - start_s, self._machine.wants_more, now_s)
            seats = [(self._batch(place), place, self._made.pop(who)) for who, place in placed]
        for seat_batch, place, seated in seats:
            seat_batch.put(self._slot(place), seated)
        with self._lock:
            complete = [self._machine.division.of(place) for _, place, _ in seats if self._machine.put(place)]
            batches = [(number, self._batches[number]) for number in complete]
        for number, whole in batches:
            if not whole.errors:  # batches with errors wait for the consumer, which may raise the first error
                self._complete(finisher, number, whole)
        with self._lock:
            # A consumer that waits while the buffer is full may let us read further ahead.
            if complete or (self._tuner is not None and self._machine.full):
                self._changed.notify_all()
            self._tune(now_s)
        elsewhere_s = made.cpu_s if self._finishers.writes_alone else 0.0
        return elsewhere_s - (made.cpu_s if made.trace is None else min(made.trace.finishing_s, made.cpu_s))

    def _run(self, finisher: Finisher, reply: Reply, key: Key, batch: Batch | None, position: int) -> Made:
        """Finish a sample, here or in a worker process."""
        place = None if batch is None else batch.place(self._slot(position))
        try:
            made = finisher.make(reply, key, place, self._planner is not None)
        except WorkerError as error:
            if self._is_stopped:  # the process was told to end, and its sample is not needed
                raise
            raise self._mending.named_death(error, self._mending.sample_of(key)) from None
        if made.error is not None and self._setting.workers:
            forget_values(made.error)  # it may wait for its turn, and counts little in `buffer_bytes`
        if made.trace is not None and self._planner is not None:
            self._planner.finished(key, reply, made.trace)
        return made

    def _complete(self, finisher: Finisher, number: int, batch: Batch) -> None:
        """Make a batch from its samples; an error is raised when the batch is delivered."""
        try:
            batch.result = self._result(finisher, number, batch)
        except WorkerError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own function may raise anything
            batch.failure = error
        batch.is_over = True

    def _result(self, finisher: Finisher, number: int, batch: Batch) -> Any:
        start_s = time.monotonic()
        result = finisher.batch(batch, self._key_of(number))
        if self._stretch.pin is not None and result is not EMPTY:
            # The consumer's own thread may have switched to another accelerator in the meantime; leave that alone.
            is_ours = self._workers.has(threading.current_thread())
            result = self._stretch.pin(result) if is_ours else pinned(result)
        if self._stretch.device is not None and result is not EMPTY:
            result = self._stretch.device.send(result)
        seconds = time.monotonic() - start_s
        self._stats.add(collate_s=seconds)
        if self._planner is not None and self._finishers.writes_alone:  # in a worker process: its clock is not ours
            self._planner.overhead(seconds)
        return result

    def _batch(self, place: int) -> Batch:
        """Return the batch that contains a place, a new one if it is still empty; called with the lock held."""
        number = self._machine.division.of(place)
        if number not in self._batches:
            count = self._machine.division.size_of(number)
            memory, hands_on = self._finishers.memory, self._stretch.has_collate
            self._batches[number] = Batch(self._finishing, count, self._layout, memory, hands_on)
        return self._batches[number]

    def _slot(self, place: int) -> int:
        """Return the slot of a place in its batch."""
        return place - self._machine.division.start(self._machine.division.of(place))
