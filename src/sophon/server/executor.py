"""From a request to replies, without any network.

Invariant 3 lives here: the executor may always do less than asked. Whatever stands in the way of a cut (no core free
in time, an op it does not have, a picture an op fails on, a codec that does not fit) is answered with the raw bytes of
the sample, and counted; the trainer finishes the rest. Only a sample that cannot be read at all is an error.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from sophon.codec.cut import RAW, Cut, check_cut, make_payload
from sophon.codec.table import offered
from sophon.codec.wire import Reply, Request
from sophon.errors import ConfigError, Error, ProtocolError
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.probe import digests, versions
from sophon.server.budget import CpuBudget
from sophon.store import Store

_LOOKAHEAD = 8  # samples of a request that are queued beyond those the cores work on
_PIPELINES = 64  # remembered, most recent first
_Task = Future[tuple[Reply, float]]


class Executor:
    """Answers requests for the samples of some data sets.

    Args:
        stores: Data sets by name.
        budget: CPU for ops.
        patience_s: Longest time a sample may wait for a core, whatever the request says.
        max_pixels: Pictures that declare more are sent as they are.
    """

    def __init__(
        self, stores: Mapping[str, Store], budget: CpuBudget, patience_s: float = 30.0, max_pixels: int | None = None
    ) -> None:
        self._stores = dict(stores)
        self._budget = budget
        self._patience_s = patience_s
        self._max_pixels = max_pixels
        self._pipelines: OrderedDict[str, Pipeline | None] = OrderedDict()
        self._lock = threading.Lock()
        self.on_smaller_cut: Callable[[str], None] = lambda _: None

    @property
    def names(self) -> list[str]:
        """Names of the data sets."""
        return list(self._stores)

    def describe(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a trainer that introduces itself: the data set, the versions here, and what ops give here."""
        store = self._store(str(message.get("dataset", "")))
        answer: dict[str, Any] = {
            "dataset": store.name,
            "samples": len(store),
            "fingerprint": store.manifest.fingerprint,
            "classes": list(store.manifest.classes),
            "has_labels": store.manifest.labels is not None,
            "columns": ["id", *store.manifest.columns.column_names],
            "cores": self._budget.cores,
            "codecs": offered(),
            "versions": versions(),
        }
        if isinstance(message.get("pipeline"), dict):
            pipeline, reason = _known_part(message["pipeline"])
            answer["max_cut"] = 0 if pipeline is None else pipeline.max_cut
            answer["digests"] = [] if pipeline is None else digests(pipeline)
            answer["reason"] = reason
        return answer

    def replies(self, request: Request) -> Work:
        """Return one reply per sample, in the order asked for; the CPU seconds each took are in it."""
        store = self._store(request.dataset)
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
        pipeline = self._pipeline(request)
        return Work(self, store, request, pipeline)

    def count(self, reason: str) -> None:
        """Note that a smaller cut was made than asked for."""
        self.on_smaller_cut(reason)

    def submit(self, task: Callable[[], Reply], patience_s: float) -> _Task | None:
        """Queue work on a sample, or return None if it would wait too long."""
        return self._budget.submit(task, min(patience_s, self._patience_s))

    @property
    def lookahead(self) -> int:
        """How many samples of one request may be queued."""
        return _LOOKAHEAD + 2 * int(self._budget.cores)

    def _store(self, name: str) -> Store:
        store = self._stores.get(name)
        if store is None:
            raise ConfigError(f"no data set {name[:80]!r} here; there is {', '.join(self._stores)}")
        return store

    def _pipeline(self, request: Request) -> Pipeline | None:
        """Return the ops that are known here; None if not even the first is."""
        text = repr(request.pipeline)
        with self._lock:
            if text in self._pipelines:
                self._pipelines.move_to_end(text)
                return self._pipelines[text]
        pipeline, _ = _known_part(request.pipeline)
        pipeline = self._with_limits(pipeline)
        with self._lock:
            self._pipelines[text] = pipeline
            while len(self._pipelines) > _PIPELINES:
                self._pipelines.popitem(last=False)
        return pipeline

    def _with_limits(self, pipeline: Pipeline | None) -> Pipeline | None:
        if pipeline is None or self._max_pixels is None:
            return pipeline
        first = pipeline.ops[0]
        if not isinstance(first, Decode) or first.max_pixels <= self._max_pixels:
            return pipeline
        return Pipeline([Decode(first.mode, self._max_pixels), *pipeline.ops[1:]])


def _known_part(spec: dict[str, Any]) -> tuple[Pipeline | None, str]:
    """Return the longest beginning of a pipeline that can run here, and why it is not longer."""
    ops = spec.get("ops")
    if not isinstance(ops, list) or len(ops) > 64:
        raise ProtocolError("expected a pipeline spec with at most 64 ops")
    reason = ""
    for stop in range(len(ops), 0, -1):
        try:
            return Pipeline.from_spec({**spec, "ops": ops[:stop]}), reason
        except ConfigError as error:
            reason = str(error)
    return None, reason


class Work:
    """The samples of one request on their way; iterating does the work.

    Attributes:
        computing_s: How long the iterating thread has waited for ops so far.
    """

    def __init__(self, executor: Executor, store: Store, request: Request, pipeline: Pipeline | None) -> None:
        self._executor = executor
        self._store = store
        self._request = request
        self._pipeline = pipeline
        self.computing_s = 0.0

    def __iter__(self) -> Iterator[Reply]:
        return self._in_order() if self._request.in_order else self._as_finished()

    def _in_order(self) -> Iterator[Reply]:
        queue: deque[Reply | tuple[int, _Task]] = deque()
        for position in range(len(self._request.samples)):
            queue.append(self._start(position))
            while len(queue) > self._executor.lookahead:
                yield self._result(queue.popleft())
        while queue:
            yield self._result(queue.popleft())

    def _as_finished(self) -> Iterator[Reply]:
        running: dict[_Task, int] = {}
        for position in range(len(self._request.samples)):
            started = self._start(position)
            if isinstance(started, Reply):
                yield started
                continue
            running[started[1]] = started[0]
            block = len(running) > self._executor.lookahead
            yield from self._ended(running, None if block else 0)
        while running:
            yield from self._ended(running, None)

    def _ended(self, running: dict[_Task, int], timeout_s: float | None) -> Iterator[Reply]:
        start_s = time.monotonic()
        done, _ = wait(running, timeout_s, FIRST_COMPLETED)
        self.computing_s += time.monotonic() - start_s
        for task in done:
            yield self._result((running.pop(task), task))

    def _start(self, position: int) -> Reply | tuple[int, _Task]:
        cut = self._request.cuts[position]
        if cut == RAW:
            return self._raw(position)
        try:
            if self._pipeline is None:
                raise ConfigError("no op of this pipeline is known here")
            check_cut(self._pipeline, cut)
        except ConfigError:
            return self._raw(position, "unknown_op")
        task = self._executor.submit(lambda: self._process(position, cut), self._request.patience_s)
        return self._raw(position, "overload") if task is None else (position, task)

    def _result(self, started: Reply | tuple[int, _Task]) -> Reply:
        if isinstance(started, Reply):
            return started
        start_s = time.monotonic()
        reply, cpu_s = started[1].result()
        self.computing_s += time.monotonic() - start_s
        reply.cpu_s = cpu_s
        return reply

    def _process(self, position: int, cut: Cut) -> Reply:
        """Run in a worker thread."""
        assert self._pipeline is not None
        request = self._request
        sample = request.samples[position]
        try:
            data = self._store.read(sample)
        except Error as error:
            return self._failed(position, error)
        trace = Trace(len(self._pipeline))
        try:
            payload = make_payload(self._pipeline, data, Key(request.seed, request.epoch, sample), cut, trace)
        except Exception:  # noqa: BLE001 - decoders, codecs and plug-in ops may raise anything
            # The trainer will meet the same trouble, with the file at hand and the user's policy for bad samples.
            self._executor.count("op_failed")
            reply = self._reply(position, RAW, data)
            reply.reason = "op_failed"
            return reply
        reply = self._reply(position, cut, payload)
        reply.op_s, reply.raw_bytes, reply.size = tuple(trace.op_s[: cut.k]), len(data), trace.size
        return reply

    def _raw(self, position: int, reason: str | None = None) -> Reply:
        if reason is not None:
            self._executor.count(reason)
        try:
            reply = self._reply(position, RAW, self._store.read(self._request.samples[position]))
        except Error as error:
            return self._failed(position, error)
        reply.reason = reason
        return reply

    def _failed(self, position: int, error: Error) -> Reply:
        """Return what is known of a sample that cannot be read: its id is what people look for."""
        reply = self._reply(position, RAW, b"")
        reply.error = error
        return reply

    def _reply(self, position: int, cut: Cut, payload: bytes) -> Reply:
        sample, manifest = self._request.samples[position], self._store.manifest
        columns = manifest.values(sample, self._request.columns) if self._request.columns else {}
        return Reply(position, cut, payload, manifest.label(sample), columns=columns)
