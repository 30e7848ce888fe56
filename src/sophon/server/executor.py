"""From a request to replies, without any network.

Invariant 3 lives here: the executor may always do less than asked. Whatever stands in the way of a cut (no core free
in time, an op it does not have, a picture an op fails on, crashes on or takes too long for, a codec that does not fit)
is answered with the raw bytes of the sample, and counted; the trainer finishes the rest. Only a sample that cannot be
read at all is an error.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, Cut, check_cut
from sophon.codec.table import offered
from sophon.codec.wire import Reply, Request
from sophon.errors import AccessError, ConfigError, Error, ProtocolError, RetryableError, StoreError
from sophon.pipeline import Key, Kind, Pipeline, Trace
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.probe import versions
from sophon.server.access import EVERYTHING, Rights
from sophon.server.budget import CpuBudget, Slot
from sophon.server.crashes import Crashes
from sophon.server.limits import Limits
from sophon.server.maker import Maker, Threads, WorkerLost
from sophon.server.room import Room, Seat
from sophon.store import Store
from sophon.units import format_bytes

_LOOKAHEAD = 64  # samples of a request that may be made ahead, while the link does not take more
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_PIPELINES = 64  # remembered, most recent first
_Task = Future[tuple[Reply, float]]


class Executor:
    """Answers requests for the samples of some data sets.

    Args:
        stores: Data sets by name.
        budget: CPU for ops.
        patience_s: Longest time a sample may wait for a core, whatever the request says.
        limits: What a request and a sample may take.
        maker: Where ops run.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        budget: CpuBudget,
        patience_s: float = 30.0,
        limits: Limits | None = None,
        maker: Maker | None = None,
    ) -> None:
        self._stores = dict(stores)
        self._budget = budget
        self._patience_s = patience_s
        self.limits = limits or Limits()
        self.maker = maker or Threads()
        self.crashes = Crashes()
        self._pipelines: OrderedDict[str, Pipeline | None] = OrderedDict()
        self._probes: OrderedDict[str, tuple[list[str], str]] = OrderedDict()
        self._lock = threading.Lock()
        self.on_smaller_cut: Callable[[str], None] = lambda _: None

    def names(self, rights: Rights = EVERYTHING) -> list[str]:
        """Names of the data sets that a caller may read."""
        return rights.readable(self._stores)

    def describe(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> dict[str, Any]:
        """Answer a trainer that introduces itself: the data set, the versions here, and what ops give here."""
        store = self._store(str(message.get("dataset", "")), rights)
        answer: dict[str, Any] = {
            "dataset": store.name,
            "samples": len(store),
            "fingerprint": store.manifest.fingerprint,
            "classes": list(store.manifest.classes),
            "has_labels": store.manifest.labels is not None,
            "columns": ["id", *store.manifest.columns.column_names],
            "cores": self._budget.cores,
            "max_samples": self.limits.request_samples,
            "codecs": offered(),
            "versions": versions(),
        }
        if isinstance(message.get("pipeline"), dict):
            pipeline, reason = _known_part(message["pipeline"], self.limits)
            found, problem = ([], "") if pipeline is None else self._probe(pipeline)
            answer["max_cut"] = 0 if pipeline is None else pipeline.max_cut
            answer["digests"] = found
            answer["reason"] = problem or reason
        return answer

    def _probe(self, pipeline: Pipeline) -> tuple[list[str], str]:
        """Run the pipeline on the built-in picture, once; ops may crash on it as on any other."""
        with self._lock:
            if pipeline.fingerprint in self._probes:
                return self._probes[pipeline.fingerprint]
        task = self._budget.submit(lambda _: self.maker.probe(pipeline), math.inf)
        result = self.maker.probe(pipeline) if task is None else task.result()[0]
        with self._lock:
            self._probes[pipeline.fingerprint] = result
            if len(self._probes) > _PIPELINES:
                self._probes.popitem(last=False)
        return result

    def replies(self, request: Request, rights: Rights = EVERYTHING, seat: Seat | None = None) -> Work:
        """Return one reply per sample; the CPU seconds each took are in it.

        A request can name nothing but samples of a manifest: what cannot be answered is refused here, before any data
        is read.
        """
        store = self._store(request.dataset, rights)
        found = store.manifest.fingerprint
        if request.dataset_fingerprint not in ("", found):
            raise ConfigError(
                f"data set {request.dataset} is {found} here, but the trainer started with "
                f"{request.dataset_fingerprint}; the files have changed: start the run anew"
            )
        unknown = [name for name in request.columns if name != "id" and name not in store.manifest.columns.column_names]
        if unknown:
            raise ConfigError(f"data set {request.dataset} has no column {unknown[0]!r}")
        for sample in request.samples:
            if sample >= len(store):
                raise ConfigError(f"data set {request.dataset} has {len(store):,} samples; there is no sample {sample}")
        self._check_size(store, request)
        pipeline = self._pipeline(request)
        return Work(self, store, request, pipeline, seat or Room(self.limits).enter())

    def count(self, reason: str) -> None:
        """Note that a smaller cut was made than asked for."""
        self.on_smaller_cut(reason)

    def submit(self, task: Callable[[Slot], Reply], patience_s: float) -> _Task | None:
        """Queue work on a sample, or return None if it would wait too long."""
        return self._budget.submit(task, min(patience_s, self._patience_s))

    def withdraw(self, tasks: Iterable[_Task]) -> None:
        """Give up work whose request has ended: its trainer has left, and the cores belong to the others."""
        self._budget.withdraw(tasks)

    def _check_size(self, store: Store, request: Request) -> None:
        limits = self.limits
        if len(request.samples) > limits.request_samples:
            raise ConfigError(
                f"a request for {len(request.samples):,} samples; this node takes {limits.request_samples:,} at most: "
                "ask for fewer at once, or raise --max-request-samples there"
            )
        size_bytes = int(store.manifest.sizes[list(request.samples)].sum()) if request.samples else 0
        if size_bytes > limits.request_bytes:
            raise ConfigError(
                f"a request for {format_bytes(size_bytes)}; this node takes {format_bytes(limits.request_bytes)} at "
                "most: ask for fewer samples at once, or raise --max-request-bytes there"
            )

    @property
    def lookahead(self) -> int:
        """How many samples of one request may be queued."""
        return _LOOKAHEAD + 2 * int(self._budget.cores)

    def _store(self, name: str, rights: Rights) -> Store:
        names = self.names(rights)
        if name in names:
            return self._stores[name]
        there_is = ", ".join(names) or "none"
        if rights.datasets is None:
            raise ConfigError(f"no data set {name[:80]!r} here; there is {there_is}")
        # The same words whether it exists or not: a token tells nothing about what it does not open.
        raise AccessError(f"this token opens no data set {name[:80]!r}; it opens {there_is}")

    def _pipeline(self, request: Request) -> Pipeline | None:
        """Return the ops that are known here; None if not even the first is."""
        text = repr(request.pipeline)
        with self._lock:
            if text in self._pipelines:
                self._pipelines.move_to_end(text)
                return self._pipelines[text]
        pipeline, _ = _known_part(request.pipeline, self.limits)
        with self._lock:
            self._pipelines[text] = pipeline
            while len(self._pipelines) > _PIPELINES:
                self._pipelines.popitem(last=False)
        return pipeline


def _known_part(spec: dict[str, Any], limits: Limits) -> tuple[Pipeline | None, str]:
    """Return the longest beginning of a pipeline that may run here, and why it is not longer."""
    ops = spec.get("ops")
    if not isinstance(ops, list) or len(ops) > 64:
        raise ProtocolError("expected a pipeline spec with at most 64 ops")
    reason = ""
    for stop in range(len(ops), 0, -1):
        try:
            pipeline = Pipeline.from_spec({**spec, "ops": ops[:stop]})
        except ConfigError as error:
            reason = str(error)
        else:
            return _within(pipeline, limits, reason)
    return None, reason


def _within(pipeline: Pipeline, limits: Limits, reason: str) -> tuple[Pipeline | None, str]:
    """Return as much of a pipeline as keeps to the limit on pixels."""
    for k, spec in enumerate(pipeline.specs[1:]):
        sized = spec.kind in (Kind.IMAGE, Kind.TENSOR) and None not in spec.shape
        if sized and spec.height * spec.width > limits.pixels:
            reason = f"{pipeline.ops[k].name()} gives {spec}, beyond the {limits.pixels:,} pixels that this node allows"
            if k == 0:
                return None, reason
            pipeline = pipeline.prefix(k)
            break
    first = pipeline.ops[0]
    if isinstance(first, Decode) and first.max_pixels > limits.pixels:
        pipeline = Pipeline([Decode(first.mode, limits.pixels), *pipeline.ops[1:]])
    return pipeline, reason


class Work:
    """The samples of one request on their way; iterating does the work.

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
        self.computing_s = 0.0

    def __iter__(self) -> Iterator[Reply]:
        return (reply for reply in self.pulse(None) if reply is not None)

    def pulse(self, every_s: float | None) -> Iterator[Reply | None]:
        """Yield the replies, and None whenever none was finished for that long."""
        return self._in_order(every_s) if self._request.in_order else self._as_finished(every_s)

    def _in_order(self, every_s: float | None) -> Iterator[Reply | None]:
        queue: deque[Reply | tuple[int, _Task]] = deque()
        try:
            for position in range(len(self._request.samples)):
                while queue and self._must_wait(position, len(queue)):
                    yield from self._next(queue, every_s)
                queue.append(self._start(position))
            while queue:
                yield from self._next(queue, every_s)
        finally:  # also where the stream is dropped halfway
            self._executor.withdraw(started[1] for started in queue if not isinstance(started, Reply))

    def _next(self, queue: deque[Reply | tuple[int, _Task]], every_s: float | None) -> Iterator[Reply | None]:
        started = queue[0]
        if not isinstance(started, Reply):
            while not self._wait([started[1]], every_s):
                yield None
        yield self._result(queue.popleft())

    def _as_finished(self, every_s: float | None) -> Iterator[Reply | None]:
        running: dict[_Task, int] = {}
        try:
            for position in range(len(self._request.samples)):
                while running and self._must_wait(position, len(running)):
                    yield from self._ended(running, every_s) or [None]
                started = self._start(position)
                if isinstance(started, Reply):
                    yield started
                    continue
                running[started[1]] = started[0]
                yield from self._ended(running, 0)
            while running:
                yield from self._ended(running, every_s) or [None]
        finally:  # also where the stream is dropped halfway
            self._executor.withdraw(running)

    def _must_wait(self, position: int, under_way: int) -> bool:
        """Return whether those under way should end before one more is started.

        One sample may always be worked on: a request whose trainer does not read must not stop the others.
        """
        return under_way > self._executor.lookahead or not self._seat.has_room(self._size_bytes(position))

    def _size_bytes(self, position: int) -> int:
        return int(self._store.manifest.sizes[self._request.samples[position]])

    def _ended(self, running: dict[_Task, int], timeout_s: float | None) -> list[Reply | None]:
        return [self._result((running.pop(task), task)) for task in self._wait(running, timeout_s)]

    def _wait(self, tasks: Iterable[_Task], timeout_s: float | None) -> set[_Task]:
        """Return those of some tasks that have ended, at least one unless time runs out."""
        start_s = time.monotonic()
        done, _ = wait(tasks, timeout_s, FIRST_COMPLETED)
        self.computing_s += time.monotonic() - start_s
        return done

    def _start(self, position: int) -> Reply | tuple[int, _Task]:
        cut, sample, executor = self._request.cuts[position], self._request.samples[position], self._executor
        size_bytes = self._size_bytes(position)
        if size_bytes > executor.limits.sample_bytes:
            most = format_bytes(executor.limits.sample_bytes)
            problem = f"sample {sample} has {format_bytes(size_bytes)}, more than the {most} that this node reads"
            return Reply(position, error=StoreError(f"{problem}; leave it out, or raise --max-sample-bytes there"))
        self._seat.hold(size_bytes)
        if cut == RAW:
            return self._raw(position)
        try:
            if self._pipeline is None:
                raise ConfigError("no op of this pipeline is known here")
            check_cut(self._pipeline, cut)
        except ConfigError:
            return self._raw(position, "unknown_op")
        task = executor.submit(lambda slot: self._process(slot, position, cut), self._request.patience_s)
        return self._raw(position, "overload") if task is None else (position, task)

    def _result(self, started: Reply | tuple[int, _Task]) -> Reply:
        if isinstance(started, Reply):
            return started
        reply, cpu_s = started[1].result()
        reply.cpu_s = cpu_s
        self._seat.hold(len(reply.payload) - self._size_bytes(reply.position))
        return reply

    def _process(self, slot: Slot, position: int, cut: Cut) -> Reply:
        """Run in a thread of the budget."""
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
            key = Key(request.seed, request.epoch, sample)
            payload = executor.maker.make(slot, self._pipeline, data, key, cut, trace)
        except WorkerLost as lost:
            executor.crashes.fell(work, (self._store.name, sample))
            return self._smaller(position, data, lost.reason)
        except Exception:  # noqa: BLE001 - decoders, codecs and plug-in ops may raise anything
            # The trainer will meet the same trouble, with the file at hand and the user's policy for bad samples.
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
        """Return a file; what keeps this node from reading any is not told of the sample, but ends the request."""
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
        """Return what is known of a sample that cannot be read: its id is what people look for."""
        reply = self._reply(position, RAW, b"")
        reply.error = error
        return reply

    def _reply(self, position: int, cut: Cut, payload: Payload) -> Reply:
        sample, manifest = self._request.samples[position], self._store.manifest
        columns = manifest.values(sample, self._request.columns) if self._request.columns else {}
        return Reply(position, cut, payload, manifest.label(sample), columns=columns)
