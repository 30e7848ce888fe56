"""Sources behind one address: nodes found by discovery, which may come, go and move at any time.

The data set itself is fixed when it is opened: its samples, their order and their indexes. The nodes that hold it may
change. After a failure, and every few seconds while it lasts, discovery runs again. A new node is asked what it holds,
and from then on serves those of its samples that belong to the data set. A node that is no longer listed is asked only
for samples that no other node holds, and a node that was restarted with other files only for what it holds now. The
machine continues with the new division (`Machine.divide`): no request or reply is lost.

Relays come and go in the same way. They hold nothing themselves, so a relay never takes the place of the last holder of
a sample, and one that is no longer listed is forgotten immediately.

Machines and counts identify nodes by number. So there are more *slots* than nodes: a new node takes a free slot, or the
slot of a node that is gone.

Concurrency: one thread at a time runs discovery; it changes the slots first, and then the division, in one step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from os import PathLike
from typing import Any, NoReturn

import numpy as np

from sophon.errors import AccessError, ConfigError, Error, RetryableError, UnavailableError
from sophon.link.deadline import until
from sophon.link.discovery import REFRESH_S, Discovery, Found, FoundNode
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import Request
from sophon.loader.machine.parts import Parts
from sophon.loader.sources.away import LOG
from sophon.loader.sources.census import Census
from sophon.loader.sources.source import Source
from sophon.loader.sources.sources import Row, Sources
from sophon.loader.sources.union import Holding, Told, whole_of
from sophon.pipeline import Pipeline
from sophon.process.renewal import renew_after_fork

_PAUSE_S = 0.1  # between two discoveries while a data set is opened
_AGAIN_S = 0.5  # between two discoveries after failures
_SPARE = 16  # free slots for nodes that come later, or as many as there are nodes if that is more
_NOWHERE = ""  # the address of a slot without a node


class Vacant(Transport):
    """A slot without a node."""

    address = _NOWHERE
    is_remote = True

    def open(self, pipeline: Pipeline) -> Opened:  # noqa: ARG002 - no node is there
        """Raise."""
        _nobody()

    def fetch(self, request: Request, timeout_s: float) -> Fetch:  # noqa: ARG002 - no node is there
        """Raise."""
        _nobody()

    def close(self) -> None:
        """Do nothing."""


def _nobody() -> NoReturn:
    raise RetryableError("the node is gone")


class FoundSources(Sources):
    """Nodes found by discovery.

    Args:
        discovery: Finds the nodes.
        connect: Returns the source for the address of a node.
        fallback: Path of the same files.
        pipeline: The pipeline to divide.
        deadline_s: How long to wait without any reply before an error is raised.
    """

    def __init__(
        self,
        discovery: Discovery,
        connect: Callable[[str], Transport],
        fallback: str | PathLike[str] | None,
        pipeline: Pipeline,
        deadline_s: float,
    ) -> None:
        self._discovery, self._connect = discovery, connect
        end_s = time.monotonic() + deadline_s
        found = _first(discovery, deadline_s)
        nodes = [connect(node.address) for node in found.nodes]
        spare = [Vacant() for _ in range(max(_SPARE, len(nodes)))]
        super().__init__([*nodes, *spare], fallback, pipeline, discovery.url, deadline_s, has_parts=True)
        self._end_s = end_s
        for source in self._sources:
            source.may_move = True
        self._found = found
        self._pipeline = pipeline
        self._holders = (tuple(range(len(nodes))),)
        self._opened_as: Opened | None = None
        self._version = 0  # of the division
        self._looks_at_s = time.monotonic() + REFRESH_S
        self._looked_s = 0.0
        self.renew()
        renew_after_fork(self)

    may_gain_relays = True

    def renew(self) -> None:
        """Replace the lock in a forked child; a discovery in progress stays with the parent."""
        self._looking = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_looking"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.renew()
        renew_after_fork(self)

    # --- as for listed nodes ------------------------------------------------------------------------------------------

    @property
    def _used(self) -> list[Source]:
        return [source for source in self._sources if source.address != _NOWHERE]

    @property
    def plain_nodes(self) -> tuple[Transport, ...]:
        """The sources of the current nodes."""
        return tuple(source.inner for source in self._used)

    @plain_nodes.setter
    def plain_nodes(self, nodes: tuple[Transport, ...]) -> None:
        pass  # they are looked up again when needed

    @property
    def known_nodes(self) -> int:
        """Number of nodes now."""
        return len(self._used)

    def holdings(self, opened: Opened) -> list[tuple[Holding, Opened]]:
        """Return the samples of a data set that each node says it holds."""
        held = super().holdings(opened)
        return [one for one, source in zip(held, self._sources, strict=True) if source.address != _NOWHERE]

    def divided(self, samples: int) -> Any:
        """Return the part of each sample, and the numbers of the nodes that hold each part."""
        part_of, holders = super().divided(samples)
        place = {self._sources.index(source): number for number, source in enumerate(self._used)}
        return part_of, tuple(tuple(place[n] for n in numbers if n in place) for numbers in holders)

    def open(self, pipeline: Pipeline) -> Opened:
        """Open the data set at the nodes that were found; see `Sources.open`."""
        opened = super().open(pipeline)
        if self._union is None:
            for source in self._used:  # a node that did not answer holds the same as the others, or nothing
                source.expected = "" if source.opened is not None else opened.fingerprint
        self._opened_as = opened
        if self._found.relays:  # they are asked in the background: opening does not wait for them
            self._looks_at_s = time.monotonic()
        return opened

    def _census(self, pipeline: Pipeline, end_s: float) -> Census:
        known = len(self._found.nodes)
        expected = [node.fingerprint for node in self._found.nodes]
        given = (self._sources[:known], self._fallback, pipeline, self._deadline_s, end_s, expected)
        return Census(*given, keep_ids=True)

    # --- the nodes at present -----------------------------------------------------------------------------------------

    def follow(self, row: Row, version: int) -> tuple[int, Parts | None]:
        """Return which nodes hold a row's samples, if that has changed; run discovery if it is due.

        Args:
            row: Samples in the order they are needed.
            version: The version returned by the previous call.

        Returns:
            The new version and division; None if nothing has changed.
        """
        if time.monotonic() >= self._looks_at_s and self._opened_as is not None:
            self._look_soon()
        return (version, None) if version == self._version else (self._version, self.parts(row))

    def failed(self, number: int) -> None:
        """Run discovery, because a request has failed."""
        if not self.is_fallback(number):
            self._looks_at_s = min(self._looks_at_s, self._looked_s + _AGAIN_S)

    def _look_soon(self) -> None:
        if self._looking.acquire(blocking=False):
            self._looks_at_s = time.monotonic() + REFRESH_S
            threading.Thread(target=self._look, name="sophon-discovery", daemon=True).start()

    def _look(self) -> None:
        try:
            self._change(self._discovery.find())
            if self.report is not None and (told := self.report()) is not None:
                self._discovery.report(*told)
        except (RetryableError, ConfigError, AccessError) as error:
            LOG.info("%s: discovery failed: %s", self.url, error, extra={"event": "discovery"})
        except Error as error:
            LOG.warning("%s: %s", self.url, error, extra={"event": "discovery"})
        finally:
            self._looked_s = time.monotonic()
            self._looking.release()

    def _change(self, found: Found) -> None:
        """Switch to a new division of the samples."""
        everybody = (*found.nodes, *map(FoundNode, found.relays))
        named = {node.address for node in everybody}
        slots = {source.address: number for number, source in enumerate(self._sources)}
        is_new = [node for node in everybody if node.address not in slots]
        stale = [source for source in self._used if source.is_stale]
        here = {source.address for source in self._used if source.opened is not None or source.expected}
        if named == here and not is_new and not stale:
            return
        gone = [self._sources[n] for n in self.relays if self._sources[n].address not in named]
        for source in (*stale, *gone):
            source.leave()
        has_changed = bool(is_new or stale or gone)
        for node in everybody:
            number = slots.get(node.address)
            number = self._seat(node, named) if number is None else number
            if number is not None and self._sources[number].opened is None and not self._sources[number].expected:
                has_changed = self._learn(number, node) or has_changed
        self._divide(named, has_changed=has_changed)

    def _seat(self, node: FoundNode, named: set[str]) -> int | None:
        """Give a node a slot: a free one, or the slot of an unlisted node that is not the only holder of anything."""
        free = [n for n, source in enumerate(self._sources) if source.address == _NOWHERE]
        holding = {number for holders in self._holders for number in holders}
        free += [n for n, source in enumerate(self._sources) if source.address not in named and n not in holding]
        if not free:
            LOG.warning(
                "%s: %s is one node too many for this run", self.url, node.address, extra={"event": "discovery"}
            )
            return None
        self._sources[free[0]].settle(self._connect(node.address))
        self._name(free[0], node.address)
        return free[0]

    def _learn(self, number: int, node: FoundNode) -> bool:
        """Ask a node what it holds; return whether it has answered.

        A node that does not answer or holds something else counts as empty for now.
        """
        source = self._sources[number]
        try:
            opened = source.open(self._pipeline)
            if not self._is_whole(opened):
                source.hold(*self._fitted(source, opened))
        except Error as error:
            source.leave()
            LOG.warning("%s is not asked for samples: %s", node.address, error, extra={"event": "discovery"})
            return False
        does = "passes on" if opened.is_relay else "holds"
        LOG.info("%s %s %s samples", node.address, does, f"{opened.samples:,}", extra={"event": "discovery"})
        return True

    def _is_whole(self, opened: Opened) -> bool:
        """Return whether a relay serves the whole data set, which is not divided."""
        assert self._opened_as is not None
        return opened.is_relay and self._union is None and opened.fingerprint == self._opened_as.fingerprint

    def _fitted(self, source: Source, opened: Opened) -> tuple[Holding, Any]:
        """Return which samples of the data set a node holds and, if nodes number their labels, all labels."""
        for other in self._used:
            known, held = other.opened, other.holding
            is_same = known is not None and known.fingerprint == opened.fingerprint
            if other is not source and held is not None and is_same:
                return held, other.labels
        if self._union is None or self._union.ids is None:
            self._list()
        assert self._union is not None
        listing = source.listing(opened)
        if listing is None:
            raise ConfigError(f"{source.address} does not report which samples it holds")
        return self._union.fitted(Told(source.address, listing, opened.classes)), self._union.labels

    def _list(self) -> None:
        """Ask for the names of the samples, which were not needed while all nodes held the same ones."""
        assert self._opened_as is not None
        for source in self._used:
            if source.opened is not None and source.opened.fingerprint == self._opened_as.fingerprint:
                listing = source.listing(source.opened)
                if listing is not None:
                    self._union = whole_of(Told(source.address, listing, source.opened.classes))
                    everything = self._union.holdings[0]
                    for other in self._used:
                        if other.holding is None:
                            other.hold(everything, None)
                    return
        raise RetryableError(f"no node reports the names of the samples of {self.url}")

    def _divide(self, named: set[str], *, has_changed: bool = True) -> None:
        """Divide the samples among the nodes; unlisted nodes get only what no other node holds."""
        before, divided = self._holders, self._union
        if self._union is None:
            well = [n for n, source in enumerate(self._sources) if source.address in named and self._holds_all(source)]
            self._holders = (self._answering({*well, *self._holders[0]}, well),)
        else:
            its = [source.holding for source in self._sources]
            both = self._union.divided_among(its)
            listed = {n for n, source in enumerate(self._sources) if source.address in named}
            holders = [self._answering(numbers, listed) for numbers in both.holders]
            were = self._union.holders
            if not all(holders):  # a node that held it has left: keep asking that node until the deadline
                holders = [now or self._held_before(both.part_of, part, were) for part, now in enumerate(holders)]
            self._union = both
            self._holders = tuple(holders)
        is_same = divided is self._union or (
            divided is not None and self._union is not None and np.array_equal(divided.part_of, self._union.part_of)
        )
        if is_same and before == self._holders and not has_changed:
            return
        self._version += 1
        held = sorted({self._sources[n].address for numbers in self._holders for n in numbers})
        LOG.info("%s: samples are held by %s", self.url, ", ".join(held), extra={"event": "discovery"})

    def _answering(self, able: Iterable[int], listed: Collection[int]) -> tuple[int, ...]:
        """Return the sources to ask among those able to answer: listed ones, or unlisted nodes if no other is left."""
        relays = self.relays
        nodes = [number for number in able if number not in relays]
        passing = [number for number in able if number in relays and number in listed]
        chosen = [number for number in nodes if number in listed] or nodes
        return tuple(sorted([*chosen, *passing]))

    def _held_before(self, part_of: Any, part: int, before: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Return the last holders of a part that no node holds now, to be asked and named in the error."""
        assert self._union is not None
        was = int(self._union.part_of[(part_of == part).argmax()])
        return before[was]

    def _holds_all(self, source: Source) -> bool:
        assert self._opened_as is not None
        its = source.expected if source.opened is None else source.opened.fingerprint
        return its == self._opened_as.fingerprint

    def _name(self, number: int, address: str) -> None:
        names = list(self._names)
        names[number] = address
        self._names = tuple(names)
        self.absences.replaced(number, address)

    def __iter__(self) -> Iterator[Transport]:
        return iter(self._all)


def _first(discovery: Discovery, deadline_s: float) -> Found:
    """Run discovery until every part that is known to exist has a holder.

    Raises:
        UnavailableError: By the deadline no node has answered, or a part has no holder.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            with until(end_s):
                found = discovery.find()
            if found.nodes and not found.missing:
                return found
            missing = ", ".join(found.missing[:8])
            problem = f"no node holds part {missing}" if missing else "no node was found"
        except RetryableError as error:
            problem = str(error).removeprefix(f"{discovery.url}: ")
        if time.monotonic() >= end_s:
            raise UnavailableError(
                f"{discovery.url}: {problem} within {deadline_s:g} s. Is `sophon serve` running for every part? "
                "`sophon "
                "nodes` lists the nodes; raise Faults(deadline_s=…) to wait longer."
            )
        time.sleep(_PAUSE_S)
