"""Samples read directly from a store in this process.

A store whose reads are quick, such as files in the page cache, is read in the iterating thread: passing the bytes on
from another thread would cost more than reading them. If reads take longer, as many run concurrently as pay off
(`store.reading`). So the number of reads is independent of the number of workers.

Concurrency: a fetch belongs to the iterating thread; threads of the reading stage put their results into its queue.
They end with the last running fetch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from sophon.bundle import divided, pack
from sophon.codec.cut import RAW, WINDOW, make_payload
from sophon.codec.window.bands import bands_of
from sophon.codec.window.indexes import INDEXES
from sophon.codec.window.refusal import WholeNeeded
from sophon.codec.window.sidecar import find_sidecar
from sophon.codec.window.windowed import Windowed
from sophon.errors import (
    ArtifactError,
    ConfigError,
    Error,
    OpError,
    StoreError,
)
from sophon.link.listing import Listing
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import WHOLE, Reply, Request, StreamClock
from sophon.pipeline import Pipeline
from sophon.store import Store, open_store
from sophon.store.address import Address
from sophon.store.reading import Reading

_LOOK_S = 1.0  # between checks whether more may be read


def open_path(path: str) -> LocalTransport:
    """Return the transport for a path, with the window indexes written by `sophon index`."""
    return _indexed(open_store(path), path)


def _indexed(store: Store, address: str) -> LocalTransport:
    """Return the transport for a store; used also in a spawned process, which has no indexes attached yet."""
    _attach_indexes(store)
    transport = LocalTransport(store, address)
    transport.is_indexed = True
    return transport


def _attach_indexes(store: Store) -> None:
    try:
        if isinstance(store.path, Address):
            # Only for object stores: it takes a moment to load.
            from sophon.codec.window.object_index import open_index

            open_index(store)
        sidecar = find_sidecar(store.path)
    except ArtifactError as error:
        warnings.warn(f"window indexes are not used: {error}", stacklevel=5)
        return
    if sidecar is not None:
        INDEXES.attach(sidecar)


class LocalTransport(Transport):
    """A store in this process: no server, no copies, the same bits.

    Args:
        store: The store of the samples.
        address: Name of the store for messages.
    """

    def __init__(self, store: Store, address: str) -> None:
        self.store = store
        self.address = address
        self.reading = Reading()
        self.is_indexed = False
        self._narrow: dict[tuple[str, ...], Store] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (_indexed if self.is_indexed else type(self), (self.store, self.address))

    def open(self, pipeline: Pipeline) -> Opened:
        """Describe the store."""
        manifest, bands = self.store.manifest, bands_of(self.store)
        return Opened(
            name=self.store.name,
            samples=len(self.store),
            fingerprint=manifest.fingerprint,
            classes=tuple(manifest.classes),
            has_labels=manifest.labels is not None,
            columns=("id", *manifest.columns.column_names),
            max_cut=pipeline.portable,
            digests=("here",) * pipeline.portable,
            store=manifest.kind,
            fields=manifest.fields,
            has_bands=bands is not None and bands.suits(pipeline),
            columns_digest=manifest.columns_digest,
            state=manifest.state,
        )

    def fetch(self, request: Request, timeout_s: float) -> Fetch:  # noqa: ARG002 - reading files is not timed
        """Read samples, and make the cut that was asked for."""
        if request.columns_digest not in ("", self.store.manifest.columns_digest):
            raise ConfigError(
                f"{self.address} has different column values from the node; both must have the same version"
            )
        return _LocalFetch(self._narrowed(request.fields), self.reading, request)

    def _narrowed(self, fields: tuple[str, ...]) -> Store:
        if fields not in self._narrow:  # a loader always asks for the same fields, and occasionally for none
            self._narrow[fields] = self.store.narrowed(fields)
        return self._narrow[fields]

    def listing(self, opened: Opened) -> Listing:  # noqa: ARG002 - other transports need it
        """Return the samples of the store."""
        return Listing.of(self.store.manifest)

    def stamp(self, sample: int) -> str:
        """Return the modification times of a sample's files."""
        try:
            return self.store.stamp(sample)
        except StoreError:
            return ""

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class _LocalFetch(Fetch):
    def __init__(self, store: Store, reading: Reading, request: Request) -> None:
        self._store = store
        self._reading = reading
        self._request = request
        self._reads = reading.queue()
        self._pipeline: Pipeline | None = None
        self._left_out_bytes = 0  # for samples of which only a part was read
        self._read: SimpleQueue[tuple[int, bytes | BaseException] | None] = SimpleQueue()
        self.clock = StreamClock()

    def __iter__(self) -> Iterator[Reply]:
        request, has_bands = self._request, bands_of(self._store) is not None
        try:
            for position, data in self._files():
                reply = Reply(position)
                cut = request.cuts[position]
                try:
                    if isinstance(data, BaseException):
                        raise data
                    reply.payload = data
                    if isinstance(data, Windowed):
                        reply.cut = cut
                        self.clock.read_bytes -= data.file_bytes - data.read_bytes
                        self._left_out_bytes += data.file_bytes - data.read_bytes
                    elif cut != RAW and not (cut == WINDOW and has_bands):  # finishing decodes what it needs of a file
                        pipeline = self._pipeline = self._pipeline or Pipeline.from_spec(request.pipeline)
                        # Fields that a pipeline knows are handled by it; others are sent unchanged.
                        first, others = divided(data, 0 if pipeline.fields else len(request.fields))
                        made = make_payload(pipeline, first, request.key(position), cut)
                        reply.payload = pack([made, *others])
                        reply.cut = cut
                except (OpError, ConfigError) as error:
                    reply.reason = WHOLE if isinstance(error, WholeNeeded) else None
                    reply.cut = RAW  # the raw bytes are here already; the trainer will meet the same problem itself
                except Error as error:
                    reply.error = error
                sample, manifest = request.samples[position], self._store.manifest
                reply.label = manifest.label(sample)
                reply.columns = manifest.values(sample, request.columns)
                yield reply
        finally:
            self._reads.close()

    def _files(self) -> Iterator[tuple[int, bytes | BaseException]]:
        """Yield the bytes of each sample, or the error that occurred, with its position."""
        count, reading = len(self._request.samples), self._reading
        asked = came = 0
        while came < count and not self._reads.is_closed:
            is_quick = reading.is_quick
            if is_quick and asked == came:
                came = asked = asked + 1
                yield self._file_here(asked - 1)
                continue
            while not is_quick and asked < count and asked - came <= reading.at_once:
                asked += 1
                self._ask_for(asked - 1)
            start_s = time.monotonic()
            found = self._next()
            self._count(self._reads.read_s, time.monotonic() - start_s)
            if found is None:
                return
            came += 1
            yield found

    def _next(self) -> tuple[int, bytes | BaseException] | None:
        """Return the next result; None if the fetch was cancelled."""
        while True:
            try:
                return self._read.get(timeout=_LOOK_S)
            except Empty:
                self._reading.staff()  # a read may hang, so others may start instead

    def _file_here(self, position: int) -> tuple[int, bytes | BaseException]:
        """Read a sample in this thread."""
        start_s = time.monotonic()
        found = self._file(position)
        seconds = time.monotonic() - start_s
        size_bytes = self._size_bytes(position)
        self._reading.learn(seconds, 1, size_bytes)
        reads = self._reads
        reads.reads += 1
        reads.read_s += seconds
        reads.read_bytes += size_bytes
        self._count(reads.read_s, seconds)
        return found

    def _count(self, read_s: float, waited_s: float) -> None:
        clock, reads = self.clock, self._reads
        clock.reading_s += waited_s
        clock.read_s, clock.reads = read_s, reads.reads
        clock.read_bytes = reads.read_bytes - self._left_out_bytes

    def _ask_for(self, position: int) -> None:
        """Let the reading stage read a sample."""

        def read() -> Callable[[], None]:
            found = self._file(position)
            return lambda: self._read.put(found)

        self._reads.add(read, 1, self._size_bytes(position))

    def _file(self, position: int) -> tuple[int, bytes | BaseException]:
        try:
            return position, self._window(position) or self._store.read(self._request.samples[position])
        except Exception as error:  # noqa: BLE001 - raised again in the thread that iterates
            return position, error

    def _window(self, position: int) -> Windowed | None:
        """Return a window read from an object store with its index, if requested and smaller than the object."""
        bands, request = bands_of(self._store), self._request
        if bands is None or request.fields or request.cuts[position] != WINDOW:
            return None
        self._pipeline = self._pipeline or Pipeline.from_spec(request.pipeline)
        return bands.window(request.samples[position], self._pipeline, request.key(position))

    def _size_bytes(self, position: int) -> int:
        return int(self._store.manifest.sizes[self._request.samples[position]])

    def cancel(self) -> None:
        """Stop, without waiting for a store that hangs."""
        self._reads.close()
        self._read.put(None)
