"""Calls to a registry over Flight.

Concurrency: trainers, which may fork, make a connection for each call and close it: they ask rarely. A node, which
calls every second and never forks, keeps one connection, and only one of its threads may call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sophon.errors import ConfigError, ProtocolError, TransportError
from sophon.link import grpc_fork as fork
from sophon.link.connections import Call, ConnectionWatch
from sophon.link.credentials import Credentials
from sophon.link.deadline import within
from sophon.link.flight import typed_errors

SCHEMES = {"sophon": "grpc", "sophon+tls": "grpc+tls"}
# For one message: the addresses of a few thousand nodes, and what `sophon nodes` shows of them.
_MAX_INFO_BYTES, _MAX_MESSAGE_BYTES = 4 << 20, 64 << 20
CALL_S = 2.0  # a registry answers within a millisecond; one that does not is asked again
T = TypeVar("T")


class RegistryClient:
    """A registry.

    Args:
        address: ``sophon://host:port`` or ``sophon+tls://host:port``; anything after that is ignored.
        credentials: Credentials for the registry.
        timeout_s: Timeout of a call.
        keeps: Whether the connection is kept from one call to the next.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials | None = None,
        timeout_s: float = CALL_S,
        *,
        keeps: bool = False,
    ) -> None:
        parts = urlsplit(address)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in SCHEMES or not parts.hostname or port is None or "@" in parts.netloc:
            raise ConfigError(
                f"expected the address of a registry, such as sophon://host:7070, got "
                f"{parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()[:200]!r}"
            )
        fork.look_around()
        self.address = f"{parts.scheme}://{parts.netloc}"
        self._node = f"{SCHEMES[parts.scheme]}://{parts.netloc}"
        self._credentials = credentials or Credentials()
        self._credentials.check(encrypted=parts.scheme == "sophon+tls")
        self._timeout_s = timeout_s
        self._keeps = keeps
        self._client: Any = None
        self._watch = ConnectionWatch(parts.hostname, port, 10 * timeout_s)  # for messages that are too long

    def action(self, name: str, body: bytes = b"{}") -> bytes:
        """Return the answer to an action."""
        from pyarrow import flight

        def ask(client: Any, options: Any) -> bytes:
            results = list(islice(client.do_action(flight.Action(name, body), options), 2))
            if len(results) > 1:
                raise ProtocolError(f"{self.address} gave several answers to one request")
            return bytes(results[0].body.to_pybytes()) if results else b"{}"

        return self._call(ask)

    def info(self, dataset: str) -> Any:
        """Return the `FlightInfo` of a data set."""
        from pyarrow import flight

        descriptor = flight.FlightDescriptor.for_path(dataset.encode())
        return self._call(lambda client, options: client.get_flight_info(descriptor, options))

    def _call(self, ask: Callable[[Any, Any], T]) -> T:
        from pyarrow import flight

        if not fork.grpc_is_usable():
            raise TransportError(f"this process was forked while gRPC was in use, and cannot ask {self.address}")
        tls = self._credentials.tls_options() if self._node.startswith("grpc+tls:") else {}
        options = flight.FlightCallOptions(timeout=within(self._timeout_s), headers=self._credentials.headers())
        is_well = False
        with typed_errors(self.address):
            bounds: list[tuple[str, int | str]] = [
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.service_config", _bounds_of_lookups()),
            ]
            client = self._client or flight.connect(self._node, generic_options=bounds, **tls)
            call = Call(_MAX_MESSAGE_BYTES)
            self._watch.add(call)
            try:
                answer = ask(client, options)
                is_well = True
            finally:
                self._watch.remove(call)
                if not self._keeps:
                    self._watch.rest()
                self._client = client if self._keeps and is_well else None
                if self._client is None:
                    client.close()
            return answer

    def close(self) -> None:
        """Close the connection, if one is kept."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._watch.rest()


def _bounds_of_lookups() -> str:
    """Return the gRPC configuration that limits the size of the answer to "who holds this data set?"."""
    name = {"service": "arrow.flight.protocol.FlightService", "method": "GetFlightInfo"}
    return json.dumps({"methodConfig": [{"name": [name], "maxResponseMessageBytes": _MAX_INFO_BYTES}]})
