"""One epoch on its way: fetching, finishing and handing out batches, driven by the machine.

Concurrency: fetching threads send requests and read replies; worker threads finish samples, those that have to be begun
first first, whoever is free taking the next one; the consumer's thread takes batches. All of them call the machine
under one lock and do the slow things outside it. With a tuner, threads are started and let go on the way. With no
workers everything happens in the consumer's thread. Nothing outlives `close`, but for a request that a silent node was
asked just before: it ends within `flight_transport.SILENCE_S`. What becomes of an epoch that nobody closes: `leaving`.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.codec.wire import Reply
from sophon.errors import Error
from sophon.loader import leaving
from sophon.loader.batch import Batch, Collate
from sophon.loader.costs import Costs
from sophon.loader.dataset import RemoteDataset
from sophon.loader.gauge import Gauge
from sophon.loader.machine import Ask, MachineConfig
from sophon.loader.order import Order
from sophon.loader.planner import Planner
from sophon.loader.sources import explain
from sophon.loader.stats import Stats
from sophon.loader.transport import Fetch
from sophon.loader.tuner import Setting, Tuner
from sophon.pipeline import Key, Trace, Value
from sophon.store.fork import renew_after_fork

_FINISH_S = 60.0  # that a worker gets to end its sample
_LEAVE_S = 1.0  # that a fetching thread gets to end; one that can be cancelled needs a millisecond


@dataclass
class _Made:
    """A finished sample, or why there is none, until it has its place in a batch."""

    value: Value
    target: Any
    reply: Reply
    key: Key
    error: Exception | None = None


@dataclass(frozen=True)
class Job:
    """One epoch, or what is left of it.

    Args:
        order: Samples in the order they are wanted.
        epoch: Which epoch.
        batch_size: Samples in a batch.
        workers: Threads that finish samples; 0 for none.
        collate: The user's own function, if any.
        latest: In relaxed order the last batch that each sample may come in, if that is not `max_delay` behind its own.
    """

    order: Order
    epoch: int
    batch_size: int
    workers: int
    collate: Collate | None = None
    latest: NDArray[np.int64] | None = None


class Engine:
    """Runs one epoch.

    Args:
        dataset: Where samples come from and what is done to them.
        job: What is to be done.
        config: Bounds and times.
        stats: Where to count.
        costs: What finishing samples takes.
        planner: Who learns from every sample and may change cuts on the way, if anybody.
        tuner: Who decides how many threads there are; then the job's number does not count, unless it is 0.
    """

    def __init__(
        self,
        dataset: RemoteDataset,
        job: Job,
        config: MachineConfig,
        stats: Stats,
        costs: Costs,
        planner: Planner | None = None,
        tuner: Tuner | None = None,
    ) -> None:
        self._dataset = dataset
        self._order = job.order
        self._epoch = job.epoch
        self._batch_size = job.batch_size
        self._deadline_s = config.deadline_s
        self._collate = job.collate
        self._stats = stats
        self._planner = planner
        self._costs = costs
        self._strict = config.max_delay is None
        now_s = time.monotonic()
        self._machine = dataset.sources.machine(
            len(job.order), job.batch_size, config, dataset.result_bytes, latest=job.latest
        )
        self._received: list[tuple[float, int, Reply]] = []  # a heap, by when it has to be begun
        self._made: dict[int, _Made] = {}
        self._batches: dict[int, Batch] = {}
        self._stopped = False
        self._crash: BaseException | None = None
        self._names = itertools.count()
        self._start_empty()
        renew_after_fork(self)
        self._running = {"fetch": 0, "finish": 0}
        self._gauge = Gauge(now_s)
        self._tuner = tuner if job.workers else None
        self._setting = Setting(job.workers, config.max_requests, config.buffer_bytes)
        if self._tuner is not None:
            self._tuner.begin()
            self._setting = self._tuner.setting
        if job.workers:
            leaving.running[self] = lambda: self.close(_LEAVE_S)  # a sample that takes long is not waited for
            try:
                with self._lock:
                    self._apply(self._setting)
            except BaseException:  # Ctrl-C, or no more threads to be had: nobody knows of us who could close us
                self.close()
                raise

    def _start_empty(self) -> None:
        # Reentrant, since an abandoned iterator may be closed by the garbage collector in any thread, at any moment.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # the machine may have something to ask or to hand out
        self._work = threading.Condition(self._lock)  # a reply waits to be finished
        self._fetches: dict[int, Fetch] = {}
        self._threads: set[threading.Thread] = set()

    def renew(self) -> None:
        """End in a forked child: threads and requests stayed with the parent, one of them maybe with the lock."""
        self._start_empty()
        self._stopped = True
        leaving.running.pop(self, None)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions of the samples in the batches handed out so far, in the order in which they lie there."""
        with self._lock:
            return self._machine.taken_positions()

    def positions_in(self, batch: int) -> NDArray[np.int64]:
        """Return the positions of the samples in a batch that was handed out."""
        with self._lock:
            return self._machine.positions_in(batch)

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the epoch in order."""
        for number in range(self._machine.batches):
            start_s = time.monotonic()
            try:
                batch = self._wait_for(number) if self._setting.workers else self._make(number)
            except Error:
                self._stats.add(waited_s=time.monotonic() - start_s)
                raise
            collate_s = time.monotonic()
            result = batch.finish()
            now_s = time.monotonic()
            self._stats.add(waited_s=now_s - start_s, collate_s=now_s - collate_s)
            if self._stats.fallback:
                self._dataset.sources.warn_of_fallback(stacklevel=5)
            yield result
            self._stats.add(consumer_s=time.monotonic() - now_s)

    def close(self, finish_s: float = _FINISH_S) -> None:
        """Stop all threads, also in the middle of an epoch; wait so long for those that are at work on a sample."""
        with self._lock:
            if not self._stopped:
                self._dataset.sources.keep(self._machine)
            self._stopped = True
            self._changed.notify_all()
            self._work.notify_all()
            fetches, threads = list(self._fetches.values()), set(self._threads)
        for fetch in fetches:
            fetch.cancel()
        leaving.running.pop(self, None)
        if threading.current_thread() in threads or leaving.by_collector():
            return
        end_s, last_s = time.monotonic() + _LEAVE_S, time.monotonic() + finish_s
        for thread in threads:
            # A request whose node has not said its first word cannot be cancelled (see `flight_transport`). Its thread
            # is left behind: it holds nothing that others wait for, and ends by itself when the silence is noticed.
            is_fetching = thread.name.startswith("sophon-fetch-")
            thread.join(max(0.0, (end_s if is_fetching else last_s) - time.monotonic()))

    # --- threads, and how many; called with the lock held -------------------------------------------------------------

    def _apply(self, setting: Setting) -> None:
        """Start the threads that a setting has more, and let those go that it has less."""
        self._setting = setting
        self._machine.max_requests, self._machine.ahead_bytes = setting.requests, setting.ahead_bytes
        self._staff()
        self._changed.notify_all()
        self._work.notify_all()

    def _staff(self) -> None:
        """Start the threads that are missing."""
        for kind, loop in (("fetch", self._fetch_loop), ("finish", self._finish_loop)):
            while self._running[kind] < self._wanted(kind) and not self._stopped:
                self._running[kind] += 1
                self._start(kind, loop)

    def _start(self, kind: str, loop: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=self._guard, args=(loop,), name=f"sophon-{kind}-{next(self._names)}", daemon=True
        )
        thread.start()
        self._threads.add(thread)  # one that could not be started cannot be waited for

    def _wanted(self, kind: str) -> int:
        return self._machine.calls if kind == "fetch" else self._setting.workers

    def _is_done(self, kind: str) -> bool:
        """Return whether the thread that asks is to end; there is one less of its kind then."""
        if not self._stopped and self._running[kind] <= self._wanted(kind):
            return False
        self._running[kind] -= 1
        return True

    def _tune(self, now_s: float) -> None:
        if self._tuner is not None and not self._stopped and (seen := self._gauge.look(now_s)) is not None:
            setting = self._tuner.look(seen)
            if setting != self._setting:
                self._apply(setting)

    def _deepen(self) -> None:
        """Read further ahead if the consumer waits while nothing is under way and nothing more may be asked for."""
        idle = self._machine.full and not self._received and not self._fetches
        if self._tuner is not None and idle and self._tuner.deepen():
            self._apply(self._tuner.setting)

    # --- in the consumer's thread -------------------------------------------------------------------------------------

    def _wait_for(self, number: int) -> Batch:
        with self._lock:
            self._gauge.waits(True, time.monotonic())
            while self._machine.ready <= number:
                self._machine.check(time.monotonic())
                self._raise_if_over()
                self._deepen()
                self._changed.wait(0.5)
            self._gauge.waits(False, time.monotonic())
            self._machine.take()
            self._gauge.took(self._machine.ready_bytes)
            self._changed.notify_all()
            return self._batches.pop(number)

    def _make(self, number: int) -> Batch:
        self._machine.resume()
        while self._machine.ready <= number:
            ask = self._machine.ask(time.monotonic())
            self._raise_if_over()
            if ask is None:
                time.sleep(min(0.05, self._machine.wait_s(time.monotonic())))
                continue
            for position, reply in self._replies(ask):
                self._finish(position, reply)
        self._machine.take()
        return self._batches.pop(number)

    def _raise_if_over(self) -> None:
        if self._crash is not None:
            raise self._crash
        if self._machine.fatal is not None:
            raise explain(self._machine.fatal, self._dataset.url)
        if self._stopped and not leaving.without_a_word():
            raise Error("the epoch was closed by another thread")

    # --- in the fetching threads --------------------------------------------------------------------------------------

    def _fetch_loop(self) -> None:
        while True:
            with self._lock:
                while not self._is_done("fetch"):
                    for request, fetch in self._fetches.items():
                        self._machine.heard(request, fetch.heard_s)
                    ask = self._machine.ask(time.monotonic())
                    if ask is not None:
                        self._staff()  # somebody must be there to ask in its stead
                        break
                    if self._machine.fatal:
                        self._running["fetch"] -= 1
                        self._changed.notify_all()
                        return
                    self._changed.wait(self._machine.wait_s(time.monotonic()))
                else:
                    return
            assert ask is not None
            for item in self._replies(ask):
                with self._lock:
                    self._queue(*item)

    def _queue(self, position: int, reply: Reply) -> None:
        """Queue a reply for the workers by when it has to be begun: slow samples some positions before their turn."""
        begin = position - self._costs.lead(int(self._order[position]), self._setting.workers)
        heapq.heappush(self._received, (begin, position, reply))  # positions are unique: replies are never compared
        self._work.notify()

    def _replies(self, ask: Ask) -> Iterator[tuple[int, Reply]]:
        """Yield the wanted replies to a request, and tell the machine how it went."""
        dataset, is_fallback = self._dataset, self._dataset.sources.is_fallback(ask.node)
        samples = [int(self._order[position]) for position in ask.positions]
        request = dataset.request(self._epoch, samples)
        planner = None if is_fallback else self._planner  # which has to do with links and nodes
        if planner is not None:
            planner.began(ask.request)
        self._stats.add(hedges=ask.is_second)
        try:
            fetch = dataset.sources[ask.node].fetch(request, self._deadline_s)
            with self._lock:
                self._fetches[ask.request] = fetch
                if self._stopped:  # just before anybody could cancel it
                    fetch.cancel()
            before_s, before_cpu_s = time.monotonic(), time.thread_time()
            for reply in fetch:
                now_s = time.monotonic()
                self._stats.add(fetch_s=now_s - before_s, fetch_cpu_s=time.thread_time() - before_cpu_s)
                position = ask.positions[reply.position]
                with self._lock:
                    if self._stopped:  # where nothing can be cancelled, as where files are read, this ends it
                        return
                    wanted = self._machine.reply(ask.request, position, len(reply.payload), now_s)
                    surplus = [self._fetches[n] for n in self._machine.surplus() if n in self._fetches]
                for other in surplus:
                    other.cancel()
                if wanted:
                    asked = request.cuts[reply.position]
                    self._stats.received(reply, asked, is_fallback)
                    if planner is not None:
                        planner.received(ask.request, samples[reply.position], reply, asked, fetch)
                    yield position, reply
                before_s, before_cpu_s = time.monotonic(), time.thread_time()
            with self._lock:
                if not self._stopped:
                    self._machine.ended(ask.request, time.monotonic())
        except Error as error:
            with self._lock:
                is_owed = not self._stopped and self._machine.failed(ask.request, error, time.monotonic())
            # Not under the lock: the garbage collector may close this epoch in a thread that holds the counts.
            self._stats.add(retries=is_owed)
        finally:
            if planner is not None:
                planner.ended(ask.request)
            with self._lock:
                self._fetches.pop(ask.request, None)
                self._changed.notify_all()

    # --- in the worker threads ----------------------------------------------------------------------------------------

    def _finish_loop(self) -> None:
        while True:
            with self._lock:
                while not self._is_done("finish"):
                    if self._received:
                        break
                    self._work.wait()
                else:
                    self._work.notify()  # the word that woke this thread was meant for one that stays
                    return
                _, position, reply = heapq.heappop(self._received)
            self._finish(position, reply)

    def _finish(self, position: int, reply: Reply) -> None:
        start_s, start_cpu_s = time.monotonic(), time.thread_time()
        sample = int(self._order[position])
        key = Key(self._dataset.seed, self._epoch, sample)
        with self._lock:
            self._gauge.began(start_s)
            # In strict order the place is known beforehand, and the sample can be written straight into it.
            batch = self._batch(position) if self._strict else None
        made = self._run(key, reply, None if batch is None else batch.place(position % self._batch_size))
        held_bytes = 0 if made.error else getattr(made.value, "nbytes", 0) or self._dataset.result_bytes
        cpu_s, now_s = time.thread_time() - start_cpu_s, time.monotonic()
        self._stats.add(finish_cpu_s=cpu_s)
        with self._lock:
            self._made[position] = made
            self._costs.saw(sample, now_s - start_s)
            placed = self._machine.finished(position, held_bytes)
            self._gauge.ended(cpu_s, now_s - start_s, self._machine.wants_more, now_s)
            seats = [(self._batch(place), place, self._made.pop(who)) for who, place in placed]
        for seat_batch, place, seated in seats:
            _put(seat_batch, place % self._batch_size, seated)
        with self._lock:
            ready = self._machine.ready
            for _, place, _ in seats:
                self._machine.put(place)
            # A consumer that waits while the buffer is full may let us read further ahead.
            if self._machine.ready != ready or (self._tuner is not None and self._machine.full):
                self._changed.notify_all()
            self._tune(now_s)

    def _batch(self, place: int) -> Batch:
        """Return the batch of a place; a new one if nothing lies in it yet. With the lock held."""
        number = place // self._batch_size
        if number not in self._batches:
            size = min(self._batch_size, len(self._order) - number * self._batch_size)
            self._batches[number] = Batch(self._dataset, size, self._collate)
        return self._batches[number]

    def _run(self, key: Key, reply: Reply, out: Any) -> _Made:
        """Do what is left to be done to a sample."""
        # Without its payload, which is done with: a finished sample may wait for its place.
        told = Reply(reply.position, reply.cut, b"", reply.label, columns=reply.columns)
        try:
            trace = None if self._planner is None else Trace(len(self._dataset.pipeline))
            value, target = self._dataset.finish(reply, self._epoch, int(key.sample), out, trace)
            if self._planner is not None and trace is not None:
                self._planner.finished(key, reply, trace)
            return _Made(value, target, told, key)
        except Exception as error:  # noqa: BLE001 - it is raised where its batch is handed out
            return _Made(None, None, told, key, error)

    def _guard(self, loop: Any) -> None:
        try:
            loop()
        except BaseException as error:  # noqa: BLE001 - a thread that dies silently would hang the training
            with self._lock:
                self._crash = error
                self._changed.notify_all()


def _put(batch: Batch, slot: int, made: _Made) -> None:
    if made.error is None:
        try:
            batch.put(slot, made.value, made.target, made.reply, made.key)
        except Exception as error:  # noqa: BLE001 - a value of another shape, say: raised where its batch is handed out
            made.error = error
    if made.error is not None:
        batch.fail(slot, made.key, made.error)
