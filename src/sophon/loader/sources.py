"""Where samples come from: storage nodes that hold the same data set, and maybe a path to fall back on.

Keeps what is known of them from one epoch to the next, and opens the data set at the first that answers.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from os import PathLike, fspath
from typing import Any

from sophon.errors import ConfigError, Error, RetryableError
from sophon.loader import flight_transport
from sophon.loader.credentials import Credentials
from sophon.loader.local_transport import open_path
from sophon.loader.machine import Machine, MachineConfig
from sophon.loader.nodes import Nodes
from sophon.loader.source import Fallback, Source, check_same, explained
from sophon.loader.transport import Opened, Transport
from sophon.pipeline import Pipeline

_REMEDY = "Is `sophon serve` running there and reachable? Raise deadline_s to wait longer."

Address = str | PathLike[str] | Sequence[str]


class FallbackWarning(UserWarning):
    """No storage node answers, and samples are read from the path to fall back on; the tensors are the same."""


def addresses_of(data: Address) -> list[str]:
    """Return the addresses that a user gives: one, a path, or several of nodes that hold the same data set."""
    if isinstance(data, str | PathLike):
        return [str(fspath(data))]
    if not isinstance(data, Sequence) or not data or not all(isinstance(one, str) for one in data):
        raise ConfigError(f"expected an address, a path, or a list of addresses, got {data!r}")
    if len(data) > 1:
        paths = [one for one in data if "://" not in one]
        if paths:
            raise ConfigError(f"{paths[0]!r} among several addresses is a path; give it as fallback=")
        if len(set(data)) < len(data):
            raise ConfigError("an address is given twice; give each storage node once")
    return list(data)


def transport_to(address: str, credentials: Credentials | None = None, deadline_s: float = math.inf) -> Transport:
    """Return the transport for ``grpc://host:port/dataset``, ``grpc+tls://host:port/dataset`` or a path.

    Args:
        address: Of the data set.
        credentials: What to show to the node.
        deadline_s: Of whoever uses it; nothing takes longer to be noticed.
    """
    if "://" in address:
        open_s, silence_s = min(flight_transport.OPEN_S, deadline_s), flight_transport.silence_within(deadline_s)
        return flight_transport.FlightTransport(address, open_s, credentials, silence_s)
    return open_path(address)


class Sources:
    """The nodes, numbered from 0, and behind them the fallback, if there is one.

    Args:
        nodes: How to reach them.
        fallback: Path of the same files.
        pipeline: What is divided.
        url: What to call all of them in messages.
        deadline_s: How long nothing may come before an error is raised.
    """

    def __init__(
        self,
        nodes: Sequence[Transport],
        fallback: str | PathLike[str] | None,
        pipeline: Pipeline,
        url: str,
        deadline_s: float,
    ) -> None:
        self.nodes = len(nodes)
        self.has_fallback = fallback is not None
        self._url = url
        self._deadline_s = deadline_s
        self._warned = False
        self._kept: Nodes | None = None
        self._all = list(nodes)
        if self.nodes > 1 or fallback is not None:
            self._all = [Source(node, pipeline) for node in nodes]
        if fallback is not None:
            if not all(node.is_remote for node in nodes):
                raise ConfigError("fallback: the samples are read from a path already")
            path = str(fspath(fallback))
            if "://" in path:
                raise ConfigError(f"fallback: expected a path, got {path!r}; give several nodes as a list of addresses")
            self._all.append(Fallback(transport_to(path), pipeline))

    def __getitem__(self, number: int) -> Transport:
        return self._all[number]

    def __iter__(self) -> Iterator[Transport]:
        return iter(self._all)

    def is_fallback(self, number: int) -> bool:
        """Return whether a source is not one of the nodes."""
        return number >= self.nodes

    def wrap(self, wrapper: Callable[[Transport], Transport]) -> None:
        """Put something in front of every source."""
        self._all = [wrapper(source) for source in self._all]

    def config(self, **more: Any) -> MachineConfig:
        """Return what the machine has to know, for these sources."""
        return MachineConfig(deadline_s=self._deadline_s, nodes=self.nodes, has_fallback=self.has_fallback, **more)

    def machine(self, count: int, batch_size: int, config: MachineConfig, size_bytes: int, **more: Any) -> Machine:
        """Return a machine that knows what the one before has learned of the sources; see `keep`."""
        nodes, self._kept = self._kept, None  # whoever asks meanwhile begins anew
        seed = int.from_bytes(os.urandom(8))  # of pauses: trainers that lose a node together do not come back in step
        return Machine(count, batch_size, config, size_bytes, time.monotonic(), seed, nodes, **more)

    def keep(self, machine: Machine) -> None:
        """Keep what a machine has learned of the sources for the next one."""
        self._kept = machine.nodes

    def open(self, pipeline: Pipeline) -> Opened:
        """Open the data set at the first source that answers, until the deadline: a trainer may start before its node.

        Raises:
            ConfigError: The fallback holds another data set.
        """
        machine = self.machine(1, 1, self.config(), 0)
        while True:
            ask = machine.ask(time.monotonic())
            if machine.fatal:
                raise explain(machine.fatal, self._url)
            if ask is None:
                time.sleep(min(0.05, machine.wait_s(time.monotonic())))
                continue
            try:
                opened = self._all[ask.node].open(pipeline)
                machine.reply(ask.request, 0, 0, time.monotonic())
                machine.ended(ask.request, time.monotonic())
                break
            except RetryableError as error:
                machine.failed(ask.request, error, time.monotonic())
        self.keep(machine)
        if self.is_fallback(ask.node):
            self.warn_of_fallback("nothing is offloaded in this run", stacklevel=5)
        elif self.has_fallback:
            fallback = self._all[-1]
            check_same(fallback.open(pipeline), opened.fingerprint, f"fallback {fallback.address}")
        return opened

    def warn_of_fallback(self, note: str = "", *, stacklevel: int) -> None:
        """Tell the user, once, that samples are read from the path to fall back on."""
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"no answer from {self._url}; samples are read from {self._all[-1].address} until a node answers "
            f"(loader.stats.fallback counts them); {note or 'the tensors are the same'}",
            FallbackWarning,
            stacklevel=stacklevel,
        )


def explain(error: Error, address: str) -> Error:
    """Return the error that ends an epoch, with what to do."""
    is_away = isinstance(error, RetryableError)
    return explained(error, address, _REMEDY if is_away else "")
