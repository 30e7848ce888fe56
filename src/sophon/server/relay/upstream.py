"""The node behind a relay, or several nodes with copies, accessed with the rights of the relay's caller.

No data is kept. One connection is kept for each token that the node has accepted, up to a limit; every call sends the
token again, and the node checks it again.

A failure of the node is reported as `UpstreamError`, so a trainer knows whether the node or the relay failed; the next
request goes to another copy first. A rejection is passed on with the node's message.

Concurrency: used by the threads of all requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cachetools import LRUCache

from sophon.errors import AccessError, ConfigError, Error, ProtocolError, RetryableError, UpstreamError
from sophon.link.flight import FlightTransport
from sophon.server.relay.passed import PassedTokens, Shown, digest_of

_OPEN_S = 10.0
# Shorter than a trainer's timeout for the relay, so that the relay can report a silent node in time.
_SILENCE_S = 4.0
_CONNECTIONS = 64  # for the most recently used tokens, per node
_ANYBODY = b""
T = TypeVar("T")


class Upstream:
    """Nodes that hold one data set.

    Args:
        addresses: Addresses of the nodes, which all hold the same data.
        tls: Certificates to present and to expect; None to use the environment.
        tokens: Informed of accepted tokens; None if the nodes require none.
        trusted: Whether the nodes are the operator's own; see `Credentials`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tls: dict[str, str] | None = None,
        tokens: PassedTokens | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self.addresses = tuple(addresses)
        self._tls = tls or {}
        self._tokens = tokens
        self._trusted = trusted
        self._lock = threading.Lock()
        self._first = 0  # the copy that is asked first
        self._known: list[LRUCache[bytes, FlightTransport]] = [_Connections(_CONNECTIONS) for _ in self.addresses]
        for address in self.addresses:
            self._transport(address, None)  # raises if the address or the TLS settings are wrong

    @property
    def address(self) -> str:
        """Address of the node that is asked now."""
        return self.addresses[self._first]

    def asks_for_tokens(self) -> bool:
        """Return whether the nodes refuse callers without a token; raise `RetryableError` if no node answers."""
        try:
            self.describe(None, None)
        except AccessError:
            return True
        return False

    def judge(self, tokens: PassedTokens) -> None:
        """Let the nodes check tokens from now on."""
        self._tokens = tokens

    def describe(self, token: str | None, spec: dict[str, Any] | None) -> dict[str, Any]:
        """Return a node's description of the data set and of a pipeline's spec, for a caller with this token."""
        told = self.with_node(token, lambda node: node.describe(spec))
        if told.get("relay") is not None:
            raise ConfigError(f"{self.address} is a relay itself; give the relay the address of the node behind it")
        return told

    def with_node(self, token: str | None, ask: Callable[[FlightTransport], T]) -> T:
        """Ask the copies one after another until one answers."""
        problem: Error | None = None
        for _ in self.addresses:
            number = self._first
            try:
                return ask(self._node(number, token))
            except (RetryableError, ProtocolError) as error:
                problem = told_of(self.addresses[number], error)
                self.failed(number)
        assert problem is not None
        raise problem

    def node(self, token: str | None) -> tuple[int, FlightTransport]:
        """Return the node to ask now and its number; reuse a connection whose token was accepted."""
        node = self.with_node(token, lambda node: node)
        return self.addresses.index(node.address), node

    def failed(self, number: int) -> None:
        """Ask another copy first from now on."""
        with self._lock:
            if self._first == number:
                self._first = (number + 1) % len(self.addresses)

    def _node(self, number: int, token: str | None) -> FlightTransport:
        name = _ANYBODY if token is None else digest_of(token)
        with self._lock:
            found = self._known[number].get(name)
        if found is not None:
            return found
        node = self._transport(self.addresses[number], token)
        try:
            # Connections are kept only for accepted tokens.
            node.describe(None)
        except BaseException:
            node.close()
            raise
        if self._tokens is not None:
            self._tokens.accepted(token)
        with self._lock:
            return self._known[number].setdefault(name, node)

    def _transport(self, address: str, token: str | None) -> FlightTransport:
        shown = Shown(token, **self._tls, trusted=self._trusted)
        return FlightTransport(address, _OPEN_S, shown, _SILENCE_S)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            nodes = [node for known in self._known for node in known.values()]
            for known in self._known:
                known.clear()
        for node in nodes:
            node.close()


class _Connections(LRUCache[bytes, FlightTransport]):
    def popitem(self) -> tuple[bytes, FlightTransport]:
        name, node = super().popitem()
        node.close()  # the next use makes a new connection
        return name, node


def told_of(address: str, error: Error) -> Error:
    """Return the error that tells a trainer which node failed."""
    text = str(error) if address in str(error) else f"{address}: {error}"
    if isinstance(error, RetryableError | ProtocolError):
        return UpstreamError(f"this relay is working, but its node is not: {text}")
    return type(error)(text) if isinstance(error, ConfigError | AccessError) else error
