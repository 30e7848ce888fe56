"""A node tells a registry every second that it is running and what it holds.

A node keeps working if the registry does not answer: connected trainers continue, and the next beat finds the registry
again, or its replacement. If the registry's address is given as a file, the file is read at every beat.

Concurrency: a separate thread is the only user of the connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sophon.errors import ConfigError, Error, ProtocolError, RetryableError
from sophon.link.credentials import Credentials
from sophon.link.membership import BEAT_S, Held, NodeRecord, named
from sophon.link.registry import RegistryClient
from sophon.link.wire import parse_json
from sophon.process.wall_clock import date_s
from sophon.server.journal import LOG
from sophon.store import Store

_SAID_S = 60.0  # minimum time between log lines about the same problem
_JOIN_S = 5.0


@dataclass(frozen=True)
class Announcing:
    """The registry to announce to, and how the node presents itself.

    Args:
        registry: Address of the registry, or ``@`` and the path of a file that contains the address.
        advertise: Host, or host and port, by which trainers reach this node; "" for the address it listens on.
        credentials: Credentials for the registry; by default from the environment.
        role: "storage" or "relay".
        names: Names of the data sets that a relay passes on.
    """

    registry: str
    advertise: str = ""
    credentials: Credentials | None = None
    role: str = "storage"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.registry.startswith("@"):
            RegistryClient(self.registry, self.credentials)  # raises if the address is invalid

    def check(self, names: Iterable[str]) -> None:
        """Raise `ConfigError` if a registry would refuse the name of a data set."""
        try:
            for name in names:
                named(name, self.role)
        except ProtocolError as error:
            raise ConfigError(f"--registry: {error}") from error

    def url(self, scheme: str, host: str, port: int) -> str:
        """Return the address to announce.

        Raises:
            ConfigError: The node listens on all addresses, and none was given to announce.
        """
        if not self.advertise:
            if host in ("0.0.0.0", "::", ""):
                raise ConfigError(
                    f"--registry: {host} means every address of this host; give the one to announce with --advertise"
                )
            host = f"[{host}]" if ":" in host else host
            return f"{scheme}://{host}:{port}"
        has_port = self.advertise.rpartition(":")[2].isdigit() and not self.advertise.endswith("]")
        return f"{scheme}://{self.advertise}" if has_port else f"{scheme}://{self.advertise}:{port}"


def held_by(stores: Mapping[str, Store]) -> dict[str, Held]:
    """Return what a node holds, in the form in which it is announced."""
    return {
        name: Held(store.manifest.fingerprint, len(store), store.part, store.whole) for name, store in stores.items()
    }


class Announcer:
    """Announces a node until it is closed.

    Args:
        announcing: The registry to announce to.
        record: The announcement.
    """

    def __init__(self, announcing: Announcing, record: NodeRecord) -> None:
        self._announcing = announcing
        self._record = record
        self._client: RegistryClient | None = None
        self._ended = threading.Event()
        self._beat = threading.Event()
        self._said: tuple[str, float] = ("", 0.0)
        self._thread = threading.Thread(target=self._run, name="sophon-announce", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Tell the registry that the node is about to stop, so that no new trainers are sent to it."""
        self._record = replace(self._record, is_leaving=True)
        self._beat.set()

    def close(self) -> None:
        """Tell the registry that the node has stopped, and end."""
        self._ended.set()
        self._beat.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._tell("announce")
            self._beat.wait(BEAT_S)
            self._beat.clear()
        self._tell("leave")
        if self._client is not None:
            self._client.close()

    def _tell(self, action: str) -> None:
        try:
            told = parse_json(self._registry().action(action, self._record.to_json()))
            if told.get("known") is False:
                raise ConfigError(
                    "it keeps no more parts; sophon nodes ADDRESS --forget DATASET forgets those that no node holds"
                )
            self._said = ("", 0.0)
        except (Error, OSError) as error:
            text = f"the registry does not know this node: {error}"
            before, at_s = self._said
            if text != before or date_s() - at_s > _SAID_S:
                self._said = (text, date_s())
                LOG.warning("%s", text, extra={"event": "registry"})
            if isinstance(error, RetryableError) and self._announcing.registry.startswith("@"):
                self._client = None

    def _registry(self) -> RegistryClient:
        told = self._announcing.registry
        address = told
        if told.startswith("@"):
            address = Path(told[1:]).read_text().strip()
        if self._client is None or self._client.address != address:
            if self._client is not None:
                self._client.close()
            self._client = RegistryClient(address, self._announcing.credentials, keeps=True)
        return self._client


def node_name(pid: int) -> str:
    """Return a unique name for a process: its host, pid and start time."""
    return f"{socket.gethostname()}-{pid}-{int(date_s() * 1000):x}"
