"""Samples of one data set, requested from its sources, each with its cut.

Concurrency: may be used by several threads, and by forked or spawned processes, each of which makes its own
connections.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut
from sophon.errors import Error, OpError
from sophon.link.transport import Fetch, Opened
from sophon.link.wire import Reply, Request
from sophon.loader.account.stats import Stats
from sophon.loader.machine.machine import Ask, Machine
from sophon.loader.machine.parts import Parts
from sophon.loader.sources.assignment import Assignment, versions_for, within
from sophon.loader.sources.driver import Driver, Errand
from sophon.loader.sources.sources import Row, Sources, explain
from sophon.pipeline import Pipeline
from sophon.process.crew import Crew

_GLANCE_S = 2.0  # how long to wait for the file name of a bad sample, or a sample to try callables on
_LEAVE_S = 1.0  # how long a fetching thread may take to end; one that can be cancelled needs a millisecond


class Watcher(Protocol):
    """Observes requests: see `Planner`."""

    def began(self, request: int, source: int = 0) -> None:
        """Called when a request is sent to a source."""

    def received(self, request: int, sample: int, reply: Reply, asked: Cut, fetch: Fetch) -> None:
        """Called when a reply arrives."""

    def ended(self, request: int) -> None:
        """Called when a stream ends."""

    def spent(self, samples: int, size_bytes: int, cpu_s: float) -> None:
        """Called with what a request returned, and the CPU seconds of the thread that received it."""


def divided(names: tuple[str, ...], opened: Opened) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of the names are fields of a data set, and which are columns."""
    fields = {field.name for field in opened.fields[1:]}
    return tuple(n for n in names if n in fields), tuple(n for n in names if n not in fields)


class Samples:
    """The samples of a data set, as its sources deliver them.

    Args:
        sources: Sources of the samples.
        opened: The opened data set.
        pipeline: The pipeline that they go through.
        seed: Seed of all randomness.
        brought: Names of the further columns and fields to fetch.
        url: Name of the sources for messages.
        deadline_s: Seconds without any answer before an error is raised.

    Attributes:
        assignment: Which cut each sample gets; may be replaced at any time.
        agreed_cut: How many ops give the same bits near storage as here.
    """

    def __init__(
        self,
        sources: Sources,
        opened: Opened,
        pipeline: Pipeline,
        seed: int,
        brought: tuple[str, ...],
        url: str,
        deadline_s: float,
    ) -> None:
        self.sources = sources
        self.opened = opened
        self.pipeline = pipeline
        self.seed = seed
        self.fields, self.columns = divided(brought, opened)
        self.url = url
        self.deadline_s = deadline_s
        self.assignment = Assignment()
        self.agreed_cut = 0
        # All ops that can run elsewhere, since a codec may look ahead at those after its cut.
        reach = pipeline.reach
        self._spec: dict[str, Any] = pipeline.prefix(reach).to_spec() if reach else {"ops": []}

    def __len__(self) -> int:
        return self.opened.samples

    def reassign(self, assignment: Assignment) -> None:
        """Use other cuts from now on; the tensors stay the same."""
        self.assignment = within(assignment, self.agreed_cut)

    def request(self, epoch: int, samples: Sequence[int], keys: Sequence[int] = ()) -> Request:
        """Return the request for some samples of an epoch, each with its cut.

        Args:
            epoch: Number of the epoch.
            samples: Indexes of the samples.
            keys: The numbers by which random ops identify the samples, if not by their indexes.
        """
        cuts, firsts = self.assignment.of(samples), self.assignment.firsts_of(samples)
        relayed = any(first is not None for first in firsts) and bool(self.sources.relays)
        return Request(
            dataset=self.opened.name,
            dataset_fingerprint=self.opened.fingerprint,
            pipeline=self._spec,
            seed=self.seed,
            epoch=epoch,
            samples=tuple(samples),
            cuts=cuts,
            versions=versions_for(cuts, self.opened),
            columns=self.columns,
            columns_digest=self.opened.columns_digest if set(self.columns) - {"id"} else "",
            fields=self.fields,
            keys=() if tuple(keys) == tuple(samples) else tuple(keys),
            firsts=tuple(first or cut for first, cut in zip(firsts, cuts, strict=True)) if relayed else (),
        )

    def are_relayed(self, row: Row) -> NDArray[np.bool_] | None:
        """Return which samples go through relays; None if there are no relays."""
        return self.assignment.are_relayed(np.asarray(row, np.int64)) if self.sources.relays else None

    def errand(
        self, epoch: int, row: Row, stats: Stats, watcher: Watcher | None = None, keys: Row | None = None
    ) -> Errand:
        """Return what a driver needs to fetch the samples of a row; the driver identifies samples by position."""
        return _Samples(self, epoch, row, stats, watcher, keys)

    def raise_fatal(self, error: Error) -> None:
        """Raise the error with which a machine gave up."""
        raise explain(error, self.url)

    def fetch(
        self,
        epoch: int,
        samples: list[int],
        stats: Stats,
        hedge: bool | float = False,
        watcher: Watcher | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (position, reply) for all samples as they arrive, retrying failures until the deadline."""
        config = self.sources.config(
            request_samples=min(len(samples), self.opened.max_samples) or 1, request_bytes=1 << 62, hedge=hedge
        )
        machine = self.sources.machine(samples, len(samples) or 1, config, 0, is_relayed=self.are_relayed(samples))
        driver = Driver(machine, self.errand(epoch, samples, stats, watcher), self.raise_fatal)
        got = 0
        # The holders of different parts are asked at the same time.
        in_threads = hedge or (self.sources.has_parts and len(samples) > 1)
        replies = _in_threads(driver, len(samples)) if in_threads else driver.inline(lambda: got == len(samples))
        for item in replies:
            got += 1
            yield item
        self.sources.keep(machine)

    # --- a look at single samples -------------------------------------------------------------------------------------

    def name_of(self, sample: int) -> str | None:
        """Return a sample's id, if a source provides it soon."""
        reply = self._glance(sample)
        name = None if reply is None else reply.columns.get("id")
        return None if name is None else str(name)

    def first_file(self) -> bytes | None:
        """Return the bytes of the first sample, if they are available now."""
        fields = self.fields if self.pipeline.takes_bundle else ()
        reply = self._glance(0, fields=fields) if len(self) else None
        return None if reply is None or reply.error is not None or reply.cut != RAW else bytes(reply.payload)

    def first_sample(self) -> Reply | None:
        """Return the raw first sample with its fields and columns, if it is available now."""
        reply = self._glance(0, self.columns, self.fields) if len(self) else None
        return None if reply is None or reply.error is not None or reply.cut != RAW else reply

    def _glance(self, sample: int, columns: tuple[str, ...] = ("id",), fields: tuple[str, ...] = ()) -> Reply | None:
        """Return a raw sample, if a source provides it soon; nothing is counted or retried."""
        request = replace(self.request(0, [sample]), cuts=(RAW,), firsts=(), columns=columns, fields=fields)
        for number in self.sources.holders_of(sample):
            try:
                (reply,) = self.sources[number].fetch(request, min(_GLANCE_S, self.deadline_s))
            except (Error, ValueError):
                continue
            return reply
        return None


def named(error: OpError, sample: int, name: str | None) -> OpError:
    """Return a sample's error with the name of its file, which users need, if it is known."""
    is_named = name is None or name in error.problem
    if is_named and error.sample in (None, sample):
        return error
    problem = error.problem if is_named else f"{name}: {error.problem}"
    told = OpError(problem, remedy=error.remedy, op=error.op, position=error.position, sample=sample)
    told.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


class _Samples(Errand):
    def __init__(
        self, samples: Samples, epoch: int, row: Row, stats: Stats, watcher: Watcher | None, keys: Row | None
    ) -> None:
        self._samples = samples
        self._keys = keys
        self._epoch = epoch
        self._row = row
        self._stats = stats
        self._watcher = watcher
        self._version = 0  # the machine may have been made before the latest change: report it again
        self._sent: dict[int, Request] = {}
        self._fetches: dict[int, Fetch] = {}
        self._brought: dict[int, tuple[int, int]] = {}  # samples and bytes of each request
        self._assignment = samples.assignment

    def look(self, machine: Machine) -> None:
        if machine.has_ways and self._samples.assignment is not self._assignment:
            self._assignment = self._samples.assignment
            machine.reroute(self._assignment.are_relayed(np.asarray(self._row, np.int64)))

    def _watching(self, ask: Ask) -> Watcher | None:
        """Return the watcher of a request; None for the fallback, which has neither link nor node."""
        return None if self._samples.sources.is_fallback(ask.source) else self._watcher

    def send(self, ask: Ask) -> Fetch:
        samples = self._samples
        keys = [] if self._keys is None else [int(self._keys[position]) for position in ask.positions]
        request = samples.request(self._epoch, [int(self._row[position]) for position in ask.positions], keys)
        self._sent[ask.request] = request
        if (watcher := self._watching(ask)) is not None:
            watcher.began(ask.request, ask.source)
        if ask.is_second:
            self._stats.add(hedges=1)
        fetch = self._fetches[ask.request] = samples.sources[ask.source].fetch(request, samples.deadline_s)
        return fetch

    def waited(self, seconds: float, cpu_s: float) -> None:
        self._stats.add(fetch_s=seconds, fetch_cpu_s=cpu_s)

    def received(self, ask: Ask, reply: Reply, fetch: Fetch) -> None:
        request = self._sent[ask.request]
        sources = self._samples.sources
        # A node that replaces a relay is asked only for its own part of the work.
        wanted = request.firsts if request.firsts and reply.first is None else request.cuts
        asked = wanted[reply.position]
        sources.absences.answered(ask.source)
        source = sources[ask.source]
        is_local = not source.is_remote and not self._samples.opened.store.startswith("bucket")
        self._stats.received(reply, asked, sources.is_fallback(ask.source), source.address, is_local=is_local)
        if (watcher := self._watching(ask)) is not None:
            watcher.received(ask.request, request.samples[reply.position], reply, asked, fetch)
            samples, size_bytes = self._brought.get(ask.request, (0, 0))
            self._brought[ask.request] = samples + 1, size_bytes + len(reply.payload)

    def spent(self, ask: Ask, cpu_s: float) -> None:
        samples, size_bytes = self._brought.pop(ask.request, (0, 0))
        if samples and (watcher := self._watching(ask)) is not None:
            watcher.spent(samples, size_bytes, cpu_s)

    def failed(self, ask: Ask, error: Error, since_s: float) -> None:
        self._samples.sources.absences.failed(ask.source, error, since_s)
        self._samples.sources.failed(ask.source)

    def moved(self) -> Parts | None:
        sources = self._samples.sources
        self._version, parts = sources.follow(self._row, self._version)
        if parts is None or not sources.relays:
            return parts
        self._assignment = self._samples.assignment
        return sources.by_way(parts, self._assignment.are_relayed(np.asarray(self._row, np.int64)))

    def ended(self, ask: Ask, failed: bool) -> None:
        self._sent.pop(ask.request, None)
        if (fetch := self._fetches.pop(ask.request, None)) is not None:
            clock = fetch.clock
            self._stats.add(
                reads=clock.reads, read_bytes=clock.read_bytes, read_s=clock.read_s, reading_s=clock.reading_s
            )
        if (watcher := self._watching(ask)) is not None:
            watcher.ended(ask.request)
        if failed:
            self._stats.add(retries=1)


def _in_threads(driver: Driver, count: int) -> Iterator[tuple[int, Reply]]:
    """Yield replies fetched by threads, so that another source can be asked while one thread waits."""
    arrived: queue.SimpleQueue[tuple[int, Reply] | BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        driver.fetch(crew.is_done, lambda *item: arrived.put(item), crew.staff)
        arrived.put(None)  # the waiting thread checks whether the machine has given up

    crew = Crew("sophon-fetch", work, lambda: driver.machine.calls, arrived.put)
    try:
        with driver.lock:
            crew.staff()
        got = 0
        while got < count:
            item = arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                driver.raise_if_over()
                continue
            got += 1
            yield item
    finally:
        crew.stop()
        driver.stop()
        crew.join(time.monotonic() + _LEAVE_S)
