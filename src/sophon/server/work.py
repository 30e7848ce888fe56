"""A request in progress: its samples are read and processed, or answered with a smaller cut than requested.

Every sample is read by the reading stage (`store.reading`). A run of raw samples is read into one buffer, which becomes
a record batch without a copy; the bytes of a sample to be cut go to the CPU budget, so that no core waits for a disk.
The iterating thread only starts reads and takes results.

Concurrency: one thread iterates; the stage's threads run `Work._read_raw` and `Work._read_to_cut`, the budget's threads
run `Work._process`. Their results go through one queue.
"""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from sophon.bundle import divided, pack
from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, Cut, check_cut, looks_ahead
from sophon.codec.window.bands import bands_of
from sophon.codec.window.refusal import WholeNeeded
from sophon.codec.window.windowed import Windowed
from sophon.errors import ConfigError, Error, RetryableError, StoreError
from sophon.link.closed import Envelope
from sophon.link.wire import WHOLE, Reply, Request, StreamClock, raw_batch
from sophon.pipeline import Pipeline, Trace
from sophon.pipeline.region import can_crop_early
from sophon.server.maker import ChildLost, NoSpace
from sophon.server.seats import Seat
from sophon.server.tenants.slot import Slot
from sophon.store import Store
from sophon.store.reading import HEAVY_CPU_S, Reading
from sophon.units import format_bytes

if TYPE_CHECKING:
    from sophon.server.executor import Executor

Task = Future[tuple[Reply, float]]
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_WINDOW = 8  # most samples to be cut that one job reads: the cores wait for the first of them


@dataclass(frozen=True)
class Run:
    """Raw samples in one buffer, ready to be sent.

    Args:
        batch: Replies for the samples.
        size_bytes: Size of their payloads, in bytes.
        envelope: Memory that holds the payloads.
    """

    batch: pa.RecordBatch
    size_bytes: int
    envelope: Envelope


class _Begun(NamedTuple):
    """A sample that is being processed, or will be."""

    position: int
    data: bytes
    since_s: float


class _Came(NamedTuple):
    """A result, with the numbers of raw-sample jobs and of samples to cut that it completes."""

    result: Reply | Run | Exception
    raw_jobs: int = 0
    cut_samples: int = 0


class Space:
    """The space for a payload, which replaces the space of the file it is made from.

    Args:
        seat: Seat of the request.
        file_bytes: Bytes held for the file.
        more_bytes: Bytes sent along with the payload.
    """

    def __init__(self, seat: Seat, file_bytes: int, more_bytes: int = 0) -> None:
        self._seat = seat
        self._file_bytes = self._held_bytes = file_bytes
        self._more_bytes = more_bytes

    def claim(self, size_bytes: int) -> bool:
        """Hold a payload instead of the file, if there is space."""
        wanted_bytes = size_bytes + self._more_bytes
        if not self._seat.hold(wanted_bytes - self._held_bytes, is_certain=False):
            return False
        self._held_bytes = wanted_bytes
        return True

    def settle(self, size_bytes: int) -> None:
        """Hold the final result."""
        self._seat.hold(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes

    def give_up(self) -> None:
        """Hold the file instead of the payload again."""
        self.settle(self._file_bytes)


class Work:
    """The samples of one request, which are processed as the caller iterates."""

    def __init__(
        self,
        executor: Executor,
        store: Store,
        request: Request,
        pipeline: Pipeline | None,
        seat: Seat,
        reading: Reading,
    ) -> None:
        self._executor = executor
        self._store = store
        self._request = request
        self._pipeline = pipeline
        self._seat = seat
        self._reading = reading
        self._reads = reading.queue(in_order=request.in_order)
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a dropped stream at any moment
        self._tasks: dict[Task, _Begun] = {}
        self._early: dict[int, Reply] = {}  # finished before their turn, if replies come in order
        self._sizes: list[int] = store.manifest.sizes[np.array(request.samples, np.int64)].tolist()
        self._most_bytes = min(executor.limits.sample_bytes, seat.largest_bytes)
        self._raw_under_way = 0  # jobs whose result has not been taken yet
        self._left_out_bytes = 0  # bytes not read, of samples that were read only in part
        self._to_cut: list[tuple[int, Cut]] = []  # samples for the next job to read
        self._cut_under_way = 0  # samples between the start of their read and the taking of their reply
        # Finished tasks put themselves here: checking all running tasks whenever one ends would cost a third as much as
        # an indexed window.
        self._ended: SimpleQueue[Task | _Came] = SimpleQueue()
        self._put = _putting_into(self._ended)
        self._clock = StreamClock()

    @property
    def clock(self) -> StreamClock:
        """How the time has been spent so far."""
        clock, reads = self._clock, self._reads
        clock.reads, clock.read_s = reads.reads, reads.read_s
        # A read is counted as a whole when it ends; parts that were left out are counted when it begins.
        clock.read_bytes = max(reads.read_bytes - self._left_out_bytes, clock.read_bytes)
        return clock

    @property
    def computing_s(self) -> float:
        """How long the iterating thread has waited for ops so far."""
        return self._clock.computing_s

    def __iter__(self) -> Iterator[Reply]:
        return (reply for reply in self.pulse(lambda: None) if isinstance(reply, Reply))

    def pulse(
        self, patience_s: Callable[[], float | None], run_bytes: Callable[[int], float] | None = None
    ) -> Iterator[Reply | Run | None]:
        """Yield the replies, and None whenever there is none yet, so that the caller can do other work.

        Args:
            patience_s: Called before each wait; returns how long it may last, or None for no limit.
            run_bytes: Returns how many bytes of raw samples may come as one `Run`, given how many are left; None for a
                reply to each sample.
        """
        is_in_order = self._request.in_order
        if is_in_order or self._request.columns:  # runs do not support ordered replies or columns
            run_bytes = None
        replies = self._as_finished(patience_s, run_bytes)
        try:
            yield from self._in_turn(replies) if is_in_order else replies
        finally:  # also if the stream is dropped halfway
            self._close()

    def _close(self) -> None:
        self._reads.close()
        with self._lock:
            tasks = list(self._tasks)
        self._executor.withdraw(tasks)

    def _as_finished(
        self, patience_s: Callable[[], float | None], run_bytes: Callable[[int], float] | None
    ) -> Iterator[Reply | Run | None]:
        singles, runs = self._divided(run_bytes is not None)
        at = 0
        while True:
            if run_bytes is not None:
                self._start_runs(runs, run_bytes)
            while at < len(singles) and not self._is_full(singles[at]):
                reply = self._start(singles[at])
                at += 1
                if reply is not None:
                    yield reply
            self._flush_cuts()
            if self._is_under_way:
                yield self._next(patience_s())
            elif at == len(singles) and not runs:
                return
            else:  # there is no space for the next sample until others have been sent
                self._seat.wait(patience_s())
                yield None

    def _in_turn(self, replies: Iterator[Reply | Run | None]) -> Iterator[Reply | None]:
        """Yield replies in the order of the request, and None for each that has to wait for its turn."""
        turn = 0
        for reply in replies:
            if isinstance(reply, Reply):
                self._early[reply.position] = reply
            if turn not in self._early:
                yield None
            while turn in self._early:
                yield self._early.pop(turn)
                turn += 1

    @property
    def _is_under_way(self) -> bool:
        return self._raw_under_way > 0 or self._cut_under_way > 0

    def _divided(self, in_runs: bool) -> tuple[list[int], deque[int]]:
        """Return the positions to start one by one, and the positions of raw samples that may come in runs."""
        count = len(self._request.cuts)
        if not in_runs:
            return list(range(count)), deque()
        most = self._most_bytes
        is_raw = [c == RAW and size <= most for c, size in zip(self._request.cuts, self._sizes, strict=True)]
        singles = [position for position in range(count) if not is_raw[position]]
        return singles, deque(position for position in range(count) if is_raw[position])

    def _is_full(self, position: int) -> bool:
        """Return whether pending samples should be finished or sent before one more is started.

        A request may always hold a little, so trainers that do not read cannot stop the others (`seats`).
        """
        size_bytes = self._sizes[position]
        if size_bytes <= self._most_bytes and not self._seat.has_space(size_bytes):
            return True
        ahead = self._cut_under_way + len(self._to_cut) + len(self._early)
        is_full = ahead > self._executor.lookahead or (
            self._request.cuts[position] == RAW and self._raw_under_way > self._reading.at_once
        )
        return is_full and (self._is_under_way or bool(self._to_cut))

    # --- starting reads -----------------------------------------------------------------------------------------------

    def _start_runs(self, left: deque[int], run_bytes: Callable[[int], float]) -> None:
        """Queue reads of raw samples, one run per job, as far ahead as is worthwhile."""
        while left and self._raw_under_way <= self._reading.at_once:
            most_bytes = run_bytes(sum(self._sizes[position] for position in left))
            run = [left.popleft()]
            size_bytes = self._sizes[run[0]]
            if not self._seat.has_space(size_bytes):
                left.appendleft(run[0])
                return
            most = self._reading.run_samples
            while left and len(run) < most and size_bytes + self._sizes[left[0]] <= most_bytes:
                if not self._seat.has_space(size_bytes + self._sizes[left[0]]):
                    break
                size_bytes += self._sizes[left[0]]
                run.append(left.popleft())
            self._seat.hold(size_bytes)
            self._read_later(run, size_bytes)

    def _start(self, position: int) -> Reply | None:
        """Queue the read of a sample, at once or with those after it; return its reply if it is too large."""
        cut, executor, size_bytes = self._request.cuts[position], self._executor, self._sizes[position]
        if size_bytes > self._most_bytes:
            sample, most = self._request.samples[position], format_bytes(self._most_bytes)
            problem = f"sample {sample} has {format_bytes(size_bytes)}, more than the {most} that this node reads"
            limit = "sample-bytes" if self._most_bytes == executor.limits.sample_bytes else "in-flight"
            return self._failed(position, StoreError(f"{problem}; leave it out, or raise --max-{limit} there"))
        self._seat.hold(size_bytes)
        if cut == RAW:
            self._read_later([position], size_bytes)
        elif not self._may_cut(cut):
            executor.count("unknown_op")
            self._read_later([position], size_bytes, "unknown_op")
        else:
            self._to_cut.append((position, cut))
            if len(self._to_cut) >= min(self._reading.run_samples, _WINDOW):
                self._flush_cuts()
        return None

    def _may_cut(self, cut: Cut) -> bool:
        try:
            if self._pipeline is not None:
                check_cut(self._pipeline, cut)
        except ConfigError:
            return False
        return self._pipeline is not None

    def _read_later(self, positions: list[int], size_bytes: int, reason: str | None = None) -> None:
        self._raw_under_way += 1
        self._reads.add(lambda: self._read_raw(positions, size_bytes, reason), len(positions), size_bytes)

    def _flush_cuts(self) -> None:
        if self._to_cut:
            wanted, self._to_cut = self._to_cut, []
            self._cut_under_way += len(wanted)
            size_bytes = sum(self._sizes[position] for position, _ in wanted)
            self._reads.add(lambda: self._read_to_cut(wanted), len(wanted), size_bytes)

    # --- in threads of the reading stage ------------------------------------------------------------------------------

    def _read_raw(self, positions: list[int], size_bytes: int, reason: str | None) -> Callable[[], None]:
        """Read samples that are sent raw."""
        start_s = time.thread_time()
        try:
            read = self._raw_reply(positions[0], reason) if len(positions) == 1 else self._run(positions, size_bytes)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that iterates: the request ends with it
            came = _Came(error)
        else:
            came = _Came(read, raw_jobs=1)
        cpu_s = time.thread_time() - start_s
        if cpu_s > HEAVY_CPU_S:  # a row group of a Parquet file, not a file of its own
            self._executor.charge(self._seat.tenant, cpu_s)
        return lambda: self._ended.put(came)

    def _raw_reply(self, position: int, reason: str | None) -> Reply:
        try:
            reply = self._reply(position, RAW, self._read(position))
        except StoreError as error:
            return self._failed(position, error)
        reply.reason = reason
        return reply

    def _run(self, positions: list[int], size_bytes: int) -> Run:
        """Read samples into one buffer; a sample that cannot be read leaves no gap, and gets a separate reply."""
        envelope = Envelope(len(positions), size_bytes)
        samples = [self._request.samples[position] for position in positions]
        ends, failed = self._store.read_run(samples, envelope.memory)
        for place, error in failed.items():
            self._check(error)
            self._ended.put(_Came(self._failed(positions[place], error)))
        if failed:
            positions = [position for place, position in enumerate(positions) if place not in failed]
            samples = [self._request.samples[position] for position in positions]
        labels = self._store.manifest.labels
        batch = raw_batch(
            np.array(positions, np.int32),
            np.array(ends, np.int32),
            envelope.payloads,
            None if labels is None else labels[samples],
        )
        return Run(batch, ends[-1] if ends else 0, envelope)

    def _read_to_cut(self, wanted: list[tuple[int, Cut]]) -> None:
        """Read samples and pass them to the budget, one by one."""
        for position, cut in wanted:
            if self._reads.is_closed:
                return
            start_s = time.thread_time()
            try:
                data = self._window(position) or self._read(position)
            except StoreError as error:
                self._ended.put(_Came(self._failed(position, error), cut_samples=1))
                continue
            except Exception as error:  # noqa: BLE001 - as above
                self._ended.put(_Came(error))
                return
            self._submit(position, cut, data, time.thread_time() - start_s)

    def _submit(self, position: int, cut: Cut, data: bytes, read_cpu_s: float) -> None:
        with self._lock:
            if self._reads.is_closed:
                return

            def process(slot: Slot) -> Reply:
                # Reading is part of a sample's cost near storage.
                slot.elsewhere_s += read_cpu_s
                return self._process(slot, position, cut, data)

            task = self._executor.submit(process, self._request.patience_s, self._seat.tenant)
            if task is not None:
                self._tasks[task] = _Begun(position, data, time.monotonic())
        if task is None:
            self._ended.put(_Came(self._smaller(position, data, "overload"), cut_samples=1))
        else:
            task.add_done_callback(self._put)

    def _read(self, position: int) -> bytes:
        """Return a file; a problem that keeps this node from reading any file ends the request instead."""
        try:
            return self._store.read(self._request.samples[position])
        except StoreError as error:
            self._check(error)
            raise

    def _window(self, position: int) -> Windowed | None:
        """Return a window read from an object store by its index, if it is smaller than the whole object."""
        bands, request = bands_of(self._store), self._request
        cut = request.cuts[position]
        if bands is None or request.fields or self._pipeline is None:
            return None
        if not looks_ahead(cut) and not can_crop_early(self._pipeline, cut.k):  # the cut needs pixels outside the crop
            return None
        window = bands.window(request.samples[position], self._pipeline, request.key(position))
        if window is not None:
            with self._lock:
                self._left_out_bytes += window.file_bytes - window.read_bytes
        return window

    @staticmethod
    def _check(error: StoreError) -> None:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_DESCRIPTORS:
            raise RetryableError(
                "this node has too many files and connections open; try again later, or raise its limit on them "
                "(LimitNOFILE)"
            ) from error

    # --- taking results -----------------------------------------------------------------------------------------------

    def _next(self, timeout_s: float | None) -> Reply | Run | None:
        """Return the next result, or None if there is none in time."""
        start_s = time.monotonic()
        try:
            ended = self._ended.get(timeout=timeout_s)
        except Empty:
            self._reading.staff()  # the awaited read may hang
            with self._lock:
                begun = next(iter(self._tasks.values()), None)
            self._waited(start_s, begun)
            return None
        if isinstance(ended, _Came):
            self._waited(start_s, None)
            return self._taken(ended)
        with self._lock:
            begun = self._tasks.pop(ended)
        self._waited(start_s, begun)
        if ended.cancelled():  # the budget was closed in the meantime
            reply = self._smaller(begun.position, begun.data, "overload")
        else:
            reply, cpu_s = ended.result()
            reply.cpu_s = cpu_s
        return self._taken(_Came(reply, cut_samples=1))

    def _waited(self, start_s: float, begun: _Begun | None) -> None:
        """Count a wait: time since an op started as waiting for ops, time before that as waiting for the store."""
        now_s = time.monotonic()
        computing_s = 0.0 if begun is None else min(now_s - start_s, now_s - begun.since_s)
        self._clock.computing_s += computing_s
        self._clock.reading_s += now_s - start_s - computing_s

    def _taken(self, came: _Came) -> Reply | Run:
        self._raw_under_way -= came.raw_jobs
        self._cut_under_way -= came.cut_samples
        if isinstance(came.result, Exception):
            raise came.result
        if isinstance(came.result, Reply) and came.result.cut == RAW:
            # The payload already replaces the file in the count (`Space`).
            self._seat.hold(len(came.result.payload) - self._sizes[came.result.position])
        return came.result

    # --- making replies -----------------------------------------------------------------------------------------------

    def _process(self, slot: Slot, position: int, cut: Cut, data: bytes) -> Reply:
        """Make the reply for one sample, in a thread of the budget."""
        assert self._pipeline is not None
        request, executor = self._request, self._executor
        sample = request.samples[position]
        tenant, work = self._seat.tenant, (self._pipeline.fingerprint, cut)
        problem = executor.expected_problem(tenant, work, (self._store.name, sample))
        if problem is not None:
            return self._smaller(position, data, problem)
        # A pipeline handles the fields that it knows; others are sent unchanged.
        first, others = divided(data, 0 if self._pipeline.fields else len(request.fields))
        file_bytes = data.file_bytes if isinstance(data, Windowed) else len(data)
        trace, space = Trace(len(self._pipeline)), Space(self._seat, file_bytes, sum(map(len, others)))
        try:
            made = executor.maker.make(slot, self._pipeline, first, request.key(position), cut, trace, space.claim)
        except ChildLost as lost:
            space.give_up()
            if lost.had_begun:
                executor.crashes.fell(tenant, work, (self._store.name, sample))
            return self._smaller(position, data, lost.reason)
        except NoSpace:
            executor.crowding.refused(tenant, work)
            return self._smaller(position, data, "memory")
        except WholeNeeded:
            space.give_up()
            return self._smaller(position, data, WHOLE)
        except Exception:  # noqa: BLE001 - decoders, codecs and plug-in ops may raise anything
            space.give_up()
            # The trainer will hit the same problem, and has the file and the user's policy for bad samples.
            return self._smaller(position, data, "op_failed")
        executor.crashes.stood(tenant, work)
        executor.crowding.fitted(tenant, work)
        reply = self._reply(position, cut, pack([made, *others]) if others else made)
        space.settle(len(reply.payload))
        reply.op_s, reply.raw_bytes, reply.size = tuple(trace.op_s[: cut.k]), file_bytes, trace.size
        return reply

    def _smaller(self, position: int, data: bytes, reason: str) -> Reply:
        """Answer with the file itself."""
        self._executor.count(reason)
        try:
            reply = self._reply(position, RAW, data.whole() if isinstance(data, Windowed) else data)
        except StoreError as error:  # only a window was read: the rest of the file is missing
            return self._failed(position, error)
        reply.reason = reason
        return reply

    def _failed(self, position: int, error: Error) -> Reply:
        """Return an error with what is known about the sample, such as its id."""
        reply = self._reply(position, RAW, b"")
        reply.error = error
        return reply

    def _reply(self, position: int, cut: Cut, payload: Payload) -> Reply:
        sample, manifest = self._request.samples[position], self._store.manifest
        columns = manifest.values(sample, self._request.columns) if self._request.columns else {}
        return Reply(position, cut, payload, manifest.label(sample), columns=columns)


def _putting_into(queue: SimpleQueue[Task | _Came]) -> Callable[[Task], None]:
    """Return a callback that puts a task into a queue without keeping the queue alive.

    A queue and tasks that kept each other alive would hold on to the samples of a stream that was dropped.
    """
    held = weakref.ref(queue)

    def put(task: Task) -> None:
        there = held()
        if there is not None:  # otherwise nobody waits any more
            there.put(task)

    return put
