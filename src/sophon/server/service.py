"""The executor behind Arrow Flight.

Concurrency: Flight runs each call on a thread of its own. The thread that sends a reply stream also pulls it, and
blocks while the trainer reads slowly, so a request holds no more in memory than one record batch and the executor's
lookahead.

A stream is never silent for long. Flight sends the schema before any work is done, and while nothing is ready an empty
record batch goes out every `HEARTBEAT_S`. That is how a trainer tells a node at work from one that is gone
(`link.silence`), and how the node notices that a trainer has left.
Nothing is read in the stream's own thread, so a disk that does not deliver keeps neither the stream nor others silent.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from sophon.codec.cut import RAW
from sophon.errors import AccessError, Error, RetryableError
from sophon.link.wire import (
    REPLY_SCHEMA,
    Reply,
    Request,
    StreamClock,
    batch_of,
    error_to_json,
    parse_json,
    sizes_to_bytes,
)
from sophon.server.access import Access, Rights
from sophon.server.executor import Executor
from sophon.server.gate import NAME as GATE
from sophon.server.gate import Gate, rights_of
from sophon.server.gathering import HEARTBEAT_S, Gathering
from sophon.server.journal import Journal
from sophon.server.limit import RateLimit
from sophon.server.metrics import Metrics
from sophon.server.pace import Paces
from sophon.server.seats import Seat, Seats
from sophon.server.work import Run, Work

_PIECE_BYTES = 1 << 16  # how much the rate limit lets pass at a time
OPEN = Access()


class Service(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Answers Flight calls.

    - ``DoAction("open")``: JSON → JSON; what a data set is and what this node can do with a pipeline.
    - ``DoAction("list")``: names of the data sets.
    - ``DoAction("sizes")``: JSON → the bytes of every file of a data set; see `sophon.link.wire`.
    - ``DoAction("listing")``: JSON → ids, sizes and labels of some samples; see `sophon.link.listing`.
    - ``DoGet``: a `Request` → record batches of replies.

    Args:
        location: Address to listen on.
        executor: Does the work.
        metrics: Counts the work.
        limit: Limit on bytes per second, if any.
        access: Who may call, and how calls are protected.
    """

    def __init__(
        self,
        location: str,
        executor: Executor,
        metrics: Metrics,
        limit: RateLimit | None = None,
        access: Access = OPEN,
    ) -> None:
        self._executor = executor
        self._metrics = metrics
        self._journal = Journal(executor.id_of)
        self._limit = limit
        self._seats = seats = Seats(executor.limits, 1 if access.tokens is None else len(access.tokens))
        # Not `self._seats`: what the metrics hold on to would keep gRPC's threads alive when the server is gone.
        metrics.in_flight.set_function(lambda: seats.requests)
        metrics.in_flight_bytes.set_function(lambda: seats.held_bytes)
        self._paces = Paces()
        self._draining = threading.Event()
        gate = Gate(access.tokens, metrics)
        super().__init__(location, middleware={GATE: gate}, **access.tls_options())

    @property
    def accepts(self) -> bool:
        """Whether new requests are accepted."""
        return not self._draining.is_set()

    def drain(self) -> None:
        """Refuse new requests, wait for those under way to end, and stop."""
        self._draining.set()
        self.shutdown()

    def _rights(self, context: flight.ServerCallContext) -> Rights:
        """Return what a caller may read, or refuse the call: what every method begins with."""
        try:
            return rights_of(context)
        except flight.FlightUnauthenticatedError as error:
            self._journal.refused(context.peer(), str(error))
            raise

    def _not_offered(self, context: flight.ServerCallContext, *_: object) -> None:
        """Answer Flight's other methods, which this node does not have."""
        self._rights(context)
        raise NotImplementedError

    list_flights = get_flight_info = get_schema = do_put = do_exchange = _not_offered

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Tell generic clients which actions there are."""
        self._rights(context)
        return [
            ("open", "describe a data set and check a pipeline (JSON)"),
            ("list", "names of the data sets"),
            ("sizes", "bytes of every file of a data set"),
            ("listing", "ids, bytes and labels of the samples of a data set, piece by piece"),
        ]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """Answer with one JSON message, or with sizes."""
        rights = self._rights(context)
        with self._typed_errors(context):
            if action.type == "list":
                return [_json({"datasets": self._executor.names(rights)})]
            if action.type == "open":
                with self._seats.enter(rights.tenant):  # a new pipeline is tried out, which takes CPU
                    message = parse_json(action.body.to_pybytes())
                    told = self._executor.describe(message, rights)
                self._journal.connected(context.peer(), rights.tenant, told["dataset"], _steps(message))
                return [_json(told)]
            if action.type == "sizes":
                with self._seats.enter(rights.tenant):
                    return list(sizes_to_bytes(self._executor.file_sizes(parse_json(action.body.to_pybytes()), rights)))
            if action.type == "listing":
                with self._seats.enter(rights.tenant):
                    return self._executor.listing(parse_json(action.body.to_pybytes()), rights)
        raise flight.FlightServerError(f"no action {action.type!r}; there is open, list, sizes and listing")

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer a request with a stream of replies."""
        if not self.accepts:
            raise flight.FlightUnavailableError("this node is shutting down")
        rights = self._rights(context)
        with self._typed_errors(context):
            seat = self._seats.enter(rights.tenant)
            request = Request.from_bytes(ticket.ticket)
            work = self._executor.replies(request, rights, seat)
        self._metrics.requests.inc()
        return flight.GeneratorStream(REPLY_SCHEMA, self._batches(context, request, work, seat))

    def _batches(
        self, context: flight.ServerCallContext, request: Request, work: Work, seat: Seat
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        pace = self._paces.of(context.peer())
        batch = Gathering(pace, time.monotonic())
        counted = StreamClock()
        with seat, self._typed_errors(context):
            for made in work.pulse(lambda: batch.wait_s(time.monotonic()), pace.run):
                run = made if isinstance(made, Run) else None
                reply = made if isinstance(made, Reply) else None
                if run is not None or batch.is_due(reply, time.monotonic()):
                    if context.is_cancelled():  # polls the connection, which is too slow to do for every sample
                        return
                    if batch.replies or run is None:
                        began_s = time.monotonic()
                        for part in self._sent(request, batch.replies, batch.size_bytes):
                            yield part, work.clock.to_bytes()
                        seat.hold(-batch.size_bytes)
                        batch.sent(began_s, time.monotonic())
                    if run is not None:
                        began_s = time.monotonic()
                        del made
                        for part in self._sent_run(request, run):
                            yield part, work.clock.to_bytes()
                        seat.hold(-run.size_bytes)
                        batch.sent_run(run.size_bytes, began_s, time.monotonic())
                        del run, part
                    counted = self._count_reads(request, work.clock, counted)
                if reply is not None:
                    batch.add(reply, time.monotonic())
            if batch.replies:
                for part in self._sent(request, batch.replies, batch.size_bytes):
                    yield part, work.clock.to_bytes()
            self._count_reads(request, work.clock, counted)

    def _sent(self, request: Request, replies: list[Reply], size_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield replies as one record batch once the rate limit lets it pass, and empty batches until then."""
        yield from self._passed(size_bytes)
        self._metrics.payload_bytes.labels(request.dataset).inc(size_bytes)
        self._metrics.op_cpu_s.labels(request.dataset).inc(sum(reply.cpu_s for reply in replies))
        for cut, count in Counter(reply.cut for reply in replies if reply.error is None).items():
            self._metrics.samples.labels(request.dataset, str(cut)).inc(count)
        for reply in replies:
            if reply.error is not None:
                self._metrics.errors.labels(type(reply.error).__name__).inc()
        self._journal.sent(request, replies)
        yield batch_of(replies)

    def _sent_run(self, request: Request, run: Run) -> Iterator[pa.RecordBatch]:
        """Yield raw samples as the record batch that they are."""
        yield from self._passed(run.size_bytes)
        self._metrics.payload_bytes.labels(request.dataset).inc(run.size_bytes)
        self._metrics.samples.labels(request.dataset, str(RAW)).inc(run.batch.num_rows)
        yield run.batch

    def _passed(self, size_bytes: int) -> Iterator[pa.RecordBatch]:
        """Wait until the rate limit lets so many bytes pass; yield empty batches meanwhile."""
        if self._limit is None:
            return
        since_s = time.monotonic()
        for start in range(0, size_bytes, _PIECE_BYTES):
            self._limit.take(min(_PIECE_BYTES, size_bytes - start))
            if time.monotonic() - since_s > HEARTBEAT_S:
                yield batch_of([])
                since_s = time.monotonic()

    def _count_reads(self, request: Request, clock: StreamClock, counted: StreamClock) -> StreamClock:
        """Add to the metrics what was read since the last time; return what is counted by now."""
        self._metrics.reads.labels(request.dataset).inc(clock.reads - counted.reads)
        self._metrics.read_bytes.labels(request.dataset).inc(clock.read_bytes - counted.read_bytes)
        self._metrics.read_s.labels(request.dataset).inc(clock.read_s - counted.read_s)
        return replace(clock)

    def _typed_errors(self, context: flight.ServerCallContext) -> _TypedErrors:
        return _TypedErrors(self._metrics, self._journal, context.peer())


class _TypedErrors:
    """Turns our errors into Flight's, and adds their type so that the trainer raises the same."""

    def __init__(self, metrics: Metrics, journal: Journal, peer: str) -> None:
        self._metrics = metrics
        self._journal = journal
        self._peer = peer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error):
            self._metrics.errors.labels(type(error).__name__).inc()
            self._journal.refused(self._peer, error)
            raise _flight_error(error)(str(error), extra_info=error_to_json(error).encode()) from error


def _flight_error(error: Error) -> Any:
    """Return the class of error that any Flight client understands."""
    if isinstance(error, AccessError):
        return flight.FlightUnauthorizedError
    return flight.FlightUnavailableError if isinstance(error, RetryableError) else flight.FlightServerError


def _steps(message: dict[str, Any]) -> str:
    """Return the names of the ops that a trainer asks about, for the log; what they are is checked elsewhere."""
    spec = message.get("pipeline")
    ops = spec.get("ops") if isinstance(spec, dict) else None
    names = [str(op.get("op"))[:40] for op in ops if isinstance(op, dict)] if isinstance(ops, list) else []
    return ", ".join(names[:16])


def _json(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
