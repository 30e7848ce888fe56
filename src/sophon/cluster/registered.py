"""Discovery by a registry: ``sophon://host:port/dataset``, or ``sophon+tls://``."""

from __future__ import annotations

import os
import socket
from typing import Any

import pyarrow as pa

from sophon.errors import ProtocolError
from sophon.link.credentials import Credentials
from sophon.link.discovery import MOST_NODES, Discovery, Found, FoundNode, split_address
from sophon.link.membership import MAX_RECORD_BYTES, Held, TrainerReport, dataset_of, held_from, is_node_url
from sophon.link.registry import CALL_S, RegistryClient
from sophon.link.wire import parse_json


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
        self._is_encrypted = address.lower().startswith("sophon+tls:")
        self._client = RegistryClient(address.rpartition("/")[0], credentials, min(CALL_S, deadline_s))

    def find(self) -> Found:
        """Ask the registry."""
        info = self._client.info(self._dataset)
        try:
            endpoints = info.endpoints
            places = [[location.uri.decode() for location in endpoint.locations] for endpoint in endpoints]
        except (pa.ArrowException, ValueError) as error:  # an address that Arrow cannot parse, or that is not UTF-8
            raise ProtocolError(f"{self.url} names nodes that cannot be read: {error!s:.200}") from error
        nodes: dict[str, FoundNode] = {}
        missing = []
        for endpoint, urls in zip(endpoints, places, strict=True):
            held = _held(endpoint)
            if not urls:
                missing.append(held.name)
            for url in urls:
                address = self._address(url)
                nodes[address] = FoundNode(address, held.fingerprint, held.name)
            if len(nodes) > MOST_NODES:
                raise ProtocolError(f"{self.url} names more than {MOST_NODES:,} nodes")
        about = bytes(info.app_metadata or b"{}")
        said = parse_json(about, 16 * MAX_RECORD_BYTES).get("relays", [])
        if not isinstance(said, list) or len(said) > MOST_NODES:
            raise ProtocolError(f"{self.url} names its relays in a form other than a list of at most {MOST_NODES:,}")
        return Found(tuple(nodes.values()), tuple(map(self._relay, said)), tuple(missing))

    def _address(self, url: object) -> str:
        """Return the address of the data set at a node, or raise if `url` is not a node's address."""
        if not is_node_url(url):
            raise ProtocolError(f"{self.url} names a node {url!r:.80}; expected grpc://host:port or grpc+tls://…")
        if self._is_encrypted and not str(url).startswith("grpc+tls:"):
            raise ProtocolError(
                f"{self.url} names a node without TLS, {url}, to which the token would go in the clear; start the "
                "node with --tls-cert, or use an address like sophon:// if the network is safe"
            )
        return f"{url}/{self._dataset}"

    def _relay(self, url: object) -> str:
        """Return the address of a relay of the data set, or of a part of it; raise as for a node."""
        node, _, name = url.rpartition("/") if isinstance(url, str) else (url, "", "")
        self._address(node)
        if dataset_of(name) != self._dataset:
            raise ProtocolError(f"{self.url} names a relay of a different data set, {name!r:.80}")
        return f"{node}/{name}"

    def report(self, bottleneck: str, waited_share: float, relay_share: float) -> None:
        """Tell the registry what is holding this trainer up, so that it can adjust the number of relays."""
        name = f"{socket.gethostname()}-{os.getpid()}"
        told = TrainerReport(self._dataset, name, bottleneck, waited_share, relay_share)
        self._client.action("report", told.to_json())


def _held(endpoint: Any) -> Held:
    return held_from(parse_json(endpoint.ticket.ticket, MAX_RECORD_BYTES))


def open_registered(address: str, credentials: Credentials, deadline_s: float) -> Registered:
    """Return a `Registered` for an address."""
    return Registered(address, credentials, deadline_s)
