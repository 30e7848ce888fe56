"""Tar and Parquet shards in object stores: the file-based stores, reading ranges of objects instead of files.

Concurrency: only obstore's connections are kept open.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sophon.errors import ConfigError
from sophon.store.address import Address
from sophon.store.bucket.client import Client, Object, client_of
from sophon.store.bucket.objects import as_bytes, named, sources_of
from sophon.store.fields import named_columns
from sophon.store.manifest import Manifest, decode_name
from sophon.store.parquet import CACHE_BYTES, ParquetStore, Shard, scan_shards
from sophon.store.parquet_rows import ParquetRows, open_parquet
from sophon.store.parquet_schema import Roles
from sophon.store.store import Progress
from sophon.store.tar import TarStore, scan_tars

_SCANS: Final = 8  # shards listed at once
_AHEAD_BYTES: Final = 1 << 20  # per request while a tar is listed: returns many headers
_HEADER_BYTES: Final = 4096
_LARGE: Final = 4  # after this many consecutive members larger than `_AHEAD_BYTES`, only headers are read


class BucketShards:
    """The shards of a manifest in a bucket; the counterpart of `store.shards.ShardFiles` for folders.

    Args:
        path: Path or address that was opened.
        sources: Keys, sizes, times and ETags of the shards when they were listed.
    """

    def __init__(self, path: Address, sources: pa.Table) -> None:
        self._client = client_of(path)
        self.objects = [
            Object(decode_name(row["name"]), row["bytes"], decode_name(row["etag"]), row["mtime_ns"])
            for row in sources.to_pylist()
        ]

    def path(self, shard: int) -> Address:
        """Return the address of a shard."""
        address = self._client.address
        return Address(address.scheme, address.bucket, self.objects[shard].key)

    def changed_ns(self, shard: int) -> int:
        """Return a shard's modification time when it was listed; a shard changed since then cannot be read."""
        return self.objects[shard].changed_ns

    def pread(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes of a shard; fewer than requested at its end."""
        return as_bytes(self._read(shard, offset, size))

    def pread_into(self, shard: int, offset: int, space: memoryview) -> int:
        """Read bytes of a shard into memory, and return the number of bytes read."""
        found = self._read(shard, offset, len(space))
        if len(found) == len(space):
            space.cast("B")[:] = found
        return len(found)

    def _read(self, shard: int, offset: int, size: int) -> memoryview:
        found = self.objects[shard]
        return self._client.get(found.key, offset, min(size, found.size - offset), found.etag)

    def opened(self, shard: int) -> ObjectFile:
        """Return a shard as a file."""
        return ObjectFile(self._client, self.objects[shard])

    def close(self) -> None:
        """Do nothing: nothing is open."""


class BucketTarStore(TarStore):
    """Samples in tar shards that are objects."""

    kind = "bucket-tar"

    def _open_files(self, path: Any, sources: pa.Table) -> Any:
        return BucketShards(path, sources)

    def identity(self, index: int) -> bytes:
        """Return 8 bytes that identify a sample's shard and the sample's position in the shard."""
        shard = self._files.objects[int(self._shards[index])]  # type: ignore[attr-defined]
        offset, size = (int(part[index]) for part in self._places[0])
        return named(shard.etag, shard.size, offset, size)

    def read_part(self, index: int, start: int, length: int) -> memoryview:
        """Return some of the bytes of a sample that is one member.

        Raises:
            StoreError: As for `read`.
        """
        shard = int(self._shards[index])
        try:
            return memoryview(self._files.pread(shard, int(self._places[0][0][index]) + start, length))
        except OSError as error:
            raise self._unreadable(index, shard, error) from error

    @classmethod
    def unchanged(cls, path: Any, manifest: Manifest) -> bool:  # noqa: ARG003
        """Return True: opening lists nothing, and a shard changed since it was listed cannot be read."""
        return True


class BucketParquetStore(ParquetStore):
    """Samples in the rows of Parquet shards that are objects. The footer of a shard is read once."""

    kind = "bucket-parquet"

    def __init__(self, path: Any, name: str, manifest: Manifest, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(path, name, manifest, cache_bytes)
        self._footers: dict[int, pq.FileMetaData] = {}

    def _open_files(self, path: Any, sources: pa.Table) -> Any:
        return BucketShards(path, sources)

    @contextmanager
    def _open(self, shard: int) -> Iterator[tuple[ParquetRows, Roles]]:
        source = self._files.opened(shard)  # type: ignore[attr-defined]
        with open_parquet(source, self._footers.get(shard)) as rows:
            self._footers[shard] = rows.file.metadata
            yield rows, self._roles_in(rows, f"shard {self._files.path(shard)}")

    @classmethod
    def unchanged(cls, path: Any, manifest: Manifest) -> bool:  # noqa: ARG003
        """Return True: opening lists nothing, and a shard changed since it was listed cannot be read."""
        return True


class ObjectFile(io.RawIOBase):
    """An object as a seekable, readable file, for Arrow."""

    def __init__(self, client: Client, found: Object) -> None:
        super().__init__()
        self._client = client
        self._object = found
        self._at = 0
        self._held: list[tuple[int, memoryview]] = []

    def hold(self, parts: Sequence[tuple[int, int]]) -> None:
        """Fetch parts of the object, each with one request, and keep them until this is called again."""
        self._held = []
        self._held = [(start, self._get(start, size)) for start, size in parts]

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        size = self._object.size if size is None or size < 0 else size
        for start, data in self._held:
            if start <= self._at and self._at + size <= start + len(data):
                found = bytes(data[self._at - start : self._at - start + size])
                break
        else:
            found = bytes(self._get(self._at, size))
        self._at += len(found)
        return found

    def _get(self, start: int, size: int) -> memoryview:
        size = max(min(size, self._object.size - start), 0)
        return memoryview(self._client.get(self._object.key, start, size, self._object.etag))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._object.size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the current position."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def size(self) -> int:
        """Return the size in bytes."""
        return self._object.size


class _Ahead:
    """Reads an object from front to back in pieces, as long as the requested bytes are close together."""

    def __init__(self, client: Client, found: Object) -> None:
        self._client = client
        self._object = found
        self._start = 0
        self._held = memoryview(b"")
        self._skips = 0

    def __call__(self, offset: int, size: int) -> bytes:
        end = self._start + len(self._held)
        if not self._start <= offset <= offset + size <= end:
            self._skips = self._skips + 1 if offset > end + _AHEAD_BYTES else 0
            ahead = _HEADER_BYTES if self._skips > _LARGE else _AHEAD_BYTES
            wanted = min(max(size, ahead), self._object.size - offset)
            self._held = self._client.get(self._object.key, offset, wanted, self._object.etag)
            self._start = offset
        at = offset - self._start
        return bytes(self._held[at : at + size])


def scan_shard_objects(
    kind: str,
    address: Address,
    objects: list[Object],
    on_progress: Progress | None = None,
    options: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the manifest of shards that are objects.

    Args:
        kind: "tar" or "parquet".
        address: Address that was opened.
        objects: The shards, in order.
        on_progress: Called from time to time.
        options: The options after the address.
    """
    client = client_of(address)
    names = [found.key for found in objects]
    labels = [str(Address(address.scheme, address.bucket, name)) for name in names]
    sources = sources_of(objects)
    if kind == "tar":
        unfit = sorted(set(options or {}) - {"files", "fields", "where"})
        if unfit:
            raise ConfigError(f"{address}: option {unfit[0]!r} does not apply to tar shards; leave it out")
        openers = [(_Ahead(client, found), found.size, label) for found, label in zip(objects, labels, strict=True)]
        with ThreadPoolExecutor(min(_SCANS, len(objects)), "sophon-scan") as pool:
            manifest = scan_tars(address, names, sources, openers, on_progress, options, pool.map)
        return replace(manifest, kind=BucketTarStore.kind)
    unfit = sorted(set(options or {}) - {"fields", "where"})
    if unfit:
        raise ConfigError(
            f"{address}: option {unfit[0]!r} does not apply to Parquet files with pictures in them; leave it out"
        )
    files: list[Shard] = [
        (partial(ObjectFile, client, found), label) for found, label in zip(objects, labels, strict=True)
    ]
    fields = tuple(named_columns((options or {}).get("fields", "")))
    manifest = scan_shards(address, [name.rpartition("/")[2] for name in names], sources, files, on_progress, fields)
    return replace(manifest, kind=BucketParquetStore.kind)
