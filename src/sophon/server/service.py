"""The executor behind Arrow Flight.

Concurrency: Flight runs each call on a separate thread. The thread that sends a reply stream also pulls it, and blocks
while the trainer reads slowly, so a request holds no more in memory than one record batch and the executor's lookahead.

A stream is never silent for long. Flight sends the schema before any work is done, and while nothing is ready an empty
record batch goes out every `HEARTBEAT_S`. This is how a trainer distinguishes a working node from one that is gone
(`link.connections`), and how the node notices that a trainer has left. Nothing is read in the stream's own thread, so a
stalled disk silences neither this stream nor others.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from sophon.codec.cut import RAW
from sophon.link.closed import CLOSED_SCHEMA, Envelope, enclosed, nothing
from sophon.link.wire import (
    Reply,
    Request,
    StreamClock,
    batch_of,
    parse_json,
    sizes_to_bytes,
)
from sophon.process.alarm import Alarm
from sophon.server.access import Access, Rights
from sophon.server.executor import Executor
from sophon.server.gate import NAME as GATE
from sophon.server.gate import Gate, header_bytes_of, rights_of
from sophon.server.gathering import HEARTBEAT_S, Gathering
from sophon.server.guard.bouncer import Bouncer
from sophon.server.journal import Journal, host_of
from sophon.server.limit import RateLimit
from sophon.server.metrics import Metrics
from sophon.server.pace import Paces
from sophon.server.refusing import Refusing, typed_errors
from sophon.server.seats import Seat, Seats
from sophon.server.work import Run, Work

_PIECE_BYTES = 1 << 16  # how much the rate limit lets pass at a time
OPEN = Access()


class Service(Refusing):
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
        tenants = 1 if access.tokens is None else len(access.tokens)
        executor.crashes.is_shared = executor.crowding.is_shared = tenants > 1
        self._seats = seats = Seats(executor.limits, tenants)
        # Not `self._seats`: a reference to `self` in the metrics would keep gRPC's threads alive after the server is
        # gone.
        metrics.in_flight.set_function(lambda: seats.requests)
        metrics.in_flight_bytes.set_function(lambda: seats.held_bytes)
        self._paces = Paces()
        self._draining = threading.Event()
        alarm = Alarm()
        gate = Gate(access.tokens, metrics, alarm)
        self._bouncer: Bouncer | None = None
        super().__init__(location, middleware={GATE: gate}, **access.tls_options())
        self._bouncer = Bouncer(self.port, alarm)

    @property
    def accepts(self) -> bool:
        """Whether new requests are accepted."""
        return not self._draining.is_set()

    def drain(self) -> None:
        """Reject new requests, wait for running ones to end, and stop."""
        self._draining.set()
        self.shutdown()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)

    def shutdown(self) -> None:
        """Stop after the running requests."""
        if self._bouncer is not None:
            self._bouncer.close()
        super().shutdown()

    def _rights(self, context: flight.ServerCallContext, size_bytes: int = 0) -> Rights:
        """Return what a caller may read, or reject the call; every method starts with this.

        Args:
            context: The call.
            size_bytes: Size of its message.
        """
        try:
            rights = rights_of(context)
        except flight.FlightUnauthenticatedError as error:
            self._journal.refused(context.peer(), str(error))
            if self._bouncer is not None:
                self._bouncer.refused(context.peer())
            raise
        with self._typed_errors(context):
            rights = self._executor.admitted(rights, host_of(context.peer()))
        if self._bouncer is not None:
            self._bouncer.knows(context.peer(), size_bytes, header_bytes_of(context))
        return rights

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Tell generic clients which actions there are."""
        rights = self._rights(context)
        with self._typed_errors(context), self._seats.enter(rights.tenant):
            return self._executor.paid(rights.tenant, _actions)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterable[bytes]:
        """Answer with one JSON message, or with sizes; a long answer keeps its seat until it is sent."""
        rights = self._rights(context, action.body.size)
        with self._typed_errors(context):
            if action.type == "list":
                with self._seats.enter(rights.tenant):  # a seat bounds how many callers wait for their turn
                    names = self._executor.paid(rights.tenant, lambda: self._executor.names(rights))
                return [_json({"datasets": names})]
            if action.type == "open":
                with self._seats.enter(rights.tenant):  # a new pipeline is probed, which takes CPU
                    message = self._message(action, rights)
                    told = self._executor.describe(message, rights)
                    answer = self._executor.paid(rights.tenant, lambda: _json(told))
                self._journal.connected(context.peer(), rights.tenant, told["dataset"], _steps(message))
                return [answer]
            if action.type == "sizes":
                seat = self._seats.enter(rights.tenant)
                sizes = self._executor.file_sizes(self._message(action, rights), rights)
                return _seated(seat, sizes_to_bytes(sizes))
            if action.type == "listing":
                seat = self._seats.enter(rights.tenant)
                return _seated(seat, self._executor.listing(self._message(action, rights), rights))
        raise flight.FlightServerError(f"no action {action.type!r:.80}; choose from open, list, sizes and listing")

    def _message(self, action: flight.Action, rights: Rights) -> dict[str, Any]:
        return self._executor.parsed(parse_json, action.body.to_pybytes(), rights.tenant)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer a request with a stream of replies."""
        if not self.accepts:
            raise flight.FlightUnavailableError("this node is shutting down")
        message = ticket.ticket
        rights = self._rights(context, len(message))
        with self._typed_errors(context):
            seat = self._seats.enter(rights.tenant)
            request = self._executor.parsed(Request.from_bytes, message, rights.tenant)
            work = self._executor.replies(request, rights, seat)
        self._metrics.requests.inc()
        batches = self._batches(context, request, work, seat)
        if request.is_closed:
            return flight.GeneratorStream(CLOSED_SCHEMA, _enclosed(batches))
        return flight.GeneratorStream(request.schema, ((part.batch, clock) for part, clock in batches))

    def _batches(
        self, context: flight.ServerCallContext, request: Request, work: Work, seat: Seat
    ) -> Iterator[tuple[_Part, bytes]]:
        counted = StreamClock()
        with seat, self._paces.stream(context.peer()) as pace, self._typed_errors(context):
            batch = Gathering(pace.trainer, time.monotonic())
            for made in work.pulse(lambda: batch.wait_s(time.monotonic()), pace.run):
                run = made if isinstance(made, Run) else None
                reply = made if isinstance(made, Reply) else None
                if run is not None or batch.is_due(reply, time.monotonic()):
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

    def _sent(self, request: Request, replies: list[Reply], size_bytes: int) -> Iterator[_Part]:
        """Yield replies as one record batch once the rate limit allows it, and empty batches until then."""
        yield from self._passed(size_bytes, request)
        self._metrics.payload_bytes.labels(request.dataset).inc(size_bytes)
        self._metrics.op_cpu_s.labels(request.dataset).inc(
            sum(reply.relay_s if request.firsts else reply.cpu_s for reply in replies)
        )
        for cut, count in Counter(reply.cut for reply in replies if reply.error is None).items():
            self._metrics.samples.labels(request.dataset, str(cut)).inc(count)
        for reply in replies:
            if reply.error is not None:
                self._metrics.errors.labels(type(reply.error).__name__).inc()
        self._journal.sent(request, replies)
        envelope = Envelope(len(replies), size_bytes) if request.is_closed and size_bytes else None
        yield _Part(batch_of(replies, envelope, request.schema), envelope)

    def _sent_run(self, request: Request, run: Run) -> Iterator[_Part]:
        """Yield raw samples as their record batch."""
        yield from self._passed(run.size_bytes, request)
        self._metrics.payload_bytes.labels(request.dataset).inc(run.size_bytes)
        self._metrics.samples.labels(request.dataset, str(RAW)).inc(run.batch.num_rows)
        yield _Part(run.batch, run.envelope)

    def _passed(self, size_bytes: int, request: Request) -> Iterator[_Part]:
        """Wait until the rate limit allows a number of bytes; yield empty batches in the meantime."""
        if self._limit is None:
            return
        since_s = time.monotonic()
        for start in range(0, size_bytes, _PIECE_BYTES):
            self._limit.take(min(_PIECE_BYTES, size_bytes - start))
            if time.monotonic() - since_s > HEARTBEAT_S:
                yield _Part(batch_of([], schema=request.schema), None)
                since_s = time.monotonic()

    def _count_reads(self, request: Request, clock: StreamClock, counted: StreamClock) -> StreamClock:
        """Add reads since the last call to the metrics; return the current counts."""
        self._metrics.reads.labels(request.dataset).inc(clock.reads - counted.reads)
        self._metrics.read_bytes.labels(request.dataset).inc(clock.read_bytes - counted.read_bytes)
        self._metrics.read_s.labels(request.dataset).inc(clock.read_s - counted.read_s)
        return replace(clock)

    def _typed_errors(self, context: flight.ServerCallContext) -> typed_errors:
        peer = context.peer()
        return typed_errors(self._metrics, lambda error: self._journal.refused(peer, error))


def _actions() -> list[tuple[str, str]]:
    return [
        ("open", "describe a data set and check a pipeline (JSON)"),
        ("list", "names of the data sets"),
        ("sizes", "sizes of a data set's files"),
        ("listing", "ids, bytes and labels of a data set's samples, piece by piece"),
    ]


class _Part(NamedTuple):
    """A record batch of a stream, and the buffer of its payloads if there is space for an envelope around them."""

    batch: pa.RecordBatch
    envelope: Envelope | None


def _seated(seat: Seat, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of an answer, and give up the seat after the last, to bound unread answers."""
    with seat:
        yield from parts


def _enclosed(parts: Iterator[tuple[_Part, bytes]]) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """Yield envelopes with the clock of a stream and, unless empty, a record batch."""
    for (batch, envelope), clock in parts:
        if not batch.num_rows:
            yield nothing(), clock
        else:
            yield nothing(), enclosed(batch, clock) if envelope is None else envelope.enclosed(batch, clock)
            del batch, envelope


def _steps(message: dict[str, Any]) -> str:
    """Return the names of the ops that a trainer asks about, for the log; the pipeline is checked elsewhere."""
    spec = message.get("pipeline")
    ops = spec.get("ops") if isinstance(spec, dict) else None
    names = [str(op.get("op"))[:40] for op in ops if isinstance(op, dict)] if isinstance(ops, list) else []
    return ", ".join(names[:16])


def _json(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
