"""Discovery by DNS: ``sophon+dns://name:port/dataset``, or ``sophon+dns+tls://``.

Every address that the name has is a node: so a headless Service of Kubernetes in front of a StatefulSet, or a name with
several A records, stands for all of them. DNS does not say what nodes hold and may leave one out that is just started
again. So nodes found this way should be started with ``--part``, by which a missing part is noticed.

Nodes are asked by their IP addresses, so with TLS their certificates have to carry these. Where they carry names, use a
registry, to which nodes announce the name that they are to be asked by.
"""

from __future__ import annotations

import socket

from sophon.errors import ConfigError, RetryableError
from sophon.link.credentials import Credentials
from sophon.link.discovery import MOST_NODES, Discovery, Found, FoundNode, split_address

_FORM = "sophon+dns://name:7077/dataset"


class Names(Discovery):
    """Nodes that a name stands for.

    Args:
        address: The name and port, and the name of a data set.
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
        """Look the name up; the resolver of the system decides how long an answer is good for."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise RetryableError(f"{self.url}: {self._host} cannot be looked up: {error}") from error
        hosts = sorted({str(place[4][0]) for place in found})[:MOST_NODES]
        shown = [f"[{host}]" if ":" in host else host for host in hosts]
        return Found(tuple(FoundNode(f"{self._scheme}://{host}:{self._port}/{self._dataset}") for host in shown))


def open_names(address: str, credentials: Credentials, deadline_s: float) -> Names:  # noqa: ARG001 - others need them
    """Return the way to the nodes that a name stands for."""
    return Names(address, "grpc+tls" if address.startswith("sophon+dns+tls:") else "grpc")
