"""How a node answers unsupported calls and its own errors, without revealing its internals.

By default, Flight sends a traceback for every unknown exception and every missing method.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import flight

from sophon.errors import AccessError, Error, RetryableError
from sophon.link.telling import told_text
from sophon.link.wire import error_to_json
from sophon.server.access import Rights
from sophon.server.metrics import Metrics

_LOG = logging.getLogger(__name__)


class Refusing(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Rejects all methods of Flight; subclasses override the supported ones."""

    def _rights(self, context: flight.ServerCallContext) -> Rights:
        """Return what a caller may read, or reject the call; every method starts with this."""
        raise NotImplementedError

    def list_flights(self, context: flight.ServerCallContext, *_: Any) -> NoReturn:
        """Refuse the call: this node does not offer it."""
        self._rights(context)
        _no_such("ListFlights")

    def get_flight_info(self, context: flight.ServerCallContext, *_: Any) -> NoReturn:
        """Refuse the call: this node does not offer it."""
        self._rights(context)
        _no_such("GetFlightInfo")

    def get_schema(self, *_: Any) -> flight.SchemaResult:
        """Answer with nothing: if this method raised an exception, Flight would send its traceback."""
        return flight.SchemaResult(pa.schema([]))

    def do_put(self, context: flight.ServerCallContext, *_: Any) -> NoReturn:
        """Refuse the call: this node does not offer it."""
        self._rights(context)
        _no_such("DoPut")

    def do_exchange(self, context: flight.ServerCallContext, *_: Any) -> NoReturn:
        """Refuse the call: this node does not offer it."""
        self._rights(context)
        _no_such("DoExchange")


def refuse_streams(info: Any) -> None:
    """Refuse a call with a stream of messages from the caller; called as soon as it begins.

    Flight waits for the first message before it asks the service, with a thread for each call, and however long.
    """
    if info.method in _WITH_STREAMS:
        _no_such(_WITH_STREAMS[info.method])


_WITH_STREAMS = {flight.FlightMethod.DO_PUT: "DoPut", flight.FlightMethod.DO_EXCHANGE: "DoExchange"}


def _no_such(method: str) -> NoReturn:
    raise flight.FlightServerError(f"this node does not answer {method}; it answers DoGet, DoAction and ListActions")


class typed_errors:  # noqa: N801 - reads as a statement
    """Turns our errors into Flight's, with their type, so that the trainer raises the same; hides all other errors."""

    def __init__(self, metrics: Metrics, on_error: Callable[[Error], None]) -> None:
        self._metrics = metrics
        self._on_error = on_error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, flight.FlightError):
            return  # also if the stream is dropped halfway
        self._metrics.errors.labels(type(error).__name__ if isinstance(error, Error) else "other").inc()
        if isinstance(error, Error):
            self._on_error(error)
            # No cause, so that nothing but the text and what `link.telling` allows is sent.
            raise _flight_error(error)(told_text(error), extra_info=error_to_json(error).encode()) from None
        _LOG.error("a request failed", exc_info=error)
        raise flight.FlightServerError(
            "this node had an internal error, which its log shows; please report it"
        ) from None


def _flight_error(error: Error) -> Any:
    """Return the class of error that any Flight client understands."""
    if isinstance(error, AccessError):
        return flight.FlightUnauthorizedError
    return flight.FlightUnavailableError if isinstance(error, RetryableError) else flight.FlightServerError
