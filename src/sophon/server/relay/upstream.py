"""The node behind a relay, or several that hold copies: opened and asked with the right of whoever asks the relay.

Nothing of a data set is kept. What is kept is a connection for each token that the node has accepted, for as long as
there are not too many; each call shows the token again, and the node judges it again.

A failure of the node is told as one (`UpstreamError`), so that a trainer can tell which of the two to ask again, and
another copy is asked first for the next request. What a node refuses is refused in its own words.

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
# Shorter than a trainer's own patience with the relay, so that it hears of a silent node from a relay that is not.
_SILENCE_S = 4.0
_CONNECTIONS = 64  # of tokens that were used last, for each node
_ANYBODY = b""
T = TypeVar("T")


class Upstream:
    """Nodes that hold one data set.

    Args:
        addresses: Where it is; all of them hold the same.
        tls: Certificates to show and to expect; None for what the environment says.
        tokens: Told which tokens were accepted; None if nodes ask for none.
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
            self._transport(address, None)  # raises if the address, or what TLS needs, is wrong

    @property
    def address(self) -> str:
        """Address of the node that is asked now."""
        return self.addresses[self._first]

    def asks_for_tokens(self) -> bool:
        """Return whether the nodes refuse a caller without a token; raise `RetryableError` if none answers."""
        try:
            self.describe(None, None)
        except AccessError:
            return True
        return False

    def judge(self, tokens: PassedTokens) -> None:
        """Have tokens judged by the nodes from now on."""
        self._tokens = tokens

    def describe(self, token: str | None, spec: dict[str, Any] | None) -> dict[str, Any]:
        """Return what a node says of the data set, and of a pipeline's spec, to a caller with this token."""
        told = self.with_node(token, lambda node: node.describe(spec))
        if told.get("relay") is not None:
            raise ConfigError(f"{self.address} is a relay itself; give the relay the address of the node behind it")
        return told

    def with_node(self, token: str | None, ask: Callable[[FlightTransport], T]) -> T:
        """Ask the copies, one after the other, until one answers."""
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
        """Return the node to ask now, and its number; one that has accepted the token, for this or another call."""
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
            # A token that nobody knows gets no place among those that are.
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
    """Return what a trainer is told of a node's failure: that it is the node's, and which one's."""
    text = str(error) if address in str(error) else f"{address}: {error}"
    if isinstance(error, RetryableError | ProtocolError):
        return UpstreamError(f"this relay is well, but its node is not: {text}")
    return type(error)(text) if isinstance(error, ConfigError | AccessError) else error
