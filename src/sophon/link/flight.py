"""Samples from a storage node, over Arrow Flight.

Concurrency: a connection belongs to the process that made it, since gRPC does not survive a fork (see `grpc_fork`); a
child process makes its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from sophon.codec.codec import MAX_VALUE_BYTES
from sophon.errors import (
    AccessError,
    ConfigError,
    ProtocolError,
    RetryableError,
    TransportError,
    printable,
)
from sophon.link import grpc_fork as fork
from sophon.link.answer import MAX_TRUSTED_BYTES, check_answer, opened_from, parse_answer
from sophon.link.closed import CLOSED_SCHEMA, clock_and_message, opened_batch, read_options
from sophon.link.connections import Call, ConnectionWatch
from sophon.link.credentials import Credentials, certificate_problem, connection_hint, plain_reason
from sophon.link.deadline import within
from sophon.link.listing import Listing, received
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import (
    OLDEST_PROTOCOL,
    PROTOCOL,
    PROTOCOLS,
    Reply,
    Request,
    StreamClock,
    agreed,
    error_from_json,
    replies_of,
    sizes_from_bytes,
)
from sophon.pipeline import Pipeline
from sophon.process.arenas import keep_buffers
from sophon.process.renewal import renew_after_fork

# For one record batch: the largest value that a payload may hold, plus everything else in the batch.
_MAX_MESSAGE_BYTES = MAX_VALUE_BYTES + (64 << 20)
_UNBOUNDED = 1 << 62  # a trusted node's messages are not watched while they arrive
# A connection is given up after this long without a byte that the node owes. It is ten times as long as a healthy node
# is ever silent (`server.service`), and a sixth of the default deadline, which leaves time for retries.
SILENCE_S = 10.0
_LEAST_SILENCE_S = 3.0  # three times as long as a healthy node means to be silent, since its machine may be busy
# For one message of any other answer: a piece of a listing is the longest.
_MAX_ANSWER_MESSAGE_BYTES = 32 << 20
OPEN_S = 10.0
_MOST_PARTS = 3  # messages of an answer to read: one more than there should be
_LONGEST_BACKOFF_MS = 2_000  # the machine's longest pause; gRPC's own would grow to two minutes


class FlightTransport(Transport):
    """A storage node over Arrow Flight.

    Args:
        address: ``grpc://host:port/dataset`` or ``grpc+tls://host:port/dataset``.
        timeout_s: Timeout for opening a data set; callers time their own fetches.
        credentials: Credentials for the node; by default those in the environment.
        silence_s: How long the node may send nothing while it owes an answer.
        protocol: Version of the protocol that the node is known to speak; determined when it is opened.
    """

    is_remote = True

    def __init__(
        self,
        address: str,
        timeout_s: float = OPEN_S,
        credentials: Credentials | None = None,
        silence_s: float = SILENCE_S,
        protocol: int = PROTOCOL,
    ) -> None:
        try:
            parts = urlsplit(address)
        except ValueError as error:  # brackets that are not those of an IPv6 address
            raise ConfigError(f"expected an address like grpc://host:port/dataset, got {address[:200]!r}") from error
        try:
            port = parts.port
        except ValueError:
            port = None
        dataset = parts.path.strip("/")
        fine = parts.scheme in ("grpc", "grpc+tls") and parts.hostname and port is not None
        if not fine or not dataset or "/" in dataset or "@" in parts.netloc:
            raise ConfigError(
                f"expected an address like grpc://host:port/dataset or grpc+tls://…, got {_shown(parts)!r}"
            )
        self.address = address
        self.dataset = dataset
        self._node = f"{parts.scheme}://{parts.netloc}"
        self._credentials = credentials or Credentials()
        self._credentials.check(encrypted=parts.scheme == "grpc+tls")
        self._timeout_s = timeout_s
        self._protocol = protocol
        self.silence_s = silence_s
        self._host, self._port = str(parts.hostname), port or 0
        self.renew()
        self._watch = ConnectionWatch(self._host, self._port, silence_s)
        self._client: Any = None
        self._pid = os.getpid()
        self._busy = 0
        fork.watch(self)
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock, in a forked child."""
        self._lock = threading.RLock()  # reentrant for the same reason as in `connections`

    def open(self, pipeline: Pipeline) -> Opened:
        """Ask the node to describe the data set and what it can do with the pipeline."""
        message = self.describe(pipeline.prefix(pipeline.reach).to_spec() if pipeline.max_cut else None)
        opened = opened_from(message, self.address, self._credentials.trusted)
        return replace(opened, protocol=self._protocol)

    def describe(self, spec: dict[str, Any] | None) -> dict[str, Any]:
        """Return the node's description of the data set and of a pipeline's spec, unparsed."""
        message: dict[str, Any] = {"dataset": self.dataset, "pipeline": spec, "protocols": PROTOCOLS}
        answer = list(islice(self._ask("open", message), _MOST_PARTS))
        if len(answer) != 1:
            raise ProtocolError(f"{self.address} gave {len(answer)} answers to one request")
        check_answer(answer[0].size, self._credentials.trusted)  # before the body is copied
        message = parse_answer(answer[0].to_pybytes(), self._credentials.trusted)
        self._protocol = agreed(message.get("protocols"))
        if self._protocol == OLDEST_PROTOCOL and not self._credentials.trusted:
            raise ProtocolError(
                f"{self.address} runs an earlier release, whose replies cannot be checked before they are unpacked; "
                "upgrade it, or declare it your own node with Credentials(trusted=True)"
            )
        return message

    def file_sizes(self, samples: int, fields: tuple[str, ...] = ()) -> NDArray[np.int64]:
        """Ask the node for the size of every file; a node of an earlier release refuses."""
        answer = self._ask("sizes", {"dataset": self.dataset, "fields": fields})
        return sizes_from_bytes((part.to_pybytes() for part in answer), samples)

    def listing(self, opened: Opened) -> Listing:
        """Ask the node which samples it has, piece by piece; a node of an earlier release refuses."""
        return received(
            lambda start: self.piece(opened.fingerprint, start),
            opened.samples,
            opened.fingerprint,
            trusted=self._credentials.trusted,
        )

    def piece(self, fingerprint: str, start: int) -> list[bytes]:
        """Ask the node for one piece of its listing."""
        answer = self._ask("listing", {"dataset": self.dataset, "fingerprint": fingerprint, "start": start})
        return [part.to_pybytes() for part in islice(answer, _MOST_PARTS)]

    def _ask(self, kind: str, message: dict[str, Any]) -> Iterator[Any]:
        """Yield the messages of an answer as buffers; the connection ends while a message that is too long arrives."""
        from pyarrow import flight

        call = Call(_most_answer_bytes(self._credentials.trusted))
        action = flight.Action(kind, json.dumps(message).encode())
        with self._connection() as client:
            watch = self.watch
            watch.add(call)
            try:
                with typed_errors(self.address):
                    for part in client.do_action(action, self.call_options(self._timeout_s)):
                        watch.got(call, part.body.size)
                        yield part.body
            except RetryableError as error:
                if call.got_too_much:
                    raise ProtocolError(
                        f"{self.address} answered with a message of more than {call.most_bytes:,} bytes"
                    ) from error
                raise
            finally:
                watch.remove(call)

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Send a request; replies come as the node finishes them."""
        is_closed = not self._credentials.trusted
        return _FlightFetch(self, replace(request, protocol=self._protocol, is_closed=is_closed), timeout_s)

    def step_back(self, request: Request) -> bool:
        """Return whether a request that the node does not understand may be retried in the oldest version.

        It may if the node has been replaced by one of an earlier release since it was opened.
        """
        if request.protocol == OLDEST_PROTOCOL or request.fields or not self._credentials.trusted:
            return False
        self._protocol = OLDEST_PROTOCOL
        return True

    def close(self) -> None:
        """Close this process's connection; the next use makes a new one."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self._pid == os.getpid():
                client.close()
            watch = self._watch if self._pid == os.getpid() else None
        if watch is not None:
            watch.rest()

    def _connection(self) -> _Connection:
        return _Connection(self)

    def acquire(self) -> Any:
        """Return this process's client and increment its user count."""
        from pyarrow import flight

        with self._lock:
            if self._pid != os.getpid():
                fork.abandon(self._client)
                self._client, self._pid, self._busy = None, os.getpid(), 0
                # The old watch's thread runs in the parent.
                self._watch = ConnectionWatch(self._host, self._port, self.silence_s)
            if not fork.grpc_is_usable():
                raise TransportError(
                    f"this process was forked while gRPC was in use, and cannot connect to {self.address}: an epoch "
                    "was running, or something else in the parent process has Flight connections or a Flight server; "
                    "use multiprocessing_context='spawn', or start the workers before that"
                )
            if self._client is None:
                keep_buffers()
                options: list[tuple[str, int | str]] = [
                    ("grpc.service_config", _bounds_of_answers(self._credentials.trusted)),
                    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                    ("grpc.min_reconnect_backoff_ms", max(1, int(1000 * self.silence_s))),  # also limits connecting
                    ("grpc.max_reconnect_backoff_ms", _LONGEST_BACKOFF_MS),
                ]
                tls = self._credentials.tls_options() if self._node.startswith("grpc+tls:") else {}
                self._client = flight.connect(self._node, generic_options=options, **tls)
            self._busy += 1
            return self._client

    @property
    def watch(self) -> ConnectionWatch:
        """The watch that ends this process's connection when nothing arrives on it any more."""
        return self._watch

    def call_options(self, timeout_s: float, is_closed: bool = False) -> Any:
        """Return the options of every call: the timeout, and the token if there is one."""
        from pyarrow import flight

        read = {"read_options": read_options()} if is_closed else {}
        return flight.FlightCallOptions(timeout=within(timeout_s), headers=self._credentials.headers(), **read)

    def release(self) -> None:
        """Decrement the client's user count."""
        with self._lock:
            self._busy -= 1

    def before_fork(self) -> bool:
        """Close the connection if it is idle; return whether it is in use instead."""
        if self._busy and self._pid == os.getpid():
            return True
        self.close()
        return False

    def __getstate__(self) -> dict[str, Any]:
        settings = {"timeout_s": self._timeout_s, "silence_s": self.silence_s, "protocol": self._protocol}
        return {"address": self.address, "credentials": self._credentials, **settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # a spawned worker makes its own connection


def open_flight(address: str, credentials: Credentials | None, deadline_s: float) -> FlightTransport:
    """Return the transport to a storage node, for a caller with a deadline."""
    return FlightTransport(address, min(OPEN_S, deadline_s), credentials, silence_within(deadline_s))


class _Connection:
    def __init__(self, transport: FlightTransport) -> None:
        self._transport = transport

    def __enter__(self) -> Any:
        return self._transport.acquire()

    def __exit__(self, *_: object) -> None:
        self._transport.release()


class _FlightFetch(Fetch):
    def __init__(self, transport: FlightTransport, request: Request, timeout_s: float) -> None:
        self._transport = transport
        self._request = request
        self._timeout_s = timeout_s
        self._reader: Any = None
        self._cancelled = False
        self._call = Call(_MAX_MESSAGE_BYTES if request.is_closed else _UNBOUNDED)

    @property
    def heard_s(self) -> float:
        return self._call.heard_s

    def __iter__(self) -> Iterator[Reply]:
        transport = self._transport
        client = transport.acquire()
        watch = transport.watch
        try:
            watch.add(self._call)
            with typed_errors(transport.address):
                yield from self._replies(client)
        except ProtocolError as error:
            was_refused = error.__cause__ is not None  # the node rejected the request; we did not reject its reply
            if not was_refused or not transport.step_back(self._request):
                raise
            raise RetryableError(f"{transport.address} now runs an earlier release; using its protocol") from error
        except RetryableError as error:
            if self._call.got_too_much:
                raise RetryableError(
                    f"{transport.address} sends a message of more than {self._call.most_bytes:,} bytes, so the "
                    "connection was closed"
                ) from error
            if not self._call.fell_silent:
                raise
            raise RetryableError(
                f"{transport.address}: nothing arrived for {transport.silence_s:g} s, so the connection was closed; "
                "the node's host or process hangs, or the network in between is down"
            ) from error
        finally:
            self.cancel()
            self._reader = None
            watch.remove(self._call)
            transport.release()

    def _replies(self, client: Any) -> Iterator[Reply]:
        from pyarrow import flight

        call, watch = self._call, self._transport.watch
        call.waiting_since_s = time.monotonic()
        # do_get itself waits for the first message of the answer, and cannot be cancelled in the meantime. A node sends
        # that message at once, before it looks for any sample.
        is_closed = self._request.is_closed
        options = self._transport.call_options(self._timeout_s, is_closed)
        self._reader = client.do_get(flight.Ticket(self._request.to_bytes()), options)
        if self._cancelled:
            return
        if is_closed and self._reader.schema != CLOSED_SCHEMA:  # known before anything is unpacked
            raise ProtocolError("expected replies in envelopes, got columns")
        for chunk in self._reader:
            call.heard_s = time.monotonic()
            call.waiting_since_s = None  # the caller may take as long as it likes with a reply
            note, batch = chunk.app_metadata, None if is_closed else chunk.data
            watch.got(call, (0 if note is None else note.size) + (0 if batch is None else batch.nbytes))
            if note is not None:
                clock, message = clock_and_message(note) if is_closed else (note.to_pybytes(), None)
                self.clock = StreamClock.from_bytes(clock) if clock else self.clock
                batch = batch if message is None else opened_batch(message, self._request.schema)
            if batch is not None:
                yield from replies_of(batch, self._request)  # possibly none: the node only reports that it is working
            call.waiting_since_s = time.monotonic()

    def cancel(self) -> None:
        self._cancelled = True
        reader = self._reader
        if reader is not None:
            reader.cancel()


class typed_errors:  # noqa: N801 - reads as a statement
    """Turns Flight's errors into sophon's: the error that the node raised, or one about the connection."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyarrow as pa
        from pyarrow import flight

        if isinstance(error, flight.FlightError) and error.extra_info:
            told = error_from_json(error.extra_info.decode("utf-8", "replace"))
            # Flight's own error would only repeat this, with gRPC's internals.
            raise told from (None if isinstance(told, ConfigError | AccessError) else error)
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            raise AccessError(f"{self._address}: {_first_line(error)}") from error
        if isinstance(error, flight.FlightError) and (remedy := certificate_problem(str(error))):
            raise AccessError(f"{self._address}: {remedy}") from error
        lost = (
            flight.FlightUnavailableError,
            flight.FlightTimedOutError,
            flight.FlightCancelledError,
            flight.FlightInternalError,
            pa.ArrowIOError,
        )
        if error is not None and "larger than max" in str(error):
            raise ProtocolError(f"{self._address} sent a message that exceeds the maximum size") from error
        # Neither gRPC nor Arrow has an error class for a node that is temporarily out of threads.
        if isinstance(error, lost) or (error is not None and "resource exhausted error" in str(error)):
            if isinstance(error, flight.FlightCancelledError) and str(error).endswith("with message: "):
                # When gRPC refuses a message that is too long, this is all that Arrow passes on.
                raise RetryableError(
                    f"{self._address}: the reply was cut off or exceeded the maximum message size"
                ) from error
            text = plain_reason(str(error)) or f"{_first_line(error)}{connection_hint(str(error))}"
            raise RetryableError(f"{self._address}: {text}") from error
        if isinstance(error, NotImplementedError | flight.FlightServerError) and "http2 header" in str(error):
            raise TransportError(
                f"{self._address}: the server there is not a storage node ({_first_line(error)}); give the address "
                "that `sophon serve` prints, and check for a proxy in between (http_proxy)"
            ) from error
        if isinstance(error, flight.FlightError | pa.ArrowException):
            raise TransportError(f"{self._address}: {_first_line(error)}") from error


def silence_within(deadline_s: float) -> float:
    """Return how long a node may be silent given the caller's deadline: at most half of it, to leave time to retry."""
    return min(SILENCE_S, deadline_s, max(_LEAST_SILENCE_S, deadline_s / 2))


def _bounds_of_answers(trusted: bool) -> str:
    """Return the gRPC configuration that limits the size of answers; replies have a separate limit."""
    name = {"service": "arrow.flight.protocol.FlightService", "method": "DoAction"}
    return json.dumps({"methodConfig": [{"name": [name], "maxResponseMessageBytes": _most_answer_bytes(trusted)}]})


def _most_answer_bytes(trusted: bool) -> int:
    return MAX_TRUSTED_BYTES + (1 << 20) if trusted else _MAX_ANSWER_MESSAGE_BYTES


def _first_line(error: BaseException) -> str:
    return printable(str(error).split("\n", 1)[0].split(". gRPC client debug context", 1)[0][:300])


def _shown(parts: Any) -> str:
    """Return an address without the user and password that it may contain."""
    return str(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
