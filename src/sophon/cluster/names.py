"""Discovery by DNS: ``sophon+dns://name:port/dataset``, or ``sophon+dns+tls://``.

Every address that the name resolves to is a node. The name can be a headless Kubernetes Service in front of a
StatefulSet, or any name with several A records. DNS does not say what nodes hold, and may omit a node that is
restarting. Start nodes that are found this way with ``--part``, so that a missing part is noticed.

Nodes are contacted by IP address, so with TLS their certificates must list those addresses. If the certificates list
host names, use a registry instead: nodes announce their host names to it.
"""

from __future__ import annotations

import socket

from sophon.errors import ConfigError, RetryableError
from sophon.link.credentials import Credentials
from sophon.link.discovery import MOST_NODES, Discovery, Found, FoundNode, split_address

_FORM = "sophon+dns://name:7077/dataset"


class Names(Discovery):
    """Nodes that a DNS name resolves to.

    Args:
        address: DNS name, port, and name of a data set.
        scheme: Scheme of the nodes' own addresses.
    """

    def __init__(self, address: str, scheme: str) -> None:
        self.url = address
        self._scheme = scheme
        place, self._dataset = split_address(address, _FORM)
        self._host, _, port = place.rpartition(":")
        if not self._host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"expected an address like {_FORM}, got {address[:200]!r}")
        self._port = int(port)

    def find(self) -> Found:
        """Resolve the name; the system resolver decides how long an answer is cached."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise RetryableError(f"{self.url}: {self._host} cannot be looked up: {error}") from error
        hosts = sorted({str(place[4][0]) for place in found})[:MOST_NODES]
        shown = [f"[{host}]" if ":" in host else host for host in hosts]
        return Found(tuple(FoundNode(f"{self._scheme}://{host}:{self._port}/{self._dataset}") for host in shown))


def open_names(address: str, credentials: Credentials, deadline_s: float) -> Names:  # noqa: ARG001 - others need them
    """Return a `Names` for an address."""
    return Names(address, "grpc+tls" if address.startswith("sophon+dns+tls:") else "grpc")
