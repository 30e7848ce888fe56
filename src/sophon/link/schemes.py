"""The table of address schemes: which transport opens an address such as ``grpc://host:port/dataset``.

To add a scheme, write a function that opens a transport, then add a row here and a test. Rooms above this one add their
rows when they are imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from sophon.errors import ConfigError
from sophon.link.credentials import Credentials
from sophon.link.flight import open_flight
from sophon.link.transport import Transport

# Opens a transport, given the address, credentials for the other side, and the caller's deadline, within which any
# failure is noticed.
Opener: TypeAlias = Callable[[str, Credentials | None, float], Transport]

SCHEMES: dict[str, Opener] = {"grpc": open_flight, "grpc+tls": open_flight}


def scheme_of(address: str) -> str | None:
    """Return the scheme of an address, or None for a path."""
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator else None


def open_address(address: str, credentials: Credentials | None = None, deadline_s: float = math.inf) -> Transport:
    """Return the transport to an address.

    Args:
        address: Address of the data set, with a scheme.
        credentials: Credentials for the other side.
        deadline_s: Deadline of the caller, within which any failure is noticed.

    Raises:
        ConfigError: The scheme is not in the table, or the address does not have the form that the scheme requires.
    """
    scheme = scheme_of(address)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(
            f"{str(scheme)[:40]}:// is not a known kind of address; expected {known}, an object store (s3://, gs://, "
            "az://, https://) or a path"
        )
    return SCHEMES[scheme](address, credentials, deadline_s)
