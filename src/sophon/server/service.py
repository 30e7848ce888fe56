"""The executor behind Arrow Flight.

Concurrency: Flight calls every method on a thread of its own; a reply stream is pulled by the thread that sends it,
which blocks while the trainer reads slowly. So what a request holds in memory is one record batch and the executor's
lookahead.

A stream is never silent for long: Flight sends its first word, the schema, before anything is done, and while nothing
is ready an empty record batch goes out every `HEARTBEAT_S`. By that a trainer tells a node at work from one that is
gone (`loader.silence`), and the node learns of a trainer that has left.
Limits: not while a disk does not give a file that is sent as it is, which the stream's own thread reads.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from sophon.codec.wire import REPLY_SCHEMA, Reply, Request, batch_of, error_to_json, parse_json
from sophon.errors import AccessError, Error, RetryableError
from sophon.server.access import Access
from sophon.server.executor import Executor, Work
from sophon.server.gate import NAME as GATE
from sophon.server.gate import Gate, rights_of
from sophon.server.limit import RateLimit
from sophon.server.metrics import Metrics
from sophon.server.pace import Paces
from sophon.server.room import Room, Seat

_BATCH_S = 0.05  # that a finished sample waits for others to be sent with it
_PIECE_BYTES = 1 << 16  # paced at once under a rate limit
HEARTBEAT_S = 1.0  # far below any deadline, and for a hundred streams as many small messages a second
OPEN = Access()


class Service(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Answers Flight calls.

    - ``DoAction("open")``: JSON → JSON; what a data set is and what this node can do with a pipeline.
    - ``DoAction("list")``: names of the data sets.
    - ``DoGet``: a `Request` → record batches of replies.

    Args:
        location: Address to listen on.
        executor: Does the work.
        metrics: Counts it.
        limit: Bound on bytes per second, if any.
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
        self._limit = limit
        self._room = Room(executor.limits, 1 if access.tokens is None else len(access.tokens))
        metrics.in_flight.set_function(lambda: self._room.requests)
        metrics.in_flight_bytes.set_function(lambda: self._room.held_bytes)
        self._paces = Paces()
        self._draining = threading.Event()
        gate = Gate(access.tokens, metrics)
        super().__init__(location, middleware={GATE: gate}, **access.tls_options())

    @property
    def accepts(self) -> bool:
        """Whether new requests are answered."""
        return not self._draining.is_set()

    def drain(self) -> None:
        """Refuse new requests, end those under way, and stop."""
        self._draining.set()
        self.shutdown()

    def list_actions(self, _: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Tell generic clients what there is."""
        return [("open", "describe a data set and check a pipeline (JSON)"), ("list", "names of the data sets")]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """Answer with one JSON message."""
        rights = rights_of(context)
        with _typed_errors(self._metrics):
            if action.type == "list":
                return [_json({"datasets": self._executor.names(rights)})]
            if action.type == "open":
                with self._room.enter(rights.tenant):  # a pipeline that is new is tried out, which takes CPU
                    return [_json(self._executor.describe(parse_json(action.body.to_pybytes()), rights))]
        raise flight.FlightServerError(f"no action {action.type!r}; there is open and list")

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer a request with a stream of replies."""
        if not self.accepts:
            raise flight.FlightUnavailableError("this node is shutting down")
        with _typed_errors(self._metrics):
            rights = rights_of(context)
            seat = self._room.enter(rights.tenant)
            request = Request.from_bytes(ticket.ticket)
            work = self._executor.replies(request, rights, seat)
        self._metrics.requests.inc()
        return flight.GeneratorStream(REPLY_SCHEMA, self._batches(context, request, work, seat))

    def _batches(
        self, context: flight.ServerCallContext, request: Request, work: Work, seat: Seat
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        gathered: list[Reply] = []
        size_bytes, since_s = 0, time.monotonic()
        pace = self._paces.of(context.peer())
        with seat, _typed_errors(self._metrics):
            for reply in work.pulse(HEARTBEAT_S):
                full = reply is not None and size_bytes + len(reply.payload) > pace.batch_bytes
                if reply is None or (gathered and (full or time.monotonic() - since_s > _BATCH_S)):
                    if context.is_cancelled():  # polls the connection: too slow to ask for every sample
                        return
                    before_s = time.monotonic()
                    for batch in self._sent(request, gathered, size_bytes):
                        yield batch, _json({"computing_s": work.computing_s})
                    since_s = time.monotonic()
                    if gathered:
                        pace.sent(size_bytes, since_s - before_s)
                    seat.hold(-size_bytes)
                    gathered, size_bytes = [], 0
                if reply is not None:
                    gathered.append(reply)
                    size_bytes += len(reply.payload)
            if gathered:
                for batch in self._sent(request, gathered, size_bytes):
                    yield batch, _json({"computing_s": work.computing_s})

    def _sent(self, request: Request, replies: list[Reply], size_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield replies as one record batch, as soon as the rate limit lets it pass, and empty ones until then."""
        if self._limit is not None:
            since_s = time.monotonic()
            for start in range(0, size_bytes, _PIECE_BYTES):
                self._limit.take(min(_PIECE_BYTES, size_bytes - start))
                if time.monotonic() - since_s > HEARTBEAT_S:
                    yield batch_of([])
                    since_s = time.monotonic()
        self._metrics.payload_bytes.labels(request.dataset).inc(size_bytes)
        self._metrics.op_cpu_s.labels(request.dataset).inc(sum(reply.cpu_s for reply in replies))
        for cut, count in Counter(reply.cut for reply in replies if reply.error is None).items():
            self._metrics.samples.labels(request.dataset, str(cut)).inc(count)
        for reply in replies:
            if reply.error is not None:
                self._metrics.errors.labels(type(reply.error).__name__).inc()
        yield batch_of(replies)


class _typed_errors:  # noqa: N801 - reads as a statement
    """Turns our errors into Flight's, with the type beside the text so that the trainer raises the same."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error):
            self._metrics.errors.labels(type(error).__name__).inc()
            raise _flight_error(error)(str(error), extra_info=error_to_json(error).encode()) from error


def _flight_error(error: Error) -> Any:
    """Return the class of error that clients that are not ours understand."""
    if isinstance(error, AccessError):
        return flight.FlightUnauthorizedError
    return flight.FlightUnavailableError if isinstance(error, RetryableError) else flight.FlightServerError


def _json(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
