"""Discovery by a registry: ``sophon://host:port/dataset``, or ``sophon+tls://``."""

from __future__ import annotations

import os
import socket
from typing import Any

from sophon.errors import ProtocolError
from sophon.link.credentials import Credentials
from sophon.link.discovery import MOST_NODES, Discovery, Found, FoundNode, split_address
from sophon.link.membership import MAX_RECORD_BYTES, Held, TrainerReport, dataset_of, held_from
from sophon.link.registry import CALL_S, SCHEMES, RegistryClient
from sophon.link.wire import parse_json

_MOST_PARTS = 65_535
_MOST_URL = 512


class Registered(Discovery):
    """Nodes that have announced themselves to a registry.

    Args:
        address: Address of the registry, and the name of a data set.
        credentials: Credentials for the registry, the same as for the nodes.
        deadline_s: Deadline of the caller.
    """

    def __init__(self, address: str, credentials: Credentials, deadline_s: float) -> None:
        self.url = address
        _, self._dataset = split_address(address, "sophon://host:7070/dataset")
        self._client = RegistryClient(address.rpartition("/")[0], credentials, min(CALL_S, deadline_s))

    def find(self) -> Found:
        """Ask the registry."""
        info = self._client.info(self._dataset)
        endpoints = info.endpoints
        if len(endpoints) > _MOST_PARTS:
            raise ProtocolError(f"{self.url} names {len(endpoints):,} parts; at most {_MOST_PARTS:,} are accepted")
        nodes: dict[str, FoundNode] = {}
        missing = []
        for endpoint in endpoints:
            held = _held(endpoint)
            urls = [location.uri.decode() for location in endpoint.locations]
            if not urls:
                missing.append(held.name)
            for url in urls:
                if len(url) > _MOST_URL or url.partition("://")[0] not in SCHEMES.values():
                    raise ProtocolError(f"{self.url} names a node {url[:80]!r}; expected grpc:// or grpc+tls://")
                address = f"{url}/{self._dataset}"
                nodes[address] = FoundNode(address, held.fingerprint, held.name)
            if len(nodes) > MOST_NODES:
                raise ProtocolError(f"{self.url} names more than {MOST_NODES:,} nodes")
        about = bytes(info.app_metadata or b"{}")
        said = parse_json(about, 16 * MAX_RECORD_BYTES).get("relays", [])
        relays = [url for url in said[:MOST_NODES] if self._is_relay(url)] if isinstance(said, list) else []
        return Found(tuple(nodes.values()), tuple(relays), tuple(missing))

    def _is_relay(self, url: object) -> bool:
        """Return whether a text is the address of a relay of the data set, or of a part of it."""
        if not isinstance(url, str) or len(url) > _MOST_URL or url.partition("://")[0] not in SCHEMES.values():
            return False
        return dataset_of(url.rpartition("/")[2]) == self._dataset

    def report(self, bottleneck: str, waited_share: float, relay_share: float) -> None:
        """Tell the registry what holds this trainer up, so that there can be more relays or fewer."""
        name = f"{socket.gethostname()}-{os.getpid()}"
        told = TrainerReport(self._dataset, name, bottleneck, waited_share, relay_share)
        self._client.action("report", told.to_json())


def _held(endpoint: Any) -> Held:
    return held_from(parse_json(endpoint.ticket.ticket, MAX_RECORD_BYTES))


def open_registered(address: str, credentials: Credentials, deadline_s: float) -> Registered:
    """Return a `Registered` for an address."""
    return Registered(address, credentials, deadline_s)
