"""Discovery: ways to find the nodes of a data set from one address that stands for all of them.

Discovery runs when a data set is opened, after failures, and every few seconds, so nodes may come, go and move in the
middle of an epoch. It only lists the nodes; each node reports what it holds.

To add a way, write a function that takes an address, credentials and a deadline and returns a `Discovery`, then add a
row to `WAYS` and a test.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sophon.errors import ConfigError
from sophon.link.credentials import Credentials
from sophon.link.schemes import scheme_of

REFRESH_S = 5.0  # between two discoveries while nothing fails
MOST_NODES = 4096


@dataclass(frozen=True)
class FoundNode:
    """A node of a data set.

    Args:
        address: Address of the node with the data set's name, such as ``grpc://10.0.0.4:7077/train``.
        fingerprint: Fingerprint of what the node holds; "" if not known.
        part: Name of the part for messages; "" if not known.
    """

    address: str
    fingerprint: str = ""
    part: str = ""


@dataclass(frozen=True)
class Found:
    """The result of a discovery.

    Args:
        nodes: The storage nodes, each once.
        relays: Addresses of the relays in front of these nodes.
        missing: Names of parts that are known to exist but have no holder.
    """

    nodes: tuple[FoundNode, ...]
    relays: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Discovery(ABC):
    """A way to find the nodes of one data set.

    Concurrency: `find` may be called from several threads, and after a fork.

    Attributes:
        url: The address that stands for all nodes.
    """

    url: str

    @abstractmethod
    def find(self) -> Found:
        """Return the current nodes.

        Raises:
            RetryableError: The nodes cannot be found at the moment.
            AccessError: The caller may not see this data set.
        """

    def report(self, bottleneck: str, waited_share: float, relay_share: float) -> None:  # noqa: B027 - most ask nobody
        """Tell whoever can start relays what is holding this trainer up; see `TrainerReport`.

        Raises:
            TransportError: There is no answer, or it comes from an older release that does not support reports.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release all resources."""


Opener: TypeAlias = Callable[[str, Credentials, float], Discovery]

# These functions belong to packages above this one, so they are named here and imported on first use.
WAYS: dict[str, Opener | str] = {
    "sophon": "sophon.cluster.registered:open_registered",
    "sophon+tls": "sophon.cluster.registered:open_registered",
    "sophon+dns": "sophon.cluster.names:open_names",
    "sophon+dns+tls": "sophon.cluster.names:open_names",
    "sophon+file": "sophon.cluster.listed:open_listed",
    "sophon+ray": "sophon.cluster.on_ray.found:open_on_ray",
}
"""Ways of discovery by the scheme of their addresses."""


def is_found(address: object) -> bool:
    """Return whether an address needs discovery."""
    return isinstance(address, str) and scheme_of(address) in WAYS


def open_discovery(address: str, credentials: Credentials, deadline_s: float) -> Discovery:
    """Return the way of discovery that an address names.

    Args:
        address: An address whose scheme is in `WAYS`.
        credentials: Credentials for the service that is asked.
        deadline_s: Deadline of the caller, within which any failure is noticed.

    Raises:
        ConfigError: The address does not have the form that the scheme requires, or a package for it is not installed.
    """
    way = WAYS[str(scheme_of(address))]
    if isinstance(way, str):
        module, _, name = way.partition(":")
        found: Opener = getattr(importlib.import_module(module), name)
        way = found
    return way(address, credentials, deadline_s)


def split_address(address: str, expected: str) -> tuple[str, str]:
    """Split an address at its last slash into the place to ask and the name of a data set.

    Raises:
        ConfigError: The name or the place is missing.
    """
    rest = address.partition("://")[2]
    place, _, dataset = rest.rpartition("/")
    if not place or not dataset or "@" in place:
        raise ConfigError(f"expected an address like {expected}, got {address.rpartition('@')[2][:200]!r}")
    return place, dataset
