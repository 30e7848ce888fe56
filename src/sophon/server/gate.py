"""The gate that every call passes first: it determines who is calling and what the caller may read.

Flight does not tell the gate where a call comes from. So that a rejection can be logged with the address, a caller
without rights gets a pass that says so, and `rights_of`, with which every method of the service starts, rejects the
call. A call without a pass has no rights either.

Concurrency: Flight asks the gate on the thread of each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow import flight

from sophon.errors import AccessError
from sophon.link.wire import error_to_json
from sophon.process.alarm import Alarm
from sophon.server.access import EVERYTHING, Rights, Tokens
from sophon.server.metrics import Metrics
from sophon.server.refusing import refuse_streams

NAME = "sophon-gate"
_NOTHING = Rights(frozenset())


class Pass(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """The rights of a caller, attached to its call.

    Args:
        rights: What the caller may read.
        header_bytes: Size of the call's headers.
        refusal: Why the caller is rejected; None if it has rights.
    """

    def __init__(self, rights: Rights, header_bytes: int, refusal: AccessError | None = None) -> None:
        self.rights = rights
        self.header_bytes = header_bytes
        self.refusal = refusal


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Admits callers whose token the node knows, or everyone if the node requires no token.

    Args:
        tokens: The known tokens; None if no token is required.
        metrics: Counts rejected calls.
        alarm: Set when a call is rejected, for whoever watches the connections.
    """

    def __init__(self, tokens: Tokens | None, metrics: Metrics, alarm: Alarm | None = None) -> None:
        self._tokens = tokens
        self._alarm = alarm or Alarm()
        self._metrics = metrics

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> Pass:
        """Return the caller's pass, which may be a rejection."""
        refuse_streams(info)
        header_bytes = sum(len(name) + len(value) for name, values in headers.items() for value in values)
        if self._tokens is None:
            return Pass(EVERYTHING, header_bytes)
        try:
            return Pass(self._tokens.rights_of(authorization_of(headers)), header_bytes)
        except AccessError as error:
            self._alarm.set()
            self._metrics.errors.labels(type(error).__name__).inc()
            return Pass(
                _NOTHING, header_bytes, AccessError(str(error))
            )  # without a traceback, which would contain the token


def rights_of(context: flight.ServerCallContext) -> Rights:
    """Return the rights with which a call was admitted.

    Raises:
        flight.FlightUnauthenticatedError: The call has no rights.
    """
    found = context.get_middleware(NAME)
    if not isinstance(found, Pass):
        return _NOTHING
    if found.refusal is not None:
        raise flight.FlightUnauthenticatedError(str(found.refusal), error_to_json(found.refusal).encode())
    return found.rights


def header_bytes_of(context: flight.ServerCallContext) -> int:
    """Return the size of a call's headers."""
    found = context.get_middleware(NAME)
    return found.header_bytes if isinstance(found, Pass) else 0


def authorization_of(headers: Mapping[str, list[str]]) -> str | None:
    """Return the one authorization header of a call; None if there is none or more than one."""
    for name, values in headers.items():
        if name.lower() == "authorization":
            value = values[0] if len(values) == 1 else None
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None
