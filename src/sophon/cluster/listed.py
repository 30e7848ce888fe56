"""Discovery by a file, ``sophon+file:///etc/sophon/nodes``, with one address per line; read again after failures.

Passing a list of addresses to a loader does the same without a file, but the list cannot change during a run.
"""

from __future__ import annotations

from pathlib import Path

from sophon.errors import ConfigError, RetryableError
from sophon.link.credentials import Credentials
from sophon.link.discovery import MOST_NODES, Discovery, Found, FoundNode
from sophon.link.schemes import SCHEMES, scheme_of

_MAX_FILE_BYTES = 1 << 20


class Listed(Discovery):
    """Nodes listed in a file.

    Args:
        address: ``sophon+file://`` and the path of the file.
    """

    def __init__(self, address: str) -> None:
        self.url = address
        self._path = Path(address.partition("://")[2])
        if not self._path.is_absolute():
            raise ConfigError(f"expected an address like sophon+file:///etc/sophon/nodes, got {address[:200]!r}")

    def find(self) -> Found:
        """Read the file."""
        try:
            with self._path.open("rb") as file:
                text = file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise RetryableError(f"{self._path} cannot be read: {error.strerror}") from error
        lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
        addresses = list(dict.fromkeys(line for line in lines if line))[:MOST_NODES]
        for one in addresses:
            if scheme_of(one) not in SCHEMES:
                raise ConfigError(
                    f"{self._path}: expected addresses such as grpc://host:7077/dataset, got {one[:80]!r}"
                )
        if not addresses:
            raise RetryableError(f"{self._path} names no node")
        return Found(tuple(map(FoundNode, addresses)))


def open_listed(address: str, credentials: Credentials, deadline_s: float) -> Listed:  # noqa: ARG001 - others need them
    """Return a `Listed` for an address."""
    return Listed(address)
