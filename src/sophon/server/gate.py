"""The gate that every call passes first: it finds out who calls and what the caller may read.

Flight does not tell the gate where a call comes from. So that a refusal can be logged with the address, a caller
without rights passes with a pass that says so, and `rights_of`, which every method of the service begins with, refuses
the call. A call without a pass has no rights either.

Concurrency: Flight asks the gate on the thread of each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow import flight

from sophon.errors import AccessError
from sophon.link.wire import error_to_json
from sophon.server.access import EVERYTHING, Rights, Tokens
from sophon.server.metrics import Metrics

NAME = "sophon-gate"
_NOTHING = Rights(frozenset())


class Pass(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """Attached to a call that was let in.

    Args:
        rights: What the caller may read.
        refusal: Why the caller may do nothing; None if there are rights.
    """

    def __init__(self, rights: Rights, refusal: AccessError | None = None) -> None:
        self.rights = rights
        self.refusal = refusal


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Lets in callers whose token the node knows, or everybody if the node asks for no token.

    Args:
        tokens: The known tokens; None if no token is asked for.
        metrics: Counts the calls that were refused.
    """

    def __init__(self, tokens: Tokens | None, metrics: Metrics) -> None:
        self._tokens = tokens
        self._metrics = metrics

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> Pass:  # noqa: ARG002 - Flight's signature
        """Return the caller's pass, which may be a refusal."""
        if self._tokens is None:
            return Pass(EVERYTHING)
        try:
            return Pass(self._tokens.rights_of(authorization_of(headers)))
        except AccessError as error:
            self._metrics.errors.labels(type(error).__name__).inc()
            return Pass(_NOTHING, AccessError(str(error)))  # without a traceback, which would hold what was sent


def rights_of(context: flight.ServerCallContext) -> Rights:
    """Return the rights that a call was let in with.

    Raises:
        flight.FlightUnauthenticatedError: It has none.
    """
    found = context.get_middleware(NAME)
    if not isinstance(found, Pass):
        return _NOTHING
    if found.refusal is not None:
        raise flight.FlightUnauthenticatedError(str(found.refusal), error_to_json(found.refusal).encode())
    return found.rights


def authorization_of(headers: Mapping[str, list[str]]) -> str | None:
    """Return the one authorization header of a call; None if there is none, or are several."""
    for name, values in headers.items():
        if name.lower() == "authorization":
            value = values[0] if len(values) == 1 else None
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None
