"""One epoch on its way: fetching, finishing and handing out batches, driven by the machine.

Concurrency: fetching threads send requests and read replies; worker threads finish samples, those that are needed first
first; the consumer's thread takes batches. All of them call the machine under one lock and do the slow things outside
it. With no workers everything happens in the consumer's thread. Nothing outlives `close`.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

from sophon.codec.wire import Reply
from sophon.errors import Error
from sophon.loader.batch import Batch, Collate
from sophon.loader.dataset import RemoteDataset, explain
from sophon.loader.machine import Ask, Machine, MachineConfig
from sophon.loader.order import Order
from sophon.loader.planner import Planner
from sophon.loader.stats import Stats
from sophon.loader.transport import Fetch
from sophon.pipeline import Key, Trace


class Engine:
    """Runs one epoch.

    Args:
        dataset: Where samples come from and what is done to them.
        order: Samples in the order they are wanted.
        epoch: Which epoch.
        batch_size: Samples in a batch.
        config: Bounds and times.
        workers: Threads that finish samples; 0 for none.
        collate: The user's own function, if any.
        stats: Where to count.
        planner: Who learns from every sample and may change cuts on the way, if anybody.
    """

    def __init__(
        self,
        dataset: RemoteDataset,
        order: Order,
        epoch: int,
        batch_size: int,
        config: MachineConfig,
        workers: int,
        collate: Collate | None,
        stats: Stats,
        planner: Planner | None = None,
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._epoch = epoch
        self._batch_size = batch_size
        self._deadline_s = config.deadline_s
        self._collate = collate
        self._stats = stats
        self._planner = planner
        self._machine = Machine(len(order), batch_size, config, dataset.result_bytes, time.monotonic())
        # Reentrant, since an abandoned iterator may be closed by the garbage collector in any thread, at any moment.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # the machine may have something to ask or to hand out
        self._work = threading.Condition(self._lock)  # a reply waits to be finished
        self._received: list[tuple[int, Reply]] = []
        self._batches: dict[int, Batch] = {}
        self._fetches: dict[int, Fetch] = {}
        self._stopped = False
        self._crash: BaseException | None = None
        names = itertools.count()
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=f"sophon-{kind}-{next(names)}", daemon=True)
            for kind, loop, count in (
                ("fetch", self._fetch_loop, config.max_requests if workers else 0),
                ("finish", self._finish_loop, workers),
            )
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the epoch in order."""
        for number in range(self._machine.batches):
            start_s = time.monotonic()
            batch = self._wait_for(number) if self._threads else self._make(number)
            collate_s = time.monotonic()
            result = batch.finish()
            now_s = time.monotonic()
            self._stats.add(waited_s=now_s - start_s, collate_s=now_s - collate_s)
            yield result
            self._stats.add(consumer_s=time.monotonic() - now_s)

    def close(self) -> None:
        """Stop all threads, also in the middle of an epoch."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
            self._work.notify_all()
            fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()
        self._threads = []

    # --- in the consumer's thread -------------------------------------------------------------------------------------

    def _wait_for(self, number: int) -> Batch:
        with self._lock:
            while self._machine.ready <= number:
                self._machine.check(time.monotonic())
                self._raise_if_over()
                self._changed.wait(0.5)
            self._machine.take()
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
            raise explain(self._machine.fatal, self._dataset.transport.address)

    # --- in the fetching threads --------------------------------------------------------------------------------------

    def _fetch_loop(self) -> None:
        while True:
            with self._lock:
                while not self._stopped and (ask := self._machine.ask(time.monotonic())) is None:
                    if self._machine.fatal:
                        self._changed.notify_all()
                    self._changed.wait(self._machine.wait_s(time.monotonic()))
                if self._stopped:
                    return
            assert ask is not None
            for item in self._replies(ask):
                with self._lock:
                    heapq.heappush(self._received, item)  # positions are unique: replies are never compared
                    self._work.notify()

    def _replies(self, ask: Ask) -> Iterator[tuple[int, Reply]]:
        """Yield the wanted replies to a request, and tell the machine how it went."""
        samples = [int(self._order[position]) for position in ask.positions]
        request = self._dataset.request(self._epoch, samples)
        fetch = self._dataset.transport.fetch(request, self._deadline_s)
        planner = self._planner
        with self._lock:
            self._fetches[ask.request] = fetch
        if planner is not None:
            planner.began(ask.request)
        try:
            before_s = time.monotonic()
            for reply in fetch:
                now_s = time.monotonic()
                self._stats.add(fetch_s=now_s - before_s)
                position = ask.positions[reply.position]
                with self._lock:
                    wanted = self._machine.reply(ask.request, position, len(reply.payload), now_s)
                if wanted:
                    asked = request.cuts[reply.position]
                    self._stats.received(reply, asked)
                    if planner is not None:
                        planner.received(ask.request, samples[reply.position], reply, asked, fetch)
                    yield position, reply
                before_s = time.monotonic()
            with self._lock:
                self._machine.ended(ask.request, time.monotonic())
        except Error as error:
            with self._lock:
                if not self._stopped:
                    self._stats.add(retries=1)
                    self._machine.failed(ask.request, error, time.monotonic())
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
                while not self._stopped and not self._received:
                    self._work.wait()
                if self._stopped:
                    return
                position, reply = heapq.heappop(self._received)
            self._finish(position, reply)

    def _finish(self, position: int, reply: Reply) -> None:
        number, slot = divmod(position, self._batch_size)
        with self._lock:
            batch = self._batches.get(number)
            if batch is None:
                size = min(self._batch_size, len(self._order) - number * self._batch_size)
                batch = self._batches[number] = Batch(self._dataset, size, self._collate)
        start_s = time.thread_time()
        held_bytes = 0
        sample = int(self._order[position])
        key = Key(self._dataset.seed, self._epoch, sample)
        try:
            trace = None if self._planner is None else Trace(len(self._dataset.pipeline))
            value, target = self._dataset.finish(reply, self._epoch, sample, batch.place(slot), trace)
            held_bytes = batch.put(slot, value, target, reply, key)
            if self._planner is not None and trace is not None:
                self._planner.finished(key, reply, trace)
        except Exception as error:  # noqa: BLE001 - it is raised where its batch is handed out
            batch.fail(slot, key, error)
        self._stats.add(finish_cpu_s=time.thread_time() - start_s)
        with self._lock:
            ready = self._machine.ready
            self._machine.finished(position, held_bytes)
            if self._machine.ready != ready:
                self._changed.notify_all()

    def _guard(self, loop: Any) -> None:
        try:
            loop()
        except BaseException as error:  # noqa: BLE001 - a thread that dies silently would hang the training
            with self._lock:
                self._crash = error
                self._changed.notify_all()
