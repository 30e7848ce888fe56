"""Where samples come from: storage nodes that hold the same data set, and maybe a path to fall back on.

Invariants 1 and 3 make one node as good as another: any of them may answer any request, with any cut, and the tensors
are the same. What is left to see to is that a node really holds the same data set, and that it is asked only for cuts
that give the same bits there as here.

Concurrency: a source may be used by several threads; two that open it at once find the same.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from sophon.codec.cut import RAW
from sophon.codec.wire import Reply, Request
from sophon.errors import ConfigError, Error, RetryableError, StoreError, remote_traceback, with_remote_traceback
from sophon.loader.cuts import count_agreed
from sophon.loader.machine import Machine, MachineConfig
from sophon.loader.nodes import Nodes
from sophon.loader.transport import Fetch, Opened, Transport, transport_to
from sophon.pipeline import Pipeline

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

    def warn_of_fallback(self, note: str = "", stacklevel: int = 3) -> None:
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


class Source(Transport):
    """A storage node among several.

    Args:
        inner: How to reach it.
        pipeline: What is divided.
    """

    def __init__(self, inner: Transport, pipeline: Pipeline) -> None:
        self.address = inner.address
        self.is_remote = inner.is_remote
        self._inner = inner
        self._pipeline = pipeline
        self._opened: Opened | None = None
        self._most: int | None = None  # ops that give the same bits there; None until somebody asks for a cut

    def open(self, pipeline: Pipeline) -> Opened:
        """Ask the node what it has."""
        self._opened = self._inner.open(pipeline)
        return self._opened

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Ask the node for samples, once it is known to hold the same data set."""
        opened = self._opened or self._checked(request.dataset_fingerprint)
        cuts = request.cuts
        if any(cut.k > 0 for cut in cuts):
            most = self._agreed(opened)
            cuts = tuple(cut if cut.k <= most else RAW for cut in cuts)
        fitted = replace(request, dataset=opened.name, cuts=cuts)
        return _PartsFetch(self._inner, fitted, opened.max_samples, timeout_s)

    def _checked(self, fingerprint: str) -> Opened:
        opened = self._inner.open(self._pipeline)
        check_same(opened, fingerprint, self.address)
        self._opened = opened
        return opened

    def _agreed(self, opened: Opened) -> int:
        if self._most is None:
            self._most = count_agreed(self._pipeline, opened)
        return self._most

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()


class _PartsFetch(Fetch):
    """A request in parts, as large as one node of several takes; where it fails, the error says which node."""

    def __init__(self, inner: Transport, request: Request, max_samples: int, timeout_s: float) -> None:
        self._inner = inner
        self._request = request
        self._max_samples = max_samples
        self._timeout_s = timeout_s
        self._part: Fetch | None = None
        self._is_cancelled = False
        self._computed_s = 0.0

    def __iter__(self) -> Iterator[Reply]:
        request, size = self._request, self._max_samples
        for start in range(0, len(request.samples), size):
            if self._is_cancelled:
                return
            part = slice(start, start + size)
            asked = replace(request, samples=request.samples[part], cuts=request.cuts[part])
            fetch = self._part = self._inner.fetch(asked, self._timeout_s)
            before_s = self._computed_s
            try:
                for reply in fetch:
                    reply.position += start
                    self.computing_s = before_s + fetch.computing_s
                    yield reply
            except Error as error:
                raise explained(error, self._inner.address) from error
            self._computed_s = before_s + fetch.computing_s

    @property
    def heard_s(self) -> float:  # type: ignore[override]  # an attribute there
        """When the node last gave a sign of life."""
        return 0.0 if self._part is None else self._part.heard_s

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._part is not None:
            self._part.cancel()


class Fallback(Source):
    """The path to fall back on: raw files, and all ops run here."""

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Read samples."""
        raw = replace(request, cuts=(RAW,) * len(request.cuts))
        return _FallbackFetch(super().fetch(raw, timeout_s), Path(self.address))


class _FallbackFetch(Fetch):
    def __init__(self, inner: Fetch, path: Path) -> None:
        self._inner = inner
        self._path = path

    def __iter__(self) -> Iterator[Reply]:
        for reply in self._inner:
            if isinstance(reply.error, StoreError) and not self._is_there():
                # All of it is gone, as the nodes are: no reason yet to call the sample bad.
                raise RetryableError(f"there is nothing at the fallback {self._path} any more")
            yield reply

    def _is_there(self) -> bool:
        try:
            # Where a disk was unmounted, an empty folder is left. A pattern of shards is looked for in its folder.
            folder = self._path if self._path.is_dir() else self._path.parent
            return self._path.is_file() or any(folder.iterdir())
        except OSError:
            return False

    def cancel(self) -> None:
        self._inner.cancel()


def explained(error: Error, address: str) -> Error:
    """Return an error with the address of who it came from, if it does not say so."""
    if address in str(error):
        return error
    there = remote_traceback(error)
    told = type(error)(f"{address}: {error}")
    return told if there is None else with_remote_traceback(told, there)


def check_same(opened: Opened, fingerprint: str, address: str) -> None:
    """Raise unless a source holds the data set that the run began with."""
    if opened.fingerprint != fingerprint:
        raise ConfigError(
            f"{address} holds another data set ({opened.fingerprint}) than the others ({fingerprint}): other files, "
            "sizes or labels; copy the same files there, or leave it out"
        )


def explain(error: Error, address: str) -> Error:
    """Return the error that ends an epoch, with what to do."""
    text = str(error) if address in str(error) else f"{address}: {error}"
    if isinstance(error, RetryableError):
        text = f"{text}. Is `sophon serve` running there and reachable? Raise deadline_s to wait longer."
    there = remote_traceback(error)
    return type(error)(text) if there is None else with_remote_traceback(type(error)(text), there)
