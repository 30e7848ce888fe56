"""One of several sources that hold the same data set, or parts of one.

Invariants 1 and 3 make one holder of a sample as good as another: any of them may answer any request, with any cut, and
the tensors are the same. What remains is to make sure that a node really holds the same data set, or is asked for a
sample by its own index; and that it is asked only for cuts that give the same bits there as here.

Concurrency: a source may be used by several threads; two that open it at once get the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut
from sophon.codec.route import can_follow
from sophon.errors import ConfigError, Error, RetryableError, StoreError, remote_traceback, with_remote_traceback
from sophon.link.listing import Listing
from sophon.link.transport import Behind, Fetch, Opened, Transport
from sophon.link.wire import Reply, Request, StreamClock
from sophon.loader.sources.assignment import count_agreed, versions_for
from sophon.loader.sources.union import Holding
from sophon.pipeline import Pipeline
from sophon.pipeline.probe import digest_of


class Source(Transport):
    """A storage node among several.

    Args:
        inner: Transport to the node.
        pipeline: The pipeline to divide.
    """

    def __init__(self, inner: Transport, pipeline: Pipeline) -> None:
        self.address = inner.address
        self.is_remote = inner.is_remote
        self._inner = inner
        self._pipeline = pipeline
        self._opened: Opened | None = None
        self._most: int | None = None  # ops that give the same bits on the node; None until a cut is requested
        self._most_behind: int | None = None  # the same for the node behind a relay
        self.may_hold_a_part = False  # of the data set opened at the fallback while no node answered
        self.expected = ""  # fingerprint of its data, if discovery reported one
        self.may_move = False  # whether it may hold other data after a restart
        self.is_stale = False  # whether it holds other data now
        self._holding: Holding | None = None  # None if the node holds everything, in the same order
        self._labels: NDArray[np.int64] | None = None

    @property
    def inner(self) -> Transport:
        """The transport to the node."""
        return self._inner

    @property
    def opened(self) -> Opened | None:
        """The node's description of its data set; None if it has not been asked yet."""
        return self._opened

    def open(self, pipeline: Pipeline) -> Opened:
        """Ask the node what it holds."""
        self._opened = self._inner.open(pipeline)
        return self._opened

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Ask the node for samples, once it is known to hold the same data set."""
        opened = self._opened or self._checked(self.expected or request.dataset_fingerprint)
        fitted = replace(request, dataset=opened.name)
        fitted = self._through(fitted, opened) if opened.behind is not None else self._straight(fitted, opened)
        if self._holding is not None:
            own, its = self._own_of(self._holding, request.samples), opened.fingerprint
            fitted = replace(fitted, dataset_fingerprint=its, samples=own, keys=request.keys or request.samples)
            fitted = replace(fitted, columns_digest=opened.columns_digest if request.columns_digest else "")
        return _PiecesFetch(self, self._inner, fitted, opened.max_samples, timeout_s)

    def _own_of(self, holding: Holding, samples: tuple[int, ...]) -> tuple[int, ...]:
        try:
            return holding.own_of(samples)
        except ConfigError as error:
            if not self.may_move:
                raise
            # It came back without them, and the node that has them now has not been found yet.
            raise RetryableError(
                f"{self.address} no longer holds the same samples; looking for other holders"
            ) from error

    def moved(self, error: Error, asked: str) -> Error:
        """Return the error of a request; a retryable one if the node was restarted with other files.

        Args:
            error: The node's error.
            asked: Fingerprint that the request was for; another thread may have found the node's new data in the
                meantime.
        """
        if not self.may_move or not isinstance(error, ConfigError):
            return error
        try:
            found = self._inner.open(self._pipeline).fingerprint
        except RetryableError as problem:
            return problem
        except Error:
            return error
        if found == asked:
            return error
        self.is_stale = self._opened is not None and found != self._opened.fingerprint
        return RetryableError(f"{self.address} no longer holds the same samples ({found}); looking for other holders")

    def settle(self, inner: Transport) -> None:
        """Replace the node with another one, about which nothing is known yet."""
        self._inner.close()
        self._inner, self.address, self.is_remote = inner, inner.address, inner.is_remote
        self.leave()

    def leave(self) -> None:
        """Forget what the node holds, and whether it gives the same bits."""
        self._opened, self._most, self._holding, self._labels = None, None, None, None
        self.expected, self.is_stale = "", False

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Label of every sample of the whole data set, if the node numbers its classes itself."""
        return self._labels

    def _straight(self, request: Request, opened: Opened) -> Request:
        """Return a request in the form that a node expects; for relayed samples, only the node's part of the work."""
        cuts = request.firsts or request.cuts
        if any(cut.k > 0 for cut in cuts):
            most = self._agreed(opened)
            cuts = tuple(cut if cut.k <= most else RAW for cut in cuts)
        return replace(request, cuts=cuts, firsts=(), versions=versions_for(cuts, opened))

    def _through(self, request: Request, opened: Opened) -> Request:
        """Return a request in the form that a relay expects; for direct samples, its node does all the work."""
        assert opened.behind is not None
        firsts, cuts = request.firsts or request.cuts, request.cuts
        if any(cut.k > 0 for cut in cuts):
            here, there = self._agreed(opened), self._agreed_behind(opened.behind)
            ways = [self._way(first, cut, there, here) for first, cut in zip(firsts, cuts, strict=True)]
            firsts, cuts = tuple(first for first, _ in ways), tuple(cut for _, cut in ways)
        behind = digest_of(opened.behind.versions) if any(first.k > 0 for first in firsts) else ""
        versions = versions_for(cuts, opened)
        return replace(request, cuts=cuts, firsts=firsts, versions=versions, node_versions=behind)

    def _way(self, first: Cut, cut: Cut, there: int, here: int) -> tuple[Cut, Cut]:
        """Return the part of a route that gives the same bits here as on a node and on the relay in front of it."""
        if first.k > there:
            first = RAW
        if cut.k > here and cut != first:
            cut = first
        return first if can_follow(self._pipeline, first, cut) else RAW, cut

    def _agreed_behind(self, behind: Behind) -> int:
        if self._most_behind is None:
            told = Opened("", 0, "", max_cut=behind.max_cut, digests=behind.digests, versions=behind.versions)
            self._most_behind = count_agreed(self._pipeline, told)
        return self._most_behind

    @property
    def holding(self) -> Holding | None:
        """Which samples the node holds; None if it holds all of them, in order."""
        return self._holding

    def hold(self, holding: Holding, labels: NDArray[np.int64] | None, opened: Opened | None = None) -> None:
        """Record which samples the node holds.

        Args:
            holding: Indexes of the samples in the whole data set and at the node.
            labels: Label of every sample of the whole data set, since a node numbers only its own classes. None to use
                the node's labels.
            opened: The node's description, if another part of the program has already asked for it.
        """
        self._holding, self._labels = holding, labels
        self._opened = self._opened or opened

    def listing(self, opened: Opened) -> Listing | None:
        """Ask the node which samples it holds."""
        return self._inner.listing(opened)

    def file_sizes(self, samples: int, fields: tuple[str, ...] = ()) -> NDArray[np.int64] | None:
        """Return the sizes from the node, once it is known to hold the same data set."""
        return None if self._opened is None else self._inner.file_sizes(samples, fields)

    def stamp(self, sample: int) -> str:
        """Return the stamp of a sample's file."""
        return self._inner.stamp(sample if self._holding is None else self._holding.own_of((sample,))[0])

    def _checked(self, fingerprint: str) -> Opened:
        opened = self._inner.open(self._pipeline)
        if self.may_move and opened.fingerprint != fingerprint:
            self.is_stale = True
            raise RetryableError(f"{self.address} no longer holds the same samples; looking for other holders")
        if self.may_hold_a_part and opened.fingerprint != fingerprint:
            raise RetryableError(f"{self.address} holds a part, which was not known when the data set was opened")
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


class _PiecesFetch(Fetch):
    """A request split into pieces that the node accepts; errors name the node."""

    def __init__(self, source: Source, inner: Transport, request: Request, max_samples: int, timeout_s: float) -> None:
        self._source = source
        self._labels = source.labels
        self._inner = inner
        self._request = request
        self._max_samples = max_samples
        self._timeout_s = timeout_s
        self._piece: Fetch | None = None
        self._is_cancelled = False
        self._before = StreamClock()

    def __iter__(self) -> Iterator[Reply]:
        request, size = self._request, self._max_samples
        for start in range(0, len(request.samples), size):
            piece = slice(start, start + size)
            keys = request.keys[piece]
            asked = replace(request, samples=request.samples[piece], cuts=request.cuts[piece], keys=keys)
            asked = replace(asked, firsts=request.firsts[piece]) if request.firsts else asked
            fetch = self._piece = self._inner.fetch(asked, self._timeout_s)
            if self._is_cancelled:  # checked after `_piece` is set, which `cancel` uses
                return
            before = self._before
            try:
                for reply in fetch:
                    if self._labels is not None:
                        # A sample that is repeated in an epoch has a key beyond all indexes.
                        reply.label = int(self._labels[asked.keys[reply.position] % len(self._labels)])
                    reply.position += start
                    self.clock = before + fetch.clock if start else fetch.clock
                    yield reply
            except Error as error:
                raise explained(self._source.moved(error, request.dataset_fingerprint), self._inner.address) from error
            self.clock = self._before = before + fetch.clock

    @property
    def heard_s(self) -> float:
        """When the node last gave a sign of life."""
        return 0.0 if self._piece is None else self._piece.heard_s

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._piece is not None:
            self._piece.cancel()


class Fallback(Source):
    """The fallback path, from which raw files are read; all ops run here."""

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Read samples."""
        raw = replace(request, cuts=(RAW,) * len(request.cuts), firsts=())
        return _FallbackFetch(super().fetch(raw, timeout_s), Path(self.address))


class _FallbackFetch(Fetch):
    def __init__(self, inner: Fetch, path: Path) -> None:
        self._inner = inner
        self._path = path

    def __iter__(self) -> Iterator[Reply]:
        for reply in self._inner:
            self.clock = self._inner.clock
            if isinstance(reply.error, StoreError) and not self._is_there():
                # The whole fallback is gone, like the nodes: no reason yet to call the sample bad.
                raise RetryableError(f"the fallback {self._path} no longer exists")
            yield reply

    def _is_there(self) -> bool:
        try:
            # An unmounted disk leaves an empty folder. A pattern of shards is searched for in its folder.
            folder = self._path if self._path.is_dir() else self._path.parent
            return self._path.is_file() or any(folder.iterdir())
        except OSError:
            return False

    def cancel(self) -> None:
        self._inner.cancel()


def check_same(opened: Opened, fingerprint: str, address: str) -> None:
    """Raise unless a source holds the data set that the run started with."""
    if opened.fingerprint != fingerprint:
        raise ConfigError(
            f"{address} holds a different data set ({opened.fingerprint}) from the others ({fingerprint}): different "
            "files, sizes or labels; copy the same files there, or leave it out. If it holds a part of the data set, "
            "and did not answer when the data set was opened, start the run again"
        )


def explained(error: Error, address: str, remedy: str = "") -> Error:
    """Return an error that names the address it came from and says what to do."""
    if address in str(error) and not remedy:
        return error
    text = str(error) if address in str(error) else f"{address}: {error}"
    told = type(error)(f"{text}. {remedy}" if remedy else text)
    there = remote_traceback(error)
    return told if there is None else with_remote_traceback(told, there)
