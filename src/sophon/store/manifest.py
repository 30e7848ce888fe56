"""The manifest: one row per sample of a data set, held as NumPy and Arrow, or read from a file of pages.

A manifest that was just listed is in memory: 16 bytes per sample plus its id, 8 for a label, and the further columns.
A small manifest from a file (`pages`) is also held in memory. Of a large one, only sizes and labels are held in memory
(16 bytes per sample), and the rest is read when needed.

For exchange it is one Arrow table (`to_table`)::

    schema metadata   b"sophon.manifest"   JSON: format, kind, classes, notes, fields, fingerprint, digest of the
                                           locations
                      b"sophon.sources"    an Arrow IPC stream: what was listed, with sizes, times and ETags
    columns           id                   large_string
                      bytes                int64
                      label                int64, absent if the data set has none
                      column/NAME          one for each further column
                      location/NAME        one for each location array

Limits:
    A manifest of pages is unpickled by reopening its file, so pickles of it work only on the same machine.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sophon.artifact import ARROW_ERRORS, replacing
from sophon.bundle import head_bytes
from sophon.errors import ArtifactError, StoreError
from sophon.store.fields import Field, fields_from_json
from sophon.store.pages import identity
from sophon.store.pages.columns import PagedColumn, PagedTable, whole
from sophon.store.pages.file import (
    HELD_BYTES,
    ID,
    REMEDY,
    PageFile,
    array_hash,
    fingerprint_from,
    packed_ids,
    short_hash,
    write_pages,
)
from sophon.store.pages.identity import Int64Array, fields_digests, frozen, int64_of, table_digest

FORMAT = 5
_BEFORE = 4  # its fingerprints are the same, except for samples with several fields, of which they cover less
NO_LABEL = -1  # for a sample without a label where others have one; Hugging Face's data sets use it too
_META, _SOURCES = b"sophon.manifest", b"sophon.sources"
_SOURCE_SCHEMA = pa.schema(
    [
        *(("name", pa.large_binary()), ("bytes", pa.int64()), ("mtime_ns", pa.int64())),
        *(("ctime_ns", pa.int64()), ("etag", pa.large_binary())),
    ]
)
_NOT_KNOWN = -1


@dataclass(frozen=True, eq=False, repr=False)
class Manifest:
    """The samples of a data set, in order. The position of a row is the index of its sample, everywhere.

    Args:
        kind: Which store listed it.
        ids: Relative path or key of each sample, large_string.
        sizes: Size of each sample as it is read: a file, or a bundle of files.
        labels: Label of each sample, -1 for a sample without one; None if no sample has one.
        classes: Names of the classes, if known; a label is an index into them.
        columns: Further columns that are not pictures, one row per sample; possibly none.
        locations: Where each sample is stored; used only by the store.
        sources: The files, folders or objects that were listed: name (bytes), bytes, mtime_ns, ctime_ns, which users
            cannot set (-1 if irrelevant), and the ETag of an object. Third-party stores may omit the last two.
        notes: Messages about the listing, for example what was left out; shown as warnings.
        fields: The fields of a sample, if there are several. The size of each is a location named ``bytes/NAME``.
        kept: Digest of the fields of each sample: their names, the names and sizes of their files, and the data that
            the manifest itself stores, such as boxes (the locations ``data/NAME``); None if samples are single files.
        fingerprint: 32 hex digits over ids, sizes, labels and these digests, but not times: a copy of a data set has
            the same fingerprint.
        file: The file of pages that holds ids, columns and locations; None if they are in memory.
    """

    kind: str
    ids: pa.LargeStringArray
    sizes: Int64Array
    labels: Int64Array | None = None
    classes: tuple[str, ...] = ()
    columns: pa.Table = field(default_factory=lambda: pa.table({}))
    locations: pa.Table = field(default_factory=lambda: pa.table({}))
    sources: pa.Table = field(default_factory=_SOURCE_SCHEMA.empty_table)
    notes: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    kept: Int64Array | None = field(init=False)
    fingerprint: str = field(init=False)
    file: PageFile | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "ids", whole(self.ids).cast(pa.large_string()))
        for name in ("columns", "locations"):
            set_(self, name, _in_memory(getattr(self, name)))
        set_(self, "sizes", frozen(self.sizes))
        set_(self, "labels", None if self.labels is None else frozen(self.labels))
        if self.sources.column_names == _SOURCE_SCHEMA.names[:3]:
            told = [self.sources[name].to_pylist() for name in _SOURCE_SCHEMA.names[1:3]]
            set_(self, "sources", sources_table(list(map(decode_name, self.sources["name"].to_pylist())), *told))
        self._check()
        set_(self, "kept", fields_digests(self.locations, self.fields))
        set_(self, "fingerprint", fingerprint_of(self.ids, self.sizes, self.labels, self.kept))

    def _check(self) -> None:
        lengths = {"ids": len(self.ids), "sizes": len(self.sizes)}
        if self.labels is not None:
            lengths["labels"] = len(self.labels)
        lengths |= {f"column {name!r}": len(self.columns[name]) for name in self.columns.column_names}
        lengths |= {f"location {name!r}": len(self.locations[name]) for name in self.locations.column_names}
        if len(set(lengths.values())) != 1:
            raise ArtifactError(f"expected one row per sample everywhere, got {lengths}. {REMEDY}")
        if self.ids.null_count or (len(self.sizes) and self.sizes.min() < 0):
            raise ArtifactError(f"expected an id and a size of at least 0 bytes for every sample. {REMEDY}")
        for one in self.fields:
            if f"bytes/{one.name}" not in self.locations.column_names:
                raise ArtifactError(f"expected the sizes of field {one.name!r}. {REMEDY}")
        if self.sources.schema != _SOURCE_SCHEMA:
            raise ArtifactError(
                f"expected sources as {_SOURCE_SCHEMA.names}, got {self.sources.column_names}. {REMEDY}"
            )

    def __len__(self) -> int:
        return len(self.sizes)

    def label(self, index: int) -> int | None:
        """Return the label of one sample; None if the data set has no labels."""
        return None if self.labels is None else int(self.labels[index])

    def values(self, index: int, names: Sequence[str]) -> dict[str, Any]:
        """Return some further columns of one sample; "id" is its id. Values that JSON cannot hold become strings."""
        found = {name: (self.ids if name == "id" else self.columns.column(name))[index].as_py() for name in names}
        return {name: value if _is_json(value) else str(value) for name, value in found.items()}

    @cached_property
    def columns_digest(self) -> str:
        """32 hex digits over the further columns, "" if there are none; the fingerprint does not cover them."""
        return identity.columns_digest(self.columns)

    @cached_property
    def state(self) -> str:
        """32 hex digits over names, sizes, times and ETags of the listed files: it differs between copies."""
        return table_digest(self.sources)

    def narrowed(self, fields: tuple[Field, ...]) -> Manifest:
        """Return the manifest of the same samples with only some of their fields."""
        if fields == self.fields:
            return self
        sizes = sum(self.locations[f"bytes/{field.name}"].to_numpy() for field in fields) + head_bytes(len(fields))
        # Not by `replace`, which would check every row again: any client of a node can trigger this.
        narrow = copy.copy(self)
        for name, value in (("sizes", frozen(sizes)), ("fields", fields)):
            object.__setattr__(narrow, name, value)
        return narrow

    def select(self, rows: npt.NDArray[Any]) -> Manifest:
        """Return the manifest of some of the samples, in the order given; labels and classes keep their numbers."""
        taken = pa.array(np.asarray(rows, np.int64))

        def part(table: pa.Table) -> pa.Table:
            return table.take(taken) if table.num_columns else table

        return Manifest(
            kind=self.kind,
            ids=self.ids.take(taken),
            sizes=self.sizes[rows],
            labels=None if self.labels is None else self.labels[rows],
            classes=self.classes,
            columns=part(self.columns),
            locations=part(self.locations),
            sources=self.sources,
            notes=self.notes,
            fields=self.fields,
        )

    def __repr__(self) -> str:
        return f"Manifest({self.kind!r}, {len(self):,} samples, fingerprint {self.fingerprint})"

    def __reduce__(self) -> tuple[object, ...]:
        if self.file is not None:
            # Also by its descriptor, which works as long as this process lives: the file may have been replaced.
            own = f"/proc/{os.getpid()}/fd/{self.file.fd}"
            return (_opened_again, ((self.file.path, own), self.file.digest))
        # Through the constructor, so that arrays are read-only in the other process too.
        fields = (self.kind, self.ids, self.sizes, self.labels, self.classes)
        return (type(self), (*fields, self.columns, self.locations, self.sources, self.notes, self.fields))

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the manifest to one file, atomically; return its digest, for `load` to compare."""
        rest = {f"column/{name}": self.columns[name] for name in self.columns.column_names}
        rest |= {f"location/{name}": self.locations[name] for name in self.locations.column_names}
        said = self._said() | {"columns_digest": self.columns_digest}
        arrays = {"sizes": self.sizes, "labels": self.labels, "kept": self.kept}
        present = {name: values for name, values in arrays.items() if values is not None}
        columns = pa.table({name: _in_memory(column) for name, column in rest.items()})
        # Not synced, which can take seconds on a busy disk: `load` detects a file damaged by a power cut.
        with replacing(path) as file:
            return write_pages(file, said, whole(self.ids), present, columns=columns, sources=self.sources)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, held_bytes: int = HELD_BYTES, digest: str | None = None) -> Self:
        """Return the manifest in a file.

        Args:
            path: The file.
            held_bytes: Size up to which the whole manifest is held in memory.
            digest: The result of `save`; None to accept any.

        Raises:
            ArtifactError: The file is missing, damaged, of a different format or not a manifest.
        """
        file = PageFile(path)
        try:
            if digest not in (None, file.digest):
                raise ArtifactError("it is not the expected one")
            return cls._from_pages(file, is_held=file.size_bytes <= held_bytes)
        except (ArtifactError, StoreError, *ARROW_ERRORS) as error:
            file.close()
            raise ArtifactError(f"{os.fspath(path)} is not a readable manifest: {error}. {REMEDY}") from error

    @classmethod
    def _from_pages(cls, file: PageFile, is_held: bool) -> Self:
        said = file.said
        if not _is_readable(said):
            raise ArtifactError(f"expected a manifest of format {FORMAT}, got {said['format']!r}")
        sizes = file.array("sizes")
        if sizes is None:
            raise ArtifactError("it has no sizes")
        ids: Any = PagedColumn(file, ID, pa.large_string())
        columns: Any = PagedTable(file, "column/")
        locations: Any = PagedTable(file, "location/")
        if is_held:
            ids, columns, locations = ids.whole(), columns.whole(), locations.whole()
        manifest = object.__new__(cls)
        facts = {
            "kind": str(said["kind"]),
            "ids": ids,
            "sizes": sizes,
            "labels": file.array("labels"),
            "classes": tuple(map(str, said["classes"])),
            "columns": columns,
            "locations": locations,
            "sources": file.table("sources"),
            "notes": tuple(map(str, said["notes"])),
            "fields": fields_from_json(said["fields"]),
            "kept": file.array("kept"),
            "fingerprint": said["fingerprint"],  # already checked against their hashes by the file
            "columns_digest": said["columns_digest"],
            "file": None if is_held else file,
        }
        for name, value in facts.items():
            object.__setattr__(manifest, name, value)
        manifest._check()
        if is_held:
            file.close()
        return manifest

    def _said(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "classes": self.classes,
            "notes": self.notes,
            "fields": [field.to_json() for field in self.fields],
            "fingerprint": self.fingerprint,
        }

    def to_table(self) -> pa.Table:
        """Return the manifest as one table, with everything else in its metadata."""
        arrays: dict[str, Any] = {"id": whole(self.ids), "bytes": self.sizes}
        if self.labels is not None:
            arrays["label"] = self.labels
        columns, locations = _in_memory(self.columns), _in_memory(self.locations)
        arrays |= {f"column/{name}": columns[name] for name in columns.column_names}
        arrays |= {f"location/{name}": locations[name] for name in locations.column_names}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SOURCE_SCHEMA) as writer:
            writer.write_table(self.sources)
        meta = self._said() | {"locations": table_digest(locations)}
        # Plain JSON escapes what is not ASCII: a class folder whose name is not UTF-8 survives.
        metadata = {_META: json.dumps(meta).encode(), _SOURCES: sink.getvalue().to_pybytes()}
        # An IPC file holds one dictionary per column, and each shard may have brought its own.
        return pa.table(arrays).unify_dictionaries().replace_schema_metadata(metadata)

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Return the manifest from the result of `to_table`.

        Raises:
            ArtifactError: The table is not a manifest, or its rows were changed.
        """
        metadata = table.schema.metadata or {}
        if _META not in metadata or _SOURCES not in metadata:
            raise ArtifactError(f"expected a manifest, got another Arrow file. {REMEDY}")
        meta = json.loads(metadata[_META])
        if not isinstance(meta, dict) or not _is_readable(meta):
            found = meta.get("format") if isinstance(meta, dict) else None
            raise ArtifactError(f"expected a manifest of format {FORMAT}, got {found!r}. {REMEDY}")
        with pa.ipc.open_stream(metadata[_SOURCES]) as reader:
            sources = reader.read_all()
        sources.validate(full=True)
        labels = int64_of(table["label"]) if "label" in table.column_names else None
        manifest = cls(
            kind=str(meta["kind"]),
            ids=table["id"],
            sizes=int64_of(table["bytes"]),
            labels=labels,
            classes=tuple(map(str, meta["classes"])),
            columns=_part(table, "column/"),
            locations=_part(table, "location/"),
            sources=sources,
            notes=tuple(map(str, meta["notes"])),
            fields=fields_from_json(meta["fields"]),
        )
        if (manifest.fingerprint, table_digest(manifest.locations)) != (meta["fingerprint"], meta["locations"]):
            raise ArtifactError(f"its rows do not match its fingerprint. {REMEDY}")
        return manifest


def _is_readable(said: dict[str, Any]) -> bool:
    return said.get("format") == FORMAT or (said.get("format") == _BEFORE and not said.get("fields"))


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_json(part) for part in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    return value is None or isinstance(value, str | int | float)


def sources_table(
    names: list[str],
    sizes: list[int],
    mtimes_ns: list[int],
    ctimes_ns: list[int] | None = None,
    etags: list[str] | None = None,
) -> pa.Table:
    """Return the table of the sources that were listed."""
    said = [encode_name(etag) for etag in etags or [""] * len(names)]
    columns = [[encode_name(name) for name in names], sizes, mtimes_ns, ctimes_ns or [_NOT_KNOWN] * len(names), said]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, _SOURCE_SCHEMA, strict=True)], _SOURCE_SCHEMA)


def is_as_listed(stat: os.stat_result, source: dict[str, Any]) -> bool:
    """Return whether a file or folder is unchanged since it was listed, according to a row of `Manifest.sources`.

    The modification time alone is not enough: archives, copies and container images preserve it, so a different version
    of a data set may have the same times.
    """
    return (
        stat.st_mtime_ns == source["mtime_ns"]
        and source["bytes"] in (_NOT_KNOWN, stat.st_size)
        and source["ctime_ns"] in (_NOT_KNOWN, stat.st_ctime_ns)
    )


def encode_name(name: str) -> bytes:
    """Return a file name as bytes that sort as the name does and lose nothing if it is not valid UTF-8."""
    return name.encode("utf-8", "surrogatepass")


def decode_name(name: bytes) -> str:
    """Return the file name from the result of `encode_name`."""
    return name.decode("utf-8", "surrogatepass")


def fingerprint_of(
    ids: pa.LargeStringArray, sizes: Int64Array, labels: Int64Array | None, kept: Int64Array | None = None
) -> str:
    """Return 32 hex digits over the rows: a hash of the hashes of pages of ids, sizes, labels and digests."""
    arrays = {"sizes": sizes, "labels": labels, "kept": kept}
    hashes = {name: array_hash(values) for name, values in arrays.items() if values is not None}
    return fingerprint_from(len(ids), b"".join(map(short_hash, packed_ids(ids))), hashes)


def _opened_again(places: Sequence[str], digest: str) -> Manifest:
    """Return a manifest of pages, reopened in another process."""
    *first, last = places
    for place in first:
        with contextlib.suppress(ArtifactError):
            return Manifest.load(place, held_bytes=-1, digest=digest)
    return Manifest.load(last, held_bytes=-1, digest=digest)


def _in_memory(table: Any) -> Any:
    return table.whole() if isinstance(table, PagedTable | PagedColumn) else table


def _part(table: pa.Table, prefix: str) -> pa.Table:
    names = [name for name in table.column_names if name.startswith(prefix)]
    part = table.select(names).rename_columns([name.removeprefix(prefix) for name in names])
    return part.replace_schema_metadata(None) if names else pa.table({})
