"""One request under way: its samples are read and worked on, or answered with a smaller cut than was asked for.

Concurrency: one thread iterates; the budget's threads run `Work._process`.
"""

from __future__ import annotations

import errno
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, Cut, check_cut
from sophon.errors import ConfigError, Error, RetryableError, StoreError
from sophon.link.wire import Reply, Request
from sophon.pipeline import Pipeline, Trace
from sophon.server.budget import Slot
from sophon.server.maker import ChildLost
from sophon.server.seats import Seat
from sophon.store import Store
from sophon.units import format_bytes

if TYPE_CHECKING:
    from sophon.server.executor import Executor

Task = Future[tuple[Reply, float]]
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Work:
    """The samples of one request; iterating does the work.

    Attributes:
        computing_s: How long the iterating thread has waited for ops so far.
    """

    def __init__(
        self, executor: Executor, store: Store, request: Request, pipeline: Pipeline | None, seat: Seat
    ) -> None:
        self._executor = executor
        self._store = store
        self._request = request
        self._pipeline = pipeline
        self._seat = seat
        self._under_way: dict[Task, int] = {}
        self._early: dict[int, Reply] = {}  # finished before their turn, where replies come in order
        # Tasks put themselves here when they end: looking at all tasks under way whenever one ends would cost a third
        # of what an indexed window does.
        self._ended: SimpleQueue[Task] = SimpleQueue()
        self._put = _putting_into(self._ended)
        self.computing_s = 0.0

    def __iter__(self) -> Iterator[Reply]:
        return (reply for reply in self.pulse(lambda: None) if reply is not None)

    def pulse(self, patience_s: Callable[[], float | None]) -> Iterator[Reply | None]:
        """Yield the replies, and None whenever there is none yet, so that the caller can do something else.

        Args:
            patience_s: Called before each wait for an op; returns how long it may last, or None for no limit.
        """
        replies = self._as_finished(patience_s)
        try:
            yield from self._in_turn(replies) if self._request.in_order else replies
        finally:  # also if the stream is dropped halfway
            self._executor.withdraw(self._under_way)

    def _as_finished(self, patience_s: Callable[[], float | None]) -> Iterator[Reply | None]:
        for position in range(len(self._request.samples)):
            while self._under_way and self._must_wait(position):
                yield self._next(patience_s())
            reply = self._start(position)
            while not self._ended.empty():
                yield self._next(0)
            if reply is not None:
                yield reply
        while self._under_way:
            yield self._next(patience_s())

    def _in_turn(self, replies: Iterator[Reply | None]) -> Iterator[Reply | None]:
        """Yield replies in the order of the request, and None for each that has to wait for its turn."""
        turn = 0
        for reply in replies:
            if reply is not None:
                self._early[reply.position] = reply
            if turn not in self._early:
                yield None
            while turn in self._early:
                yield self._early.pop(turn)
                turn += 1

    def _must_wait(self, position: int) -> bool:
        """Return whether samples under way should end before one more is started.

        A request may always work on one sample, so that trainers who do not read cannot stop the others.
        """
        under_way = len(self._under_way) + len(self._early)
        return under_way > self._executor.lookahead or not self._seat.has_space(self._size_bytes(position))

    def _size_bytes(self, position: int) -> int:
        return int(self._store.manifest.sizes[self._request.samples[position]])

    def _next(self, timeout_s: float | None) -> Reply | None:
        """Return the reply of a task that has ended, or None if none ends in time."""
        start_s = time.monotonic()
        try:
            task = self._ended.get(timeout=timeout_s)
        except Empty:
            return None
        finally:
            self.computing_s += time.monotonic() - start_s
        return self._result(task)

    def _result(self, task: Task) -> Reply:
        position = self._under_way.pop(task)
        if task.cancelled():  # the budget was closed meanwhile
            return self._held(self._raw(position, "overload"))
        reply, cpu_s = task.result()
        reply.cpu_s = cpu_s
        return self._held(reply)

    def _held(self, reply: Reply) -> Reply:
        """Count the payload of a reply as held, in place of the file that it was made from."""
        self._seat.hold(len(reply.payload) - self._size_bytes(reply.position))
        return reply

    def _start(self, position: int) -> Reply | None:
        """Start work on a sample, or return its reply if there is no work to do."""
        cut, sample, executor = self._request.cuts[position], self._request.samples[position], self._executor
        size_bytes = self._size_bytes(position)
        if size_bytes > executor.limits.sample_bytes:
            most = format_bytes(executor.limits.sample_bytes)
            problem = f"sample {sample} has {format_bytes(size_bytes)}, more than the {most} that this node reads"
            return Reply(position, error=StoreError(f"{problem}; leave it out, or raise --max-sample-bytes there"))
        self._seat.hold(size_bytes)
        if cut == RAW:
            return self._held(self._raw(position))
        try:
            if self._pipeline is None:
                raise ConfigError("no op of this pipeline is known here")
            check_cut(self._pipeline, cut)
        except ConfigError:
            return self._held(self._raw(position, "unknown_op"))
        task = executor.submit(lambda slot: self._process(slot, position, cut), self._request.patience_s)
        if task is None:
            return self._held(self._raw(position, "overload"))
        self._under_way[task] = position
        task.add_done_callback(self._put)
        return None

    def _process(self, slot: Slot, position: int, cut: Cut) -> Reply:
        """Make the reply of one sample, in a thread of the budget."""
        assert self._pipeline is not None
        request, executor = self._request, self._executor
        sample = request.samples[position]
        work = (self._pipeline.fingerprint, cut)
        if executor.crashes.expected(work, (self._store.name, sample)):
            return self._raw(position, "crash")
        try:
            data = self._read(sample)
        except StoreError as error:
            return self._failed(position, error)
        trace = Trace(len(self._pipeline))
        try:
            payload = executor.maker.make(slot, self._pipeline, data, request.key(position), cut, trace)
        except ChildLost as lost:
            executor.crashes.fell(work, (self._store.name, sample))
            return self._smaller(position, data, lost.reason)
        except Exception:  # noqa: BLE001 - decoders, codecs and plug-in ops may raise anything
            # The trainer will meet the same problem, and has the file and the user's policy for bad samples.
            return self._smaller(position, data, "op_failed")
        executor.crashes.stood(work)
        reply = self._reply(position, cut, payload)
        reply.op_s, reply.raw_bytes, reply.size = tuple(trace.op_s[: cut.k]), len(data), trace.size
        return reply

    def _smaller(self, position: int, data: bytes, reason: str) -> Reply:
        """Answer with the file itself."""
        self._executor.count(reason)
        reply = self._reply(position, RAW, data)
        reply.reason = reason
        return reply

    def _raw(self, position: int, reason: str | None = None) -> Reply:
        if reason is not None:
            self._executor.count(reason)
        try:
            reply = self._reply(position, RAW, self._read(self._request.samples[position]))
        except StoreError as error:
            return self._failed(position, error)
        reply.reason = reason
        return reply

    def _read(self, sample: int) -> bytes:
        """Return a file; a problem that keeps this node from reading any file ends the request instead."""
        try:
            return self._store.read(sample)
        except StoreError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_DESCRIPTORS:
                raise RetryableError(
                    "this node has too many files and connections open; try again later, or raise its limit on them "
                    "(LimitNOFILE)"
                ) from error
            raise

    def _failed(self, position: int, error: Error) -> Reply:
        """Return an error with what is known about the sample: people look for its id."""
        reply = self._reply(position, RAW, b"")
        reply.error = error
        return reply

    def _reply(self, position: int, cut: Cut, payload: Payload) -> Reply:
        sample, manifest = self._request.samples[position], self._store.manifest
        columns = manifest.values(sample, self._request.columns) if self._request.columns else {}
        return Reply(position, cut, payload, manifest.label(sample), columns=columns)


def _putting_into(queue: SimpleQueue[Task]) -> Callable[[Task], None]:
    """Return a callback that puts a task into a queue without keeping the queue alive.

    A queue and tasks that kept each other alive would hold on to the samples of a stream that was dropped.
    """
    held = weakref.ref(queue)

    def put(task: Task) -> None:
        there = held()
        if there is not None:  # else nobody waits any more
            there.put(task)

    return put
