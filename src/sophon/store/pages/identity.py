"""Identity of data sets: digests over the rows of a manifest, and over the sources they were made from.

Equal digests mean equal data, wherever it is stored, so they do not cover paths or times on a machine. Only the digest
of sources does, to tell one copy from another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import ArtifactError
from sophon.store.pages.columns import whole
from sophon.store.pages.file import REMEDY

Int64Array: TypeAlias = npt.NDArray[np.int64]

KEPT = "data/"  # prefix of the locations of fields that are stored in the manifest itself
_PROBLEM = "problem/"  # prefix of locations that describe a problem with a field
_OF_FIELDS = ("bytes/", "file/", _PROBLEM)
_ROWS = 1 << 16  # rows of a column at a time


def columns_digest(columns: Any) -> str:
    """Return 32 hex digits over the further columns of a data set, "" if there are none.

    Equal values give the same digits, however a file stores them: as CSV or Parquet, in 32 or 64 bits.
    """
    if not columns.num_columns:
        return ""
    digest = hashlib.sha256()
    for name in sorted(columns.column_names):
        column = columns[name]
        digest.update(f"{name}:{len(column)}\n".encode())
        for start in range(0, len(column), _ROWS):  # the same rows, however many chunks there are
            _add_values(digest, whole(column.slice(start, _ROWS)))
    return digest.hexdigest()[:32]


def fields_digests(locations: pa.Table, fields: Sequence[object]) -> Int64Array | None:
    """Return a digest of the fields of each sample, over everything that determines their bytes.

    None if samples are single files. All fields count, even if the manifest was narrowed to some of them.
    """
    if not fields:
        return None
    names = sorted(name for name in locations.column_names if name.startswith((KEPT, *_OF_FIELDS)))
    made = np.zeros(len(locations), np.int64)
    for row, values in enumerate(zip(*(locations[name].to_pylist() for name in names), strict=True)):
        digest = hashlib.blake2b(digest_size=8)
        for name, value in zip(names, values, strict=True):
            if name.startswith(_PROBLEM):
                said = str(int(bool(value))).encode()  # not the problem's text, which may name folders of this machine
            else:
                said = value if isinstance(value, bytes) else str(value).encode()
            digest.update(f"{name} {len(said)} ".encode() + said)
        made[row] = int.from_bytes(digest.digest(), "little", signed=True)
    return frozen(made)


def _add_values(digest: Any, values: pa.Array) -> None:
    """Add the values of a column to a digest, and which of them are missing."""
    types = pa.types
    values = values.dictionary_decode() if types.is_dictionary(values.type) else values
    digest.update(np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), np.uint8).data)
    kind = values.type
    if types.is_string(kind) or types.is_large_string(kind):
        _add_texts(digest, pa.concat_arrays([pc.fill_null(values, "").cast(pa.large_binary())]))
    elif types.is_integer(kind) and kind != pa.uint64():
        digest.update(pc.fill_null(values.cast(pa.int64()), 0).to_numpy().astype("<i8").data)
    elif types.is_floating(kind):
        digest.update(pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy().astype("<f8").data)
    else:
        digest.update(repr(values.to_pylist()).encode("utf-8", "surrogatepass"))


def _add_texts(digest: Any, texts: pa.Array) -> None:
    """Add the lengths of large strings or binaries, then their bytes, to a digest."""
    if len(texts) == 0:
        return
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    digest.update(np.diff(offsets).astype("<i8", copy=False).data)
    if data is not None:
        digest.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])


def table_digest(table: pa.Table) -> str:
    """Return 32 hex digits over a table of integers and bytes: sample locations, or sources.

    A wrong offset would silently give the bytes of a different sample; ids and sizes do not cover offsets.
    """
    digest = hashlib.sha256()
    for name in table.column_names:
        column = whole(table[name])
        digest.update(f"{name}:{column.type}:{len(column)}\n".encode())
        if column.type == pa.large_binary():
            _add_texts(digest, column)
        else:
            digest.update(int64_of(column).data)
    return digest.hexdigest()[:32]


def int64_of(column: Any) -> Int64Array:
    """Return a column of integers without nulls, or raise `ArtifactError`."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ArtifactError(f"expected integers and no nulls, got {column.type}. {REMEDY}")
    return np.ascontiguousarray(column.to_numpy(), np.int64)


def frozen(values: Any) -> Int64Array:
    """Return integers as a read-only array."""
    array: Int64Array = np.ascontiguousarray(values, np.int64).view()
    array.setflags(write=False)
    return array
