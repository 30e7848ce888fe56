"""Parquet files with a picture column, with random access through a cache of row groups.

Concurrency:
    A shard is opened for each row group that is decoded and closed after it, without Arrow's threads, so a fork cannot
    break anything. Each process has its own cache, bounded by `cache_bytes`.

Limits:
    Parquet cannot return a single row: a whole row group is decoded for the first sample read from it. Random access
    needs small row groups (100 rows is Hugging Face's choice for pictures) or a cache that holds the data set. A row
    group larger than the cache is scanned in small steps for every sample: slow, but bounded in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sophon.artifact import ARROW_ERRORS
from sophon.bundle import head_bytes, pack
from sophon.errors import StoreError
from sophon.store.address import Place
from sophon.store.fields import MASK, PICTURE, Field, named_columns
from sophon.store.manifest import NO_LABEL, Manifest
from sophon.store.pages.identity import Int64Array
from sophon.store.parquet_pages import BeyondBoundsError
from sophon.store.parquet_rows import ParquetRows, open_parquet
from sophon.store.parquet_schema import Roles, roles_of
from sophon.store.row_groups import RowGroupCache
from sophon.store.shards import Shards, ShardStore, find_shards, shard_sources
from sophon.store.store import Progress, describe

CACHE_BYTES = 512_000_000
_STEP = 64  # rows decoded at once: about 10 MB of photos


class ParquetStore(ShardStore):
    """Samples in the rows of Parquet shards.

    Args:
        path: The folder, file or pattern that was opened.
        name: Name of the data set.
        manifest: The result of `scan`.
        cache_bytes: How many bytes of decoded row groups to keep in memory.
    """

    kind = "parquet"
    suffix = ".parquet"
    options: ClassVar[frozenset[str]] = frozenset({"fields"})

    def __init__(self, path: Place, name: str, manifest: Manifest, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(path, name, manifest)
        self._files = self._open_files(path, manifest.sources)
        self._cache = RowGroupCache(cache_bytes)
        self._roles: Roles | None = None
        self._all_names = tuple(field.name for field in manifest.fields)  # a narrowed store has fewer fields
        self._groups, self._rows = (manifest.locations[column].to_numpy() for column in ("group", "row"))
        self._group_bytes = _group_bytes(self._shards, self._groups, manifest.sizes)
        self._look_up()

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of one file, of a folder of files in order of their names, or of a pattern.

        Pictures are read once for their sizes, which Parquet does not store.
        """
        folder, names = find_shards(path, cls.suffix)
        files: list[Shard] = [(partial(_itself, folder / name), str(folder / name)) for name in names]
        fields = tuple(named_columns((options or {}).get("fields", "")))
        return scan_shards(path, names, shard_sources(folder, names), files, on_progress, fields)

    def _look_up(self) -> None:
        self._names = tuple(field.name for field in self.manifest.fields)

    def _open_files(self, path: Place, sources: pa.Table) -> Shards:
        assert isinstance(path, Path)
        return Shards(path, sources)

    @property
    def cache_bytes(self) -> int:
        """How many bytes of decoded row groups are kept in memory; may be set at any time."""
        return self._cache.limit_bytes

    @cache_bytes.setter
    def cache_bytes(self, limit_bytes: int) -> None:
        self._cache.limit_bytes = limit_bytes

    def _read(self, index: int) -> bytes:
        if not self._names:
            return self._value(index, 0) or b""
        found = []
        for name in self._names:
            value = self._value(index, self._all_names.index(name))
            if value is None:
                remedy = "Correct the row, or set on_error for such samples."
                raise self._failure(index, f"field {name!r}: its row has no bytes in that column", remedy)
            found.append(value)
        return pack(found)

    def _value(self, index: int, column: int) -> bytes | None:
        """Return the bytes of a sample from the picture column, or from that of a further field."""
        shard, group, row = int(self._shards[index]), int(self._groups[index]), int(self._rows[index])
        try:
            if self._group_bytes[shard, group] > self.cache_bytes:
                value = self._one_row(shard, group, row, column)
            else:
                nbytes = self._group_bytes[shard, group]
                found = self._cache.get((shard, group, column), lambda: self._decode(shard, group, column), nbytes)
                value = found[row].as_py()
        except ARROW_ERRORS as error:
            problem = f"row group {group} of its shard {self._files.path(shard)} cannot be read: {describe(error)}"
            raise self._failure(index, problem, "Copy the shard again, or open the data set again.") from error
        return value if isinstance(value, bytes) else None

    def _decode(self, shard: int, group: int, column: int) -> pa.ChunkedArray:
        """Return a column of a row group; rows that the manifest leaves out, of any size, may be null."""
        most = self._group_bytes[shard, group]
        found: list[pa.Array] = []
        used = count = 0
        listed = None  # its rows in the manifest, if the bytes of others do not fit
        with self._open(shard) as (rows, roles):
            name, path = roles.columns[column]
            for batch in rows.batches(group, [path]):
                values = _binary(batch.column(name))
                found.append(values if listed is None else _only(values, listed, count))
                count += len(values)
                used += _total(found[-1])
                if used > most and listed is None:
                    listed = self._rows[(self._shards == shard) & (self._groups == group)]
                    starts = accumulate(map(len, found), initial=0)
                    found = [_only(one, listed, start) for one, start in zip(found, starts, strict=False)]
                    used = sum(map(_total, found))
                if used > most:
                    raise ValueError("it has more bytes than when it was listed")
        return pa.chunked_array(found)

    def _one_row(self, shard: int, group: int, row: int, column: int) -> object:
        with self._open(shard) as (rows, roles):
            name, path = roles.columns[column]
            with self._cache.decoding(rows.peak_bytes(group, path, _STEP)):
                for batch in rows.batches(group, [path], _STEP):
                    if row < len(batch):
                        return _binary(batch.column(name))[row].as_py()
                    row -= len(batch)
        return None

    @contextmanager
    def _open(self, shard: int) -> Iterator[tuple[ParquetRows, Roles]]:
        path = self._files.path(shard)
        self._files.check(shard, path.stat())
        with open_parquet(path) as rows:
            yield rows, self._roles_in(rows, f"shard {path}")

    def _roles_in(self, rows: ParquetRows, where: str) -> Roles:
        if self._roles is None:  # the same in all shards: `scan` rejects them otherwise
            self._roles = roles_of(rows.file.schema_arrow, where, self._all_names)
        return self._roles

    def close(self) -> None:
        """Drop the cache."""
        super().close()
        self._cache.clear()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.name, self.manifest, self.cache_bytes))


@dataclass(frozen=True)
class _Shard:
    """The contents of one shard, one row per picture."""

    roles: Roles
    row_count: int
    ids: pa.LargeStringArray
    sizes: Int64Array
    groups: npt.NDArray[np.int32]
    rows: Int64Array
    labels: Int64Array | None
    columns: pa.Table
    field_sizes: tuple[Int64Array, ...] = ()


Shard: TypeAlias = tuple[Callable[[], Any], str]
"""Returns a shard as a path or file for Arrow to open, and its name for messages."""


def scan_shards(
    path: Place,
    names: list[str],
    sources: pa.Table,
    files: list[Shard],
    on_progress: Progress | None = None,
    fields: tuple[str, ...] = (),
) -> Manifest:
    """Return the manifest of Parquet shards in any location.

    Args:
        path: The path that was opened.
        names: Names of the shards, in order.
        sources: Sizes and times of the shards.
        files: How to open the shards, in order.
        on_progress: Called from time to time.
        fields: Columns that make up a sample; empty for only the picture.
    """
    shards: list[_Shard] = []
    total = sum(map(_row_count, files))
    seen = 0

    def report(count: int) -> None:
        if on_progress is not None:
            on_progress(seen + count, total)

    for name, file in zip(names, files, strict=True):
        shards.append(_scan_shard(file, name, report, fields))
        seen += shards[-1].row_count
    if not any(len(shard.sizes) for shard in shards):
        raise StoreError(
            f"no picture found in the {total:,} rows of {path}; if the column only holds paths, embed the bytes"
        )
    return _manifest(path, names, shards, sources)


def _itself(path: Path) -> Path:
    return path


def _row_count(shard: Shard) -> int:
    try:
        return int(pq.read_metadata(shard[0]()).num_rows)
    except ARROW_ERRORS as error:
        raise _unreadable(shard[1], error) from error


def _scan_shard(shard: Shard, name: str, on_count: Callable[[int], None], fields: tuple[str, ...]) -> _Shard:
    try:
        with open_parquet(shard[0]()) as rows:
            return _scan_rows(rows, roles_of(rows.file.schema_arrow, f"shard {shard[1]}", fields), name, on_count)
    except ARROW_ERRORS as error:
        raise _unreadable(shard[1], error) from error


def _unreadable(where: str, error: Exception) -> StoreError:
    if isinstance(error, BeyondBoundsError):
        return StoreError(f"shard {where} cannot be listed: {error}")
    return StoreError(
        f"shard {where} is not a readable Parquet file: {describe(error)}. Copy it again or remove it from the folder."
    )


def _scan_rows(rows: ParquetRows, roles: Roles, name: str, on_count: Callable[[int], None]) -> _Shard:
    leaves = [path for _, path in roles.columns] + ([] if roles.name_path is None else [roles.name_path])
    sizes: list[list[Int64Array]] = [[] for _ in roles.columns]
    ids, starts = [], []
    count = 0
    for group in range(rows.file.num_row_groups):
        starts.append(count)
        names: list[pa.Array] = []
        for batch in rows.batches(group, leaves, _STEP):
            for (column, _), found in zip(roles.columns, sizes, strict=True):
                lengths = pc.fill_null(pc.binary_length(_binary(batch.column(column))), -1)
                found.append(lengths.to_numpy().astype(np.int64))
            if roles.name_path is not None:
                names.append(pc.struct_field(batch.column(roles.image), "path").cast(pa.large_string()))
            count += len(batch)
            on_count(count)
            rows.check_rows(count)
        ids.append(_ids(names, name, starts[-1], count))
    all_sizes, *others = (np.concatenate([np.empty(0, np.int64), *found]) for found in sizes)
    kept = all_sizes >= 0
    mask = pa.array(kept)
    group_rows = np.diff([*starts, count])
    columns = rows.table([*roles.others]) if roles.others else pa.table({})
    labels = None if roles.label is None else rows.table([roles.label])[roles.label]
    if any(len(column) != count for column in [*columns.columns, *([] if labels is None else [labels])]):
        raise ValueError("its columns have different numbers of rows")
    return _Shard(
        roles=roles,
        row_count=count,
        ids=pa.concat_arrays([pa.array([], pa.large_string()), *ids]).filter(mask),
        sizes=all_sizes[kept],
        groups=np.repeat(np.arange(len(starts), dtype=np.int32), group_rows)[kept],
        rows=(np.arange(count) - np.repeat(np.array(starts, np.int64), group_rows))[kept],
        labels=None if labels is None else pc.fill_null(labels.cast(pa.int64()), NO_LABEL).to_numpy()[kept],
        columns=columns.filter(mask).replace_schema_metadata(None) if roles.others else columns,
        field_sizes=tuple(np.maximum(found[kept], 0) for found in others),  # reading a row without bytes raises
    )


def _binary(pictures: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.struct_field(pictures, "bytes") if pa.types.is_struct(pictures.type) else pictures


def _total(values: pa.Array) -> int:
    return pc.sum(pc.binary_length(values)).as_py() or 0


def _only(values: pa.Array, rows: Int64Array, first: int) -> pa.Array:
    """Return values, the first of which is in this row, with null in all rows but some."""
    kept = np.isin(np.arange(first, first + len(values)), rows)
    return pc.if_else(pa.array(kept), values, pa.scalar(None, values.type))


def _ids(names: list[pa.Array], shard: str, start: int, end: int) -> pa.LargeStringArray:
    """Return the file names of pictures; for a picture without a name, its shard and row."""
    numbered = pa.array([f"{shard}#{row}" for row in range(start, end)], pa.large_string())
    if not names:
        return numbered
    told = pa.concat_arrays(names)
    return pc.if_else(pc.fill_null(pc.greater(pc.utf8_length(told), 0), False), told, numbered)


def _manifest(path: Place, names: list[str], shards: list[_Shard], sources: pa.Table) -> Manifest:
    first = shards[0].roles
    for name, shard in zip(names, shards, strict=True):
        if replace(shard.roles, others=()) != replace(first, others=()):
            raise StoreError(
                f"the shards of {path} have different layouts: {names[0]} has {first.describe()}, {name} has "
                f"{shard.roles.describe()}; keep different data sets in different folders"
            )
    try:
        columns = _join([shard.columns for shard in shards], [len(shard.sizes) for shard in shards])
    except ARROW_ERRORS as error:
        raise StoreError(
            f"the shards of {path} have columns of different types: {describe(error)}. Write them with one schema."
        ) from error
    sizes = np.concatenate([shard.sizes for shard in shards])
    numbers = np.repeat(np.arange(len(shards), dtype=np.int32), [len(shard.sizes) for shard in shards])
    groups = np.concatenate([shard.groups for shard in shards])
    rows = np.concatenate([shard.rows for shard in shards])
    labels = None
    if first.label is not None:
        labels = np.concatenate([shard.labels for shard in shards if shard.labels is not None])
    left_out = sum(shard.row_count for shard in shards) - len(sizes)
    locations: dict[str, Any] = {"shard": numbers, "group": groups, "row": rows}
    fields: tuple[Field, ...] = ()
    if first.fields:
        fields = (Field(first.image, PICTURE), *(Field(name, _kind_of(name)) for name, _ in first.fields))
        each = [sizes, *map(np.concatenate, zip(*(shard.field_sizes for shard in shards), strict=True))]
        locations |= {f"bytes/{field.name}": found for field, found in zip(fields, each, strict=True)}
        sizes = np.sum(each, axis=0) + head_bytes(len(fields))
    return Manifest(
        kind=ParquetStore.kind,
        ids=pa.concat_arrays([shard.ids for shard in shards]),
        sizes=sizes,
        labels=labels,
        classes=first.classes,
        columns=columns,
        locations=pa.table(locations),
        sources=sources,
        notes=tuple(_notes(path, left_out, labels, _group_bytes(numbers, groups, sizes))),
        fields=fields,
    )


def _kind_of(name: str) -> str:
    return MASK if name == MASK else PICTURE


def _join(tables: list[pa.Table], counts: list[int]) -> pa.Table:
    """Concatenate tables; a column missing from one of them is null there."""
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    if not names:
        return pa.table({})
    wide = [
        pa.table({name: table[name] if name in table.column_names else pa.nulls(count) for name in names})
        for table, count in zip(tables, counts, strict=True)
    ]
    return pa.concat_tables(wide, promote_options="permissive")


def _group_bytes(
    shards: npt.NDArray[np.int32], groups: npt.NDArray[np.int32], sizes: Int64Array
) -> dict[tuple[int, int], int]:
    """Return how many bytes of pictures each row group holds."""
    keys, which = np.unique(shards.astype(np.int64) << 32 | groups, return_inverse=True)
    totals = np.bincount(which, sizes, len(keys))
    return {(key >> 32, key & 0xFFFFFFFF): int(total) for key, total in zip(keys.tolist(), totals, strict=True)}


def _notes(path: Place, left_out: int, labels: Int64Array | None, group_bytes: dict[tuple[int, int], int]) -> list[str]:
    notes = []
    if left_out:
        notes.append(f"{left_out:,} rows of {path} have no picture and are left out")
    unlabelled = 0 if labels is None else int((labels == NO_LABEL).sum())
    if labels is not None and 0 < unlabelled < len(labels):
        notes.append(f"{unlabelled:,} of {len(labels):,} samples in {path} have no label and get {NO_LABEL}")
    largest = max(group_bytes.values())
    if largest > CACHE_BYTES:
        notes.append(
            f"row groups of {path} have up to {largest:,} bytes, more than the cache of {CACHE_BYTES:,}, and are "
            "slow to read; write the files again with a row_group_size of 100"
        )
    return notes
