"""Manifests as Parquet, for exchange: ``s3://bucket/train.sophon-manifest`` next to ``s3://bucket/train``.

Columns: ``key``, ``size``, ``etag``, ``version`` if the bucket keeps versions, ``label``, ``column/NAME`` for further
columns, and ``location/NAME`` for samples inside shards. The rest of a manifest is in the file's metadata. Opening a
data set reads this file once and keeps a copy as Arrow in the cache.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sophon.artifact import ARROW_ERRORS, replacing
from sophon.errors import ArtifactError
from sophon.store.address import Address, is_address, parse_address
from sophon.store.bucket.client import Object, client_of
from sophon.store.bucket.failures import ObjectError
from sophon.store.manifest import Manifest
from sophon.store.parquet_rows import open_parquet

SUFFIX: Final = ".sophon-manifest"
_NAMES: Final = {"id": "key", "bytes": "size", "location/etag": "etag", "location/version": "version"}
_BACK: Final = {there: here for here, there in _NAMES.items()}


def beside(address: Address) -> Address:
    """Return the address of a data set's manifest in its bucket."""
    return Address(address.scheme, address.bucket, f"{address.key or address.bucket}{SUFFIX}")


def write_manifest(manifest: Manifest, place: Path | Address) -> None:
    """Write a manifest as Parquet, to a file or into a bucket.

    Raises:
        ArtifactError: The manifest cannot be written.
    """
    table = manifest.to_table()
    said = table.schema.metadata  # the next step loses it
    table = table.rename_columns([_NAMES.get(name, name) for name in table.column_names])
    binary = {name: pa.string() for name in ("etag", "version") if name in table.column_names}
    for name, kind in binary.items():
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    table = table.replace_schema_metadata(said)
    try:
        if isinstance(place, Address):
            sink = io.BytesIO()
            pq.write_table(table, sink, compression="zstd")
            client_of(place).put(place.key, sink.getvalue())
        else:
            with replacing(place) as file:
                pq.write_table(table, file, compression="zstd")
    except OSError as error:
        raise ArtifactError(f"{place} cannot be written: {error.strerror}; choose another place with -o") from error


def read_manifest(place: str | Address, found: Object | None = None) -> Manifest:
    """Return a manifest that was written as Parquet.

    Args:
        place: Path or address of the manifest.
        found: Its object, if it has already been looked up.

    Raises:
        ArtifactError: The manifest does not exist or is damaged.
    """
    try:
        if isinstance(place, str) and not is_address(place):
            data = Path(place).read_bytes()
        else:
            address = parse_address(place) if isinstance(place, str) else place
            client = client_of(address)
            found = found or client.head(address.key)
            data = bytes(client.get(found.key, 0, found.size, found.etag, of=found.size))
        with open_parquet(pa.BufferReader(data)) as rows:
            table = rows.table()
        said = table.schema.metadata
        table = table.rename_columns([_BACK.get(name, name) for name in table.column_names])
        for name in ("location/etag", "location/version"):
            if name in table.column_names:
                at = table.column_names.index(name)
                table = table.set_column(at, name, table[name].cast(pa.large_binary()))
        return Manifest.from_table(table.replace_schema_metadata(said))
    except ObjectError as error:
        raise ArtifactError(f"{place}: {error.strerror}") from error
    except ARROW_ERRORS as error:
        raise ArtifactError(
            f"{place} is not a readable manifest: {error}; create one with `sophon manifest`"
        ) from error
