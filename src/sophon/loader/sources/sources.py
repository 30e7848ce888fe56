"""Where samples come from: storage nodes with copies or parts of a data set, and possibly a fallback path.

Keeps what is known about the sources from one epoch to the next, and opens the data set: at the first source that
answers, and then at all others (`census`).
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ConfigError, Error, UnavailableError
from sophon.link.credentials import Credentials
from sophon.link.deadline import until
from sophon.link.schemes import open_address, scheme_of
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import Reply
from sophon.loader.machine.machine import Ask, Machine, MachineConfig
from sophon.loader.machine.parts import Parts
from sophon.loader.machine.standing import Standings
from sophon.loader.sources.away import Absences
from sophon.loader.sources.census import Census, PartsWarning
from sophon.loader.sources.driver import Driver, Errand
from sophon.loader.sources.local import open_path
from sophon.loader.sources.source import Fallback, Source, explained
from sophon.loader.sources.union import Holding, Union
from sophon.pipeline import Pipeline
from sophon.store.address import is_address

_LEAST_S = 1.0  # for the nodes, if finding them has taken all the time there is
_REMEDY = "Is `sophon serve` running there and reachable? Raise Faults(deadline_s=…) to wait longer."

Address = str | PathLike[str] | Sequence[str]
Row = Sequence[int] | NDArray[np.int64]


class FallbackWarning(UserWarning):
    """No storage node answers, and samples are read from the fallback path; the tensors are the same."""


def addresses_of(data: Address) -> list[str]:
    """Return the addresses that a user gives: one node, a path, or several nodes with copies or parts of a data set."""
    if isinstance(data, str | PathLike):
        return [str(fspath(data))]
    if not isinstance(data, Sequence) or not data or not all(isinstance(one, str) for one in data):
        raise ConfigError(f"expected an address, a path, or a list of addresses, got {data!r}")
    if len(data) > 1:
        paths = [one for one in data if scheme_of(one) is None or is_address(one)]
        if paths:
            problem = f"{paths[0]!r} is a path, but several addresses were given"
            raise ConfigError(f"{problem}; pass it as Faults(fallback=…)")
        if len(set(data)) < len(data):
            raise ConfigError("an address is given twice; give each storage node once")
    return list(data)


def transport_to(address: str, credentials: Credentials | None = None, deadline_s: float = math.inf) -> Transport:
    """Return the transport to an address with a scheme in `SCHEMES`, to an object store or to a path.

    Args:
        address: Address of the data set.
        credentials: Credentials for the node.
        deadline_s: Deadline of the caller, within which any failure is noticed.
    """
    if scheme_of(address) is None or is_address(address):
        return open_path(address)
    return open_address(address, credentials, deadline_s)


class Sources:
    """The nodes, numbered from 0, followed by the fallback, if there is one.

    Args:
        nodes: Transports to the nodes.
        fallback: Path of the same files.
        pipeline: The pipeline to divide.
        url: Name of all the sources for messages.
        deadline_s: Seconds without any answer before an error is raised.
        has_parts: Whether nodes are known to hold different samples.
    """

    def __init__(
        self,
        nodes: Sequence[Transport],
        fallback: str | PathLike[str] | None,
        pipeline: Pipeline,
        url: str,
        deadline_s: float,
        *,
        has_parts: bool = False,
    ) -> None:
        self.plain_nodes = tuple(nodes)
        self.nodes = len(nodes)
        self.has_fallback = fallback is not None
        self.url = url
        self._deadline_s = deadline_s
        self._end_s = 0.0  # when opening has to be over, if it has begun before `open`
        self._warned = False
        self._kept: Standings | None = None
        self._union: Union | None = None  # None if all nodes hold the same samples
        self._holders: tuple[tuple[int, ...], ...] = (tuple(range(self.nodes)),)
        self._names = tuple(node.address for node in nodes)
        self._all = list(nodes)
        self._pipeline = pipeline
        self._visitor: threading.Thread | None = None
        self._sources: list[Source] = []  # the same nodes, without caches in front of them
        self._fallback: Fallback | None = None
        if self.nodes > 1 or fallback is not None or has_parts:
            self._sources = [Source(node, pipeline) for node in nodes]
            self._all = list(self._sources)
        if fallback is not None:
            if not all(node.is_remote for node in nodes):
                raise ConfigError("fallback: the samples are already read from a path")
            path = str(fspath(fallback))
            if scheme_of(path) is not None and not is_address(path):
                raise ConfigError(f"fallback: expected a path, got {path!r}; give several nodes as a list of addresses")
            self._fallback = Fallback(transport_to(path), pipeline)
            self._all.append(self._fallback)
        self.absences = Absences([source.address for source in self._all], deadline_s)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_visitor": None, "report": None}  # threads and planners stay in this process

    def __getitem__(self, number: int) -> Transport:
        return self._all[number]

    def __iter__(self) -> Iterator[Transport]:
        return iter(self._all)

    def is_fallback(self, number: int) -> bool:
        """Return whether a source is not one of the nodes."""
        return number >= self.nodes

    def cores(self, first: Opened) -> float:
        """Return how many cores for ops all nodes have together.

        Nodes are asked when they are first needed; until then the mean of the others is assumed.

        Args:
            first: The answer of the source at which the data set was opened.
        """
        relays = self.relays
        told = [c for number, c in enumerate(self.cores_of_nodes) if c is not None and number not in relays]
        told = told or [first.cores if first.behind is None or not relays else first.behind.cores]
        return max(self.known_nodes - len(relays), 1) * sum(told) / len(told)

    @property
    def relays(self) -> frozenset[int]:
        """The numbers of the sources that are relays, as far as is known."""
        opened = ((number, source.opened) for number, source in enumerate(self._sources))
        return frozenset(number for number, told in opened if told is not None and told.is_relay)

    may_gain_relays = False
    """Whether relays may come later."""
    report: Callable[[], tuple[str, float, float] | None] | None = None
    """Returns what holds this trainer back, for whatever starts relays: the bottleneck, and the shares of the time in
    which the consumer waits and relays are busy."""

    @property
    def relay_cores(self) -> dict[int, float]:
        """Number of cores of each relay that answers or has not been asked yet, by the relay's number."""
        there = {number: self._sources[number].opened for number in self.relays if not self.absences.is_away(number)}
        return {number: told.cores for number, told in there.items() if told is not None}

    def revisit(self) -> None:
        """Ask relays that have failed whether they are back, one at a time, in a separate thread.

        Nodes are asked again when they are needed. A relay that no plan uses is never needed.
        """
        away = [number for number in self.relays if self.absences.is_away(number)]
        if away and (self._visitor is None or not self._visitor.is_alive()):
            self._visitor = threading.Thread(target=self._revisit, args=(away,), name="sophon-revisit", daemon=True)
            self._visitor.start()

    def _revisit(self, away: Sequence[int]) -> None:
        for number in away:
            with suppress(Error):
                self._sources[number].open(self._pipeline)
                self.absences.answered(number)

    @property
    def cores_of_nodes(self) -> list[float | None]:
        """How many cores for ops each node has; None for one that has not been asked yet, or is the only one."""
        opened = [source.opened for source in self._sources]
        return [None if one is None else one.cores for one in opened] or [None] * self.nodes

    @property
    def has_parts(self) -> bool:
        """Whether nodes hold different samples."""
        return self._union is not None

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Label of every sample, if nodes number their classes separately; None if the nodes' labels are used."""
        return None if self._union is None else self._union.labels

    def divided(self, samples: int) -> tuple[NDArray[np.int64], tuple[tuple[int, ...], ...]]:
        """Return the part of each sample, and the numbers of the nodes that hold each part."""
        part_of = np.zeros(samples, np.int64) if self._union is None else self._union.part_of.astype(np.int64)
        return part_of, self._holders

    def holdings(self, opened: Opened) -> list[tuple[Holding, Opened]]:
        """Return what each node holds of a data set, and its description."""
        everything = Holding(np.arange(opened.samples))
        if not self._sources:
            return [(everything, opened)]
        return [(source.holding or everything, source.opened or opened) for source in self._sources]

    def holders_of(self, sample: int) -> list[int]:
        """Return the numbers of the sources that hold a sample, nodes first."""
        part = 0 if self._union is None else int(self._union.part_of[sample])
        return [*self._holders[part], *([self.nodes] if self.has_fallback else [])]

    def file_sizes(self, samples: int, fields: tuple[str, ...] = ()) -> NDArray[np.int64] | None:
        """Return the size of every sample's file, from the first node that reports it; None if none does.

        Args:
            samples: Number of samples.
            fields: Names of the fields that are sent besides the first.
        """
        if self._union is not None:
            return self._union.sizes
        for node in self._all[: self.nodes]:
            with suppress(Error):  # without sizes a plan can still be made, though a worse one
                found = node.file_sizes(samples, fields)
                if found is not None:
                    return found
        return None

    def wrap(self, wrapper: Callable[[Transport], Transport]) -> None:
        """Wrap every source, for example with a cache."""
        self._all = [wrapper(source) for source in self._all]

    def config(self, **more: Any) -> MachineConfig:
        """Return the machine's configuration for these sources."""
        return MachineConfig(deadline_s=self._deadline_s, nodes=self.nodes, has_fallback=self.has_fallback, **more)

    def machine(
        self,
        row: Row,
        batch_size: int,
        config: MachineConfig,
        size_bytes: int,
        latest: NDArray[np.int64] | None = None,
        sizes: Sequence[int] | None = None,
        is_relayed: NDArray[np.bool_] | None = None,
    ) -> Machine:
        """Return a machine that knows the holders, and what the previous machine learned about the sources; see `keep`.

        Args:
            row: Samples in the order they are wanted.
            batch_size: Samples in a batch.
            config: Bounds and times.
            size_bytes: First guess at the bytes held for one sample.
            latest: In relaxed order, the last batch that each sample may be in.
            sizes: Samples in each batch, if batches differ in size.
            is_relayed: Which of the samples go through relays; None if none do or there are no relays.
        """
        parts = self.by_way(self.parts(row), is_relayed)
        standings, self._kept = self._kept, None  # a machine requested in the meantime starts without them
        seed = int.from_bytes(os.urandom(8))  # for pauses, so that trainers do not retry in step
        now_s = time.monotonic()
        return Machine(len(row), batch_size, config, size_bytes, now_s, seed, standings, sizes, latest, parts)

    def parts(self, row: Row) -> Parts:
        """Return the holders of a row's samples."""
        of = None if self._union is None else self._union.part_of[np.asarray(row, np.int64)]
        return Parts(self._holders, of, self._names)

    def by_way(self, parts: Parts, is_relayed: NDArray[np.bool_] | None) -> Parts:
        """Return parts that distinguish nodes from relays, if there are relays.

        Args:
            parts: The holders, relays among them.
            is_relayed: Which of the samples go through relays; None if none do or there are no relays.
        """
        relays = self.relays
        if is_relayed is None or not relays:
            return parts
        of = np.zeros(len(is_relayed), np.uint16) if parts.of is None else parts.of.astype(np.uint16)
        return Parts.among(parts.holders, relays, of, is_relayed, parts.names)

    def keep(self, machine: Machine) -> None:
        """Keep what a machine has learned about the sources, for the next machine."""
        self._kept = machine.standings

    def open(self, pipeline: Pipeline) -> Opened:
        """Open the data set at the first source that answers, until the deadline: a trainer may start before its node.

        If there are several nodes, all of them are then asked whether they hold copies or parts.

        Raises:
            ConfigError: The fallback holds a different data set, or the nodes' contents do not fit together.
            UnavailableError: No source answers, or one that may hold unique samples does not.
        """
        end_s, self._end_s = self._end_s or time.monotonic() + self._deadline_s, 0.0
        opening = _Opening(self._all, pipeline, self.absences, end_s)
        left_s = max(end_s - time.monotonic(), _LEAST_S)
        machine = self.machine([0], 1, replace(self.config(), deadline_s=left_s), 0)
        driver = Driver(machine, opening, self._raise_fatal)
        is_away = any(source.is_remote for source in self._all)  # a path that is slow to list is not absent
        with self.absences.opening() if is_away else nullcontext():
            for _ in driver.inline(lambda: opening.opened is not None):
                pass
        assert opening.opened is not None
        opened, source = opening.opened, opening.source
        self.keep(machine)
        if self.is_fallback(source):
            for node in self._sources:
                node.may_hold_a_part = self.nodes > 1
            self.warn_of_fallback("nothing is offloaded in this run", stacklevel=5)
        elif self._sources:
            opened, self._union, self._holders = self._census(pipeline, end_s).take(opened)
            if opened.is_relay and self._union is None:  # a node's answer is the same, with its own abilities
                told = [source.opened for source in self._sources if source.opened is not None]
                opened = next((one for one in told if not one.is_relay), opened)
        elif opened.part:
            warnings.warn(
                f"{self.url} holds only part {opened.part} of a data set, {opened.samples:,} samples; give the "
                "addresses of all parts, or the registry's, to open the whole",
                PartsWarning,
                stacklevel=5,
            )
        return opened

    def _census(self, pipeline: Pipeline, end_s: float) -> Census:
        """Return the census that asks all nodes what they hold."""
        return Census(self._sources, self._fallback, pipeline, self._deadline_s, end_s)

    # --- where nodes may come and go ----------------------------------------------------------------------------------

    @property
    def known_nodes(self) -> int:
        """Number of nodes now."""
        return self.nodes

    def follow(self, row: Row, version: int) -> tuple[int, Parts | None]:  # noqa: ARG002 - these nodes stay
        """Return the holders of a row's samples, if they have changed since a version."""
        return version, None

    def failed(self, number: int) -> None:
        """Record that a request has failed."""

    def compare_columns(self, columns: Sequence[str]) -> None:
        """Raise unless copies of a data set have the same values in their columns, if any columns are requested.

        Parts are not compared: each has its own rows.

        Raises:
            ConfigError: The copies differ; the message names two of them.
        """
        asked = [name for name in columns if name != "id"]
        if not asked or self._union is not None:
            return
        told: dict[str, str] = {}
        for source in (*self._sources, *(() if self._fallback is None else (self._fallback,))):
            if source.opened is not None:
                told.setdefault(source.opened.columns_digest, source.address)
        if len(told) > 1:
            here, there = list(told.values())[:2]
            raise ConfigError(
                f"{here} and {there} hold the same files with different values in their columns (asked for: "
                f"{', '.join(map(repr, asked[:5]))}); serve the same listing at both, or leave one out"
            )

    def _raise_fatal(self, error: Error) -> None:
        raise explain(error, self.url)

    def warn_of_fallback(self, note: str = "", *, stacklevel: int) -> None:
        """Tell the user, once, that samples are read from the fallback path."""
        if self._warned:
            return
        self._warned = True
        who = f"some of {self.url}" if self.has_parts else self.url
        warnings.warn(
            f"no answer from {who}; samples are read from {self._all[-1].address} until a node answers "
            f"(loader.stats.fallback counts them); {note or 'the tensors are the same'}",
            FallbackWarning,
            stacklevel=stacklevel,
        )


class _Opening(Errand):
    """Opens a data set at the source chosen by a machine."""

    def __init__(self, sources: Sequence[Transport], pipeline: Pipeline, absences: Absences, end_s: float) -> None:
        self._sources = sources
        self._end_s = end_s
        self._absences = absences
        self._pipeline = pipeline
        self.opened: Opened | None = None
        self.source = 0

    def send(self, ask: Ask) -> Fetch:
        with until(self._end_s):
            self.opened = self._sources[ask.source].open(self._pipeline)
        self.source = ask.source
        self._absences.answered(ask.source)
        return _Told()

    def failed(self, ask: Ask, error: Error, since_s: float) -> None:
        self._absences.failed(ask.source, error, since_s)


class _Told(Fetch):
    def __iter__(self) -> Iterator[Reply]:
        yield Reply(0)


def explain(error: Error, address: str) -> Error:
    """Return the error that ends an epoch, with a remedy."""
    is_away = isinstance(error, UnavailableError)
    return explained(error, address, _REMEDY if is_away else "")
