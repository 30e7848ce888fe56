"""Access control of a registry: which data sets a caller may read or announce.

Concurrency: Flight calls the gate on the thread of each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow import flight

from sophon.errors import AccessError
from sophon.link.wire import error_to_json
from sophon.process.alarm import Alarm
from sophon.server.access import EVERYTHING, Rights, Tokens
from sophon.server.gate import authorization_of
from sophon.server.refusing import refuse_streams

NAME = "sophon-registry-gate"
NOTHING = Rights(frozenset())


class RegistryPass(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """The rights of a caller, attached to its call.

    Args:
        reading: Data sets that the caller may be told about.
        announcing: Data sets that the caller may announce.
        refusal: Why the caller may do neither; None if it may do either.
    """

    def __init__(self, reading: Rights, announcing: Rights, refusal: AccessError | None = None) -> None:
        self.reading = reading
        self.announcing = announcing
        self.refusal = refusal


class RegistryGate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Determines a caller's rights from its token.

    Args:
        readers: Tokens that give read access to data sets; None if no token is required.
        nodes: Tokens that may announce data sets; None if no token is required.
        alarm: Set when a call is rejected, for whoever watches the connections.
    """

    def __init__(self, readers: Tokens | None, nodes: Tokens | None, alarm: Alarm) -> None:
        self._alarm = alarm
        self._readers = readers
        self._nodes = nodes

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> RegistryPass:
        """Return the caller's pass, which may be a refusal."""
        refuse_streams(info)
        shown = authorization_of(headers)
        reading, refusal = _rights(self._readers, shown)
        announcing, _ = _rights(self._nodes, shown)
        may_do_nothing = reading == NOTHING and announcing == NOTHING
        if may_do_nothing:
            self._alarm.set()
        return RegistryPass(reading, announcing, refusal if may_do_nothing else None)


def pass_of(context: flight.ServerCallContext) -> RegistryPass:
    """Return the pass of a call.

    Raises:
        flight.FlightUnauthenticatedError: The caller may do nothing.
    """
    found = context.get_middleware(NAME)
    if not isinstance(found, RegistryPass):
        return RegistryPass(NOTHING, NOTHING)
    if found.refusal is not None:
        raise flight.FlightUnauthenticatedError(str(found.refusal), error_to_json(found.refusal).encode())
    return found


def _rights(tokens: Tokens | None, shown: str | None) -> tuple[Rights, AccessError | None]:
    if tokens is None:
        return EVERYTHING, None
    try:
        return tokens.rights_of(shown), None
    except AccessError as error:
        return NOTHING, AccessError(str(error))  # without a traceback, which would contain the token
