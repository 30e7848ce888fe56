"""Ways to find the nodes of a data set, and what they have in common: one address that stands for all of them.

A way of discovery is asked when a data set is opened, again after failures, and every few seconds meanwhile, so that
nodes may come, go and move in the middle of an epoch. It says who there is; what nodes hold, they say themselves.

A new way is a function that takes an address, credentials and a deadline and returns a `Discovery`, one row in `WAYS`
and one test.
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

REFRESH_S = 5.0  # between two questions while nothing fails
MOST_NODES = 4096


@dataclass(frozen=True)
class FoundNode:
    """A node of a data set.

    Args:
        address: Its address with the data set's name, such as ``grpc://10.0.0.4:7077/train``.
        fingerprint: Fingerprint of what it holds; "" if that is not known.
        part: What to call that in messages; "" if it is not known.
    """

    address: str
    fingerprint: str = ""
    part: str = ""


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        nodes: The storage nodes, each once.
        relays: Addresses of the relays in front of them.
        missing: Names of parts that are known to exist and have no holder.
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
        """Return who there is now.

        Raises:
            RetryableError: It cannot be found out at the moment.
            AccessError: The caller has no right to know.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release whatever is held."""


Opener: TypeAlias = Callable[[str, Credentials, float], Discovery]

# Rooms above this one hold them, so they are named here and imported when they are first used.
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
    """Return whether an address stands for nodes that have to be found."""
    return isinstance(address, str) and scheme_of(address) in WAYS


def open_discovery(address: str, credentials: Credentials, deadline_s: float) -> Discovery:
    """Return the way of discovery that an address names.

    Args:
        address: One with a scheme of the table `WAYS`.
        credentials: What to show to whoever is asked.
        deadline_s: Deadline of the caller, within which any failure is noticed.

    Raises:
        ConfigError: The address is not of the form that the scheme needs, or something has to be installed for it.
    """
    way = WAYS[str(scheme_of(address))]
    if isinstance(way, str):
        module, _, name = way.partition(":")
        found: Opener = getattr(importlib.import_module(module), name)
        way = found
    return way(address, credentials, deadline_s)


def split_address(address: str, expected: str) -> tuple[str, str]:
    """Return what stands before and after the last slash of an address: where to ask, and the name of a data set.

    Raises:
        ConfigError: There is no name, or no place.
    """
    rest = address.partition("://")[2]
    place, _, dataset = rest.rpartition("/")
    if not place or not dataset or "@" in place:
        raise ConfigError(f"expected an address like {expected}, got {address.rpartition('@')[2][:200]!r}")
    return place, dataset
