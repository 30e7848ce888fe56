"""S3 Inventory: the lists of a bucket's objects that S3 itself writes every day, as CSV or Parquet.

An inventory is a ``manifest.json`` that names its files and their columns. Only the latest version of an object counts;
deleted objects do not.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

import pyarrow as pa

from sophon.artifact import ARROW_ERRORS
from sophon.errors import ConfigError, StoreError
from sophon.store.address import Address, is_address, parse_address
from sophon.store.bucket.client import Object, client_of, quoted
from sophon.store.bucket.failures import ObjectError
from sophon.store.parquet_rows import open_parquet
from sophon.store.store import Progress, describe, most_held

# Names of CSV and Parquet columns, without case and underscores.
_NEEDED: Final = ("key", "size", "etag")
_ROWS: Final = 10_000  # that are Python objects at a time


def read_inventory(place: str, prefix: str, bucket: str, on_progress: Progress | None = None) -> list[Object]:
    """Return the objects below a prefix from an inventory.

    Args:
        place: Path or address of the inventory's ``manifest.json``.
        prefix: Prefix of the objects' keys.
        bucket: The bucket that the inventory must list.
        on_progress: Called from time to time with the number of objects found.

    Raises:
        StoreError: The inventory cannot be read, or lacks sizes or ETags.
        ConfigError: The inventory lists a different bucket.
    """
    read = _reader(place)
    try:
        meta = json.loads(read(None))
        source, kind = str(meta["sourceBucket"]), str(meta["fileFormat"]).lower()
        names = [str(file["key"]) for file in meta["files"]]
        columns = [name.strip() for name in str(meta["fileSchema"]).split(",")]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(f"{place} is not an S3 Inventory manifest ({type(error).__name__}); check it") from error
    if source != bucket:
        raise ConfigError(f"{place} is an inventory of the bucket {source!r:.80}, not of {bucket!r}")
    if kind not in ("csv", "parquet"):
        raise ConfigError(f"{place}: the inventory is in {kind!r:.20}; configure it as CSV or Parquet")
    found: list[Object] = []
    for name in names:
        try:
            rows = _csv(read(name), columns) if kind == "csv" else _parquet(read(name))
            found += [one for one in map(_object, rows) if one is not None and one.key.startswith(prefix)]
        except (*ARROW_ERRORS, EOFError) as error:
            raise StoreError(f"{name} of the inventory {place} cannot be read: {describe(error)}") from error
        if on_progress is not None:
            on_progress(len(found), None)
    return found


def _reader(place: str) -> Callable[[str | None], bytes]:
    """Return a function that reads the manifest (None) or one of its files, named relative to its bucket or folder."""
    if is_address(place):
        address = parse_address(place)
        client = client_of(address)

        def read(name: str | None) -> bytes:
            try:
                return client.read(address.key if name is None else name)[1]
            except ObjectError as error:
                where = Address(address.scheme, address.bucket, address.key if name is None else name)
                raise StoreError(f"{where} cannot be read: {error.strerror}") from error

        return read

    def read_file(name: str | None) -> bytes:
        path = Path(place)
        if name is None:
            return path.read_bytes()
        folder = next((one for one in path.absolute().parents if (one / name).is_file()), None)
        beside = path.parent / Path(name).name
        return (folder / name if folder is not None else beside).read_bytes()

    return read_file


def _csv(data: bytes, columns: list[str]) -> Iterator[dict[str, Any]]:
    text = _unpacked(data) if data.startswith(b"\x1f\x8b") else data
    names = [_plain(name) for name in columns]
    for row in csv.reader(io.StringIO(text.decode())):
        if len(row) != len(names):
            raise ValueError(f"a row has {len(row)} columns, expected {len(names)}")
        found: dict[str, Any] = dict(zip(names, row, strict=True))
        found["key"] = unquote_plus(found["key"])  # S3 quotes keys in CSV, but not in Parquet
        yield found


def _unpacked(data: bytes) -> bytes:
    most = most_held(len(data))
    with gzip.open(io.BytesIO(data)) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it unpacks to more than {most:,} bytes")
    return text


def _parquet(data: bytes) -> Iterator[dict[str, Any]]:
    with open_parquet(pa.BufferReader(data)) as rows:
        table = rows.table()
    named = table.rename_columns([_plain(name) for name in table.column_names])
    for batch in named.to_batches(_ROWS):
        yield from batch.to_pylist()


def _object(row: dict[str, Any]) -> Object | None:
    missing = [name for name in _NEEDED if name not in row]
    if missing:
        raise StoreError(f"the inventory has no {missing[0]}; have S3 add it to the inventory's fields")
    if str(row.get("isdeletemarker", "")).lower() == "true" or str(row.get("islatest", "")).lower() == "false":
        return None
    changed = row.get("lastmodifieddate")
    when = datetime.fromisoformat(changed) if isinstance(changed, str) and changed else changed
    changed_ns = int(when.timestamp() * 1e9) if isinstance(when, datetime) else 0
    return Object(
        row["key"], int(row["size"] or 0), quoted(row["etag"] or ""), changed_ns, row.get("versionid") or None
    )


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
