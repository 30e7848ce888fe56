"""Samples straight from a store in this process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from sophon.codec.cut import Cut, make_payload
from sophon.codec.window.indexes import INDEXES
from sophon.codec.window.sidecar import find_sidecar
from sophon.errors import (
    ArtifactError,
    ConfigError,
    Error,
    OpError,
)
from sophon.link.listing import Listing
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import Reply, Request
from sophon.pipeline import Pipeline
from sophon.store import Store, open_store


def open_path(path: str) -> LocalTransport:
    """Return the transport for a path, with the window indexes that `sophon index` wrote for it."""
    store = open_store(path)
    _attach_indexes(store)
    return LocalTransport(store, path)


def _attach_indexes(store: Store) -> None:
    try:
        sidecar = find_sidecar(store.path)
    except ArtifactError as error:
        warnings.warn(f"window indexes are left out: {error}", stacklevel=5)
        return
    if sidecar is not None:
        INDEXES.attach(sidecar)


class LocalTransport(Transport):
    """A store in this process: no server, no copies, the same bits.

    Args:
        store: Where the samples lie.
        address: What to call it in messages.
    """

    def __init__(self, store: Store, address: str) -> None:
        self.store = store
        self.address = address

    def open(self, pipeline: Pipeline) -> Opened:
        """Describe the store."""
        manifest = self.store.manifest
        return Opened(
            name=self.store.name,
            samples=len(self.store),
            fingerprint=manifest.fingerprint,
            classes=tuple(manifest.classes),
            has_labels=manifest.labels is not None,
            columns=("id", *manifest.columns.column_names),
            max_cut=pipeline.max_cut,
            digests=("here",) * pipeline.max_cut,
            store=manifest.kind,
        )

    def fetch(self, request: Request, timeout_s: float) -> Fetch:  # noqa: ARG002 - reading files is not timed
        """Read samples, and make the cut that was asked for."""
        return _LocalFetch(self.store, request)

    def listing(self, opened: Opened) -> Listing:  # noqa: ARG002 - others need it
        """Return the samples of the store."""
        return Listing.of(self.store.manifest)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class _LocalFetch(Fetch):
    def __init__(self, store: Store, request: Request) -> None:
        self._store = store
        self._request = request

    def __iter__(self) -> Iterator[Reply]:
        request, manifest = self._request, self._store.manifest
        pipeline = None
        for position, (sample, cut) in enumerate(zip(request.samples, request.cuts, strict=True)):
            reply = Reply(position)
            try:
                data = self._store.read(sample)
                reply.payload = data
                if cut.k or cut.codec != "raw":
                    pipeline = pipeline or Pipeline.from_spec(request.pipeline)
                    reply.payload = make_payload(pipeline, data, request.key(position), cut)
                    reply.cut = cut
            except (OpError, ConfigError):
                reply.cut = Cut(0)  # the raw bytes are there already; the trainer meets the same trouble itself
            except Error as error:
                reply.error = error
            reply.label = manifest.label(sample)
            reply.columns = manifest.values(sample, request.columns)
            yield reply
