"""Columns stored in a file of pages, with the part of Arrow's column interface that is used.

Single rows come from cached pages or from the file. Methods that need a whole column (`__arrow_array__`, `to_numpy`,
`to_pylist`, `equals`) read all of it, and keep it only as long as the caller does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sophon.store.pages.file import PAGE_ROWS, PageFile


class PagedColumn:
    """One column of a file of pages.

    Args:
        file: The file.
        name: The column's name there.
        type_: Its type.
    """

    null_count = 0  # for the ids, which have no nulls; not used for other columns

    def __init__(self, file: PageFile, name: str, type_: pa.DataType) -> None:
        self._file = file
        self._name = name
        self.type = type_

    def __len__(self) -> int:
        return self._file.rows

    def __getitem__(self, index: int) -> pa.Scalar:
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected a row in 0 … {len(self) - 1}, got {index}")
        number, row = divmod(int(index) % len(self), PAGE_ROWS)
        return self._file.page(number)[self._name][row]

    def take(self, rows: pa.Array | npt.NDArray[Any]) -> pa.Array:
        """Return some rows in the order given."""
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"expected rows in 0 … {len(self) - 1}, got {wanted.min()} … {wanted.max()}")
        numbers, places = np.unique(wanted // PAGE_ROWS, return_inverse=True)
        parts = [self._file.page(number)[self._name] for number in numbers.tolist()]
        starts = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
        return self._joined(parts).take(plain_array(pa.int64(), starts[places] + wanted % PAGE_ROWS))

    def slice(self, start: int, length: int | None = None) -> pa.Array:
        """Return consecutive rows."""
        end = len(self) if length is None else min(start + length, len(self))
        if start >= end:
            return pa.array([], self.type)
        first = start // PAGE_ROWS
        parts = [self._file.read(number)[self._name] for number in range(first, -(-end // PAGE_ROWS))]
        return self._joined(parts).slice(start - first * PAGE_ROWS, end - start)

    def parts(self, rows: int = 1 << 16) -> Iterator[pa.Array]:
        """Yield all rows, a given number at a time."""
        for start in range(0, len(self), rows):
            yield self.slice(start, rows)

    def _joined(self, parts: list[pa.Array]) -> pa.Array:
        return pa.concat_arrays(parts) if parts else pa.array([], self.type)

    def whole(self) -> pa.Array:
        """Return all rows."""
        return self.slice(0)

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:  # noqa: A002 - Arrow's word
        return self.whole() if type is None else self.whole().cast(type)

    def cast(self, type_: pa.DataType) -> pa.Array:
        """Return all rows as another type."""
        return self.whole().cast(type_)

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return all rows as a NumPy array."""
        values: npt.NDArray[Any] = self.whole().to_numpy(zero_copy_only=False)
        return values

    def to_pylist(self) -> list[Any]:
        """Return all rows as Python objects."""
        values: list[Any] = self.whole().to_pylist()
        return values

    def equals(self, other: Any) -> bool:
        """Return whether another column has the same rows."""
        same: bool = self.whole().equals(whole(other))
        return same


class PagedTable:
    """Some columns of a file of pages, under names without their prefix.

    Args:
        file: The file.
        prefix: The prefix of the columns' names in the file.
    """

    def __init__(self, file: PageFile, prefix: str) -> None:
        self._columns = {
            field.name.removeprefix(prefix): PagedColumn(file, field.name, field.type)
            for field in file.types
            if field.name.startswith(prefix)
        }

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._columns)

    def __getitem__(self, name: str) -> PagedColumn:
        return self._columns[name]

    column = __getitem__

    def __len__(self) -> int:
        return max(map(len, self._columns.values()), default=0)

    def take(self, rows: Any) -> pa.Table:
        """Return some rows in the order given."""
        return pa.table({name: column.take(rows) for name, column in self._columns.items()})

    def whole(self) -> pa.Table:
        """Return all rows."""
        return pa.table({name: column.whole() for name, column in self._columns.items()})

    def equals(self, other: Any) -> bool:
        """Return whether another table has the same rows."""
        same: bool = self.whole().equals(other.whole() if isinstance(other, PagedTable) else other)
        return same


def whole(column: Any) -> pa.Array:
    """Return a column, in memory or in a file, as one array."""
    if isinstance(column, PagedColumn):
        return column.whole()
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def texts_of(column: Any) -> Callable[[int], bytes]:
    """Return a function that gives single strings of a column as bytes.

    Arrow's own access releases the GIL for every value, which costs 20 µs instead of two when many threads do it at
    once.
    """
    if isinstance(column, PagedColumn):
        return lambda index: column[index].cast(pa.large_binary()).as_py()
    array = whole(column).cast(pa.large_binary())
    if not len(array) or array.null_count:
        return lambda index: array[index].as_py()
    found, ends = _text_and_offsets(array)
    text, offsets = found.data, ends.data

    def text_of(index: int) -> bytes:
        if not 0 <= index < len(array):
            raise IndexError(f"expected a row in 0 … {len(array) - 1}, got {index}")
        return bytes(text[offsets[index] : offsets[index + 1]])

    return text_of


class TextSpans:
    """Where the strings of a column lie in memory, without the tenth of a millisecond that `take` needs for a few.

    Args:
        manifest: Has the column, and can be pickled, which a column in a file cannot.
        name: Name of the manifest's attribute that is the column; it has no nulls.
    """

    def __init__(self, manifest: Any, name: str) -> None:
        self._manifest = manifest
        self._name = name
        self._found: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None = None

    def of(
        self, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Return where the strings of some rows begin and end in a text, and the text."""
        if self._found is None:
            column = getattr(self._manifest, self._name)
            if isinstance(column, PagedColumn):
                text, offsets = _text_and_offsets(column.take(rows))
                return offsets[:-1], offsets[1:], text
            # Not before it is needed: the pieces of a column may have to be joined.
            self._found = _text_and_offsets(whole(column))
        text, offsets = self._found
        return offsets[:-1][rows], offsets[1:][rows], text

    def __getstate__(self) -> dict[str, Any]:
        return {"_manifest": self._manifest, "_name": self._name, "_found": None}


def _text_and_offsets(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    _, offsets, text = array.cast(pa.large_binary()).buffers()
    if not len(array):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    found = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(b"" if text is None else text, np.uint8), found


def parts_of(column: Any) -> Iterable[pa.Array]:
    """Return a column in one or more pieces, so that a column in a file is never held in memory as a whole."""
    return column.parts() if isinstance(column, PagedColumn) else [column]


def plain_array(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Return contiguous numbers as an Arrow array of the given type that shares their memory.

    `pa.array` takes ten times as long, since it handles all other inputs too, and imports a part of NumPy for them.
    """
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
