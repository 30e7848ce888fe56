"""A file of pages: a manifest in the cache, whose rows are read on demand.

Layout, all numbers little-endian::

    b"sophonM4"
    pages        of 256 rows each, one after the other:
                     lengths of the ids, uint32 | the ids, UTF-8 | zeros up to a multiple of 8
                     | all other columns, an Arrow record batch as IPC writes it | zeros up to a multiple of 8
    sections     whole int64 arrays (sizes, labels, stored data), the page table, and Arrow IPC streams: the sources,
                 the columns' types, and their dictionaries
    directory    JSON: the manifest's own metadata, and for every section its offset, its length and its SHA-256
    footer       length of the directory, uint64 | its SHA-256 | b"sophonM4"

The page table has a SHA-256 of the ids of each page and one of its other columns (16 bytes each). The fingerprint
of a data set is a hash over the former (`fingerprint_from`), so a file can be matched to its fingerprint without
reading the rows, and each page is checked against its hashes when it is read.

Whatever is done to the file, before or after it is opened, rows are those that were written, or an error is raised:
`ArtifactError` when the file is opened, `StoreError` when a page is read. Anything else is a bug. The file is never
mapped: truncating a mapped file kills the process.

Concurrency: any thread may read; a forked child shares the file, whose position is not used, and gets its own lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sophon.artifact import ARROW_ERRORS
from sophon.errors import ArtifactError, StoreError
from sophon.process.renewal import renew_after_fork

Int64Array: TypeAlias = npt.NDArray[np.int64]
Page: TypeAlias = dict[str, pa.Array]

PAGE_ROWS: Final = 256  # about 20 KB, which are read and checked in about 0.1 ms
HELD_BYTES: Final = 32 << 20
"""Bytes of pages kept in memory; a file of at most this size is held as a whole."""
ARRAYS: Final = ("sizes", "labels", "kept")
ID: Final = "id"
REMEDY: Final = "Delete the file; it is recreated when the data set is opened."
_MAGIC: Final = b"sophonM4"
_FOOTER: Final = struct.Struct("<Q32s8s")
_HASH: Final = 16
_ENTRY: Final = np.dtype([("ids", "<u4"), ("rest", "<u4"), ("ids_hash", f"V{_HASH}"), ("rest_hash", f"V{_HASH}")])


def fingerprint_from(rows: int, id_hashes: bytes, arrays: Mapping[str, bytes]) -> str:
    """Return 32 hex digits that identify the rows of a manifest.

    Args:
        rows: Number of rows.
        id_hashes: SHA-256 of the ids of every page, 16 bytes each.
        arrays: SHA-256 of the sizes, labels and stored data, where they exist.
    """
    digest = hashlib.sha256(b"sophon manifest 2\n" + rows.to_bytes(8, "little"))
    for name in ARRAYS:
        if name in arrays:
            digest.update(name.encode() + arrays[name])
    digest.update(b"ids" + id_hashes)
    return digest.hexdigest()[:32]


def packed_ids(ids: pa.LargeStringArray) -> Iterator[bytes]:
    """Yield the ids of each page as they are written: lengths as uint32, then the strings."""
    if not len(ids):
        return
    _, offsets_buffer, data = ids.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    text = memoryview(b"" if data is None else data)
    for start in range(0, len(ids), PAGE_ROWS):
        part = offsets[start : start + PAGE_ROWS + 1]
        yield np.diff(part).astype("<u4").tobytes() + bytes(text[int(part[0]) : int(part[-1])])


def short_hash(data: bytes | memoryview) -> bytes:
    """Return the hash of a page."""
    return hashlib.sha256(data).digest()[:_HASH]


def array_hash(values: Int64Array) -> bytes:
    """Return the hash of an array."""
    return hashlib.sha256(np.ascontiguousarray(values, "<i8").data).digest()


def write_pages(
    file: BinaryIO, said: Mapping[str, Any], ids: pa.LargeStringArray, arrays: Mapping[str, Int64Array], **tables: Any
) -> str:
    """Write a manifest; return the digest that an opened `PageFile` will have.

    Args:
        file: File open for writing, at its start.
        said: Contents of the directory.
        ids: Ids of all samples.
        arrays: Some of `ARRAYS`, one number for each sample.
        tables: ``columns``, with further data of each sample, and ``sources``.
    """
    columns, dictionaries = _without_dictionaries(tables["columns"])
    at = file.write(_MAGIC)
    entries = np.zeros(-(-len(ids) // PAGE_ROWS), _ENTRY)
    for number, packed in enumerate(packed_ids(ids)):
        rest = _message(columns, number)
        entries[number] = (len(packed), len(rest), short_hash(packed), short_hash(rest))
        at += file.write(_padded(packed) + _padded(rest))
    sections = {"pages": entries.tobytes(), "schema": columns.schema.serialize().to_pybytes()}
    sections |= {name: np.ascontiguousarray(values, "<i8").data.cast("B") for name, values in arrays.items()}
    sections |= {"sources": _stream(tables["sources"])}
    sections |= {f"dictionary {name}": _stream(pa.table({name: values})) for name, values in dictionaries.items()}
    places = {}
    for name, data in sections.items():
        places[name] = [at, len(data), hashlib.sha256(data).hexdigest()]
        at += file.write(data)
    directory = json.dumps({**said, "rows": len(ids), "page_rows": PAGE_ROWS, "sections": places}).encode()
    digest = hashlib.sha256(directory).digest()
    file.write(directory + _FOOTER.pack(len(directory), digest, _MAGIC))
    return digest.hex()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _without_dictionaries(table: pa.Table) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Return a table with dictionary columns replaced by numbers, and one dictionary per column."""
    dictionaries: dict[str, pa.Array] = {}
    if not table.num_columns:
        return table, dictionaries
    table = table.unify_dictionaries()  # each shard may have its own dictionary
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = table.column(place).chunks
            dictionaries[field.name] = chunks[0].dictionary if chunks else pa.array([], field.type.value_type)
            numbers = pa.chunked_array([chunk.indices for chunk in chunks], field.type.index_type)
            table = table.set_column(place, field.name, numbers)
    return table.replace_schema_metadata(None), dictionaries


def _message(table: pa.Table, number: int) -> bytes:
    """Return the rows of one page in IPC form."""
    if not table.num_columns:
        return b""
    part = table.slice(number * PAGE_ROWS, PAGE_ROWS).combine_chunks()
    message: bytes = part.to_batches()[0].serialize().to_pybytes()
    return message


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


class PageFile:
    """An open file of pages.

    Args:
        path: The file.

    Raises:
        ArtifactError: The file is missing, damaged or of a different format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ArtifactError(f"{self.path} is not a readable manifest: {error.strerror}. {REMEDY}") from error
        self.close = weakref.finalize(self, os.close, self.fd)
        try:
            self._open()
        except ArtifactError as error:
            self.close()
            raise ArtifactError(f"{self.path} is not a readable manifest: {error}. {REMEDY}") from error.__cause__
        except (*ARROW_ERRORS, RecursionError) as error:
            self.close()
            raise ArtifactError(f"{self.path} is not a readable manifest: {error}. {REMEDY}") from error
        self.renew()
        renew_after_fork(self)

    def _open(self) -> None:
        self.size_bytes = os.fstat(self.fd).st_size
        end = self.size_bytes - _FOOTER.size
        if end < len(_MAGIC):
            raise ArtifactError(f"it has only {self.size_bytes} bytes")
        length, digest, magic = _FOOTER.unpack(self._bytes(end, _FOOTER.size))
        if magic != _MAGIC:
            raise ArtifactError("it is a file of another kind or version")
        self.digest = digest.hex()
        self.said: dict[str, Any] = json.loads(self._checked(end - length, length, self.digest))
        self._sections = self.said["sections"]
        self.rows = int(self.said["rows"])
        entries = np.frombuffer(self._section("pages"), _ENTRY)
        if self.said["page_rows"] != PAGE_ROWS or len(entries) != -(-self.rows // PAGE_ROWS):
            raise ArtifactError(f"it has {len(entries)} pages for {self.rows} rows")
        self._check_fingerprint(entries)
        self._hashes = entries
        lengths = np.stack([entries["ids"], entries["rest"]]).astype(np.int64)
        self._starts = len(_MAGIC) + np.concatenate([[0], np.cumsum((lengths + 7 & ~7).sum(0))])
        self._schema = pa.ipc.read_schema(pa.py_buffer(self._section("schema")))
        self._dictionaries = {
            name.partition(" ")[2]: self.table(name).column(0).combine_chunks()
            for name in self._sections
            if name.startswith("dictionary ")
        }
        self.types = pa.schema([(name, self._type(name)) for name in self._schema.names])

    def _check_fingerprint(self, entries: npt.NDArray[Any]) -> None:
        """Check the hashes against the fingerprint; arrays are checked against their hashes when they are read."""
        hashes = {name: bytes.fromhex(self._sections[name][2]) for name in ARRAYS if name in self._sections}
        if fingerprint_from(self.rows, entries["ids_hash"].tobytes(), hashes) != self.said["fingerprint"]:
            raise ArtifactError("its rows do not match its fingerprint")

    def _type(self, name: str) -> pa.DataType:
        index_type = self._schema.field(name).type
        known = self._dictionaries.get(name)
        return index_type if known is None else pa.dictionary(index_type, known.type)

    def renew(self) -> None:
        """Start over in a forked child."""
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Page] = OrderedDict()
        self._most = max(HELD_BYTES * len(self._hashes) // max(self.size_bytes, 1), 1)

    def __len__(self) -> int:
        return len(self._hashes)

    def array(self, name: str) -> Int64Array | None:
        """Return one of `ARRAYS`, read-only; None if the file does not have it."""
        if name not in self._sections:
            return None
        start, length, expected = self._sections[name]
        if length != 8 * self.rows or start + length > self.size_bytes:
            raise ArtifactError(f"its {name} have {length} bytes for {self.rows} rows")
        values = np.empty(self.rows, "<i8")
        self._into(start, values.data.cast("B") if self.rows else memoryview(b""))
        if hashlib.sha256(values.data).hexdigest() != expected:
            raise ArtifactError(f"its {name} were changed")
        values.setflags(write=False)
        return values.view(np.int64)

    def table(self, name: str) -> pa.Table:
        """Return a section that is an Arrow stream."""
        with pa.ipc.open_stream(pa.py_buffer(self._section(name))) as reader:
            return reader.read_all()

    def page(self, number: int) -> Page:
        """Return the columns of a page, including ``id``, from memory or from the file.

        Raises:
            StoreError: The file was changed or cut short since it was opened.
        """
        with self._lock:
            page = self._held.get(number)
            if page is not None:
                self._held.move_to_end(number)
                return page
        page = self.read(number)
        with self._lock:
            self._held[number] = page
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        return page

    def read(self, number: int) -> Page:
        """Return the columns of a page from the file."""
        entry = self._hashes[number]
        ids_bytes, rest_bytes = int(entry["ids"]), int(entry["rest"])
        try:
            data = self._bytes(int(self._starts[number]), (ids_bytes + 7 & ~7) + rest_bytes)
            packed, rest = memoryview(data)[:ids_bytes], memoryview(data)[len(data) - rest_bytes :]
            if (short_hash(packed), short_hash(rest)) != (entry["ids_hash"].tobytes(), entry["rest_hash"].tobytes()):
                raise ArtifactError(f"page {number} has changed")
            return self._unpacked(packed, rest, min(PAGE_ROWS, self.rows - number * PAGE_ROWS))
        except (ArtifactError, *ARROW_ERRORS) as error:
            problem = f"{self.path}: the list of samples has changed since it was opened: {error}. {REMEDY}"
            raise StoreError(problem) from error

    def _unpacked(self, packed: memoryview, rest: memoryview, rows: int) -> Page:
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(np.frombuffer(packed, "<u4", rows), out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed)[4 * rows :]]
        page: Page = {ID: pa.Array.from_buffers(pa.large_string(), rows, buffers)}
        if self._schema.names:
            batch = pa.ipc.read_record_batch(pa.py_buffer(rest), self._schema)
            for name, column in zip(self._schema.names, batch.columns, strict=True):
                known = self._dictionaries.get(name)
                page[name] = column if known is None else pa.DictionaryArray.from_arrays(column, known)
        for column in page.values():
            if len(column) != rows:
                raise ArtifactError(f"found {len(column)} rows, expected {rows}")
            column.validate(full=True)
        return page

    def _section(self, name: str) -> bytes:
        return self._checked(*self._sections[name])

    def _checked(self, start: int, length: int, expected: str) -> bytes:
        if start < 0 or length < 0 or start + length > self.size_bytes:
            raise ArtifactError(f"it has {self.size_bytes} bytes, too few for {length} at {start}")
        data = self._bytes(start, length)
        if hashlib.sha256(data).hexdigest() != expected:
            raise ArtifactError("it has changed since it was written")
        return data

    def _bytes(self, start: int, length: int) -> bytes:
        data = os.pread(self.fd, length, start)
        if len(data) == length:
            return data
        space = bytearray(length)  # Linux reads at most 2 GB at once
        self._into(start, memoryview(space))
        return bytes(space)

    def _into(self, start: int, space: memoryview) -> None:
        done = 0
        while done < len(space):
            count = os.preadv(self.fd, [space[done:]], start + done)
            if not count:
                raise ArtifactError(f"it ends after {start + done} bytes")
            done += count
