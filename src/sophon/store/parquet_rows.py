"""Reading Parquet files that somebody else wrote: nothing else in the stores reads rows of them.

A file of 3 KB may hold a dictionary of one value of 64 MB that a million rows repeat. Rows are therefore decoded in
batches whose size in memory is bounded by what the pages say (`parquet_pages`), and tables that are read as a whole may
take only so many times their file's size (`most_held`).

Concurrency: without Arrow's threads, so a fork cannot break anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sophon.store.parquet_pages import BeyondBoundsError, Chunk, chunk_of, place_of
from sophon.store.store import most_held
from sophon.units import format_bytes

_BATCH_BYTES: Final = 1 << 27  # of a batch, unless a single row has more
_MOST_ROWS: Final = 1 << 20
_COUNTED_ROWS: Final = 1 << 14
_WIDEST: Final = 16  # bytes of a number, and of the offsets of a text

Hold = Callable[[Sequence[tuple[int, int]]], None]


class ParquetRows:
    """An open Parquet file.

    Args:
        file: The file.
        source: The same file, for reading page headers.
        hold: Told which parts of the file, as offset and size, are about to be read, first in small pieces and then
            as a whole; None if small pieces cost nothing.

    Attributes:
        file: The file; only its footer is for others.
    """

    def __init__(self, file: pq.ParquetFile, source: pa.NativeFile, hold: Hold | None = None) -> None:
        self.file = file
        self._hold = hold
        self._source = source
        self._size = source.size()
        columns = [file.schema.column(number) for number in range(len(file.schema))]
        self._paths = [column.path for column in columns]
        self._is_repeated = [column.max_repetition_level > 0 for column in columns]
        self._lengths = [max(0, column.length or 0) for column in columns]

    def batches(
        self, group: int, columns: Sequence[str] | None, most_rows: int = _MOST_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group in batches of bounded size.

        Args:
            group: Number of the row group.
            columns: Columns, or paths of columns inside structs; None for all.
            most_rows: How many rows a batch may have.

        Raises:
            ValueError: A page or a list is larger than it may be; or what Arrow raises on damaged files.
        """
        rows = self._rows_at_once(group, columns, most_rows)
        yield from self.file.iter_batches(rows, [group], columns, use_threads=False)

    def peak_bytes(self, group: int, column: str, most_rows: int) -> int:
        """Return about how much memory `batches` needs for a column: its pages, and one batch."""
        footer = self.file.metadata.row_group(group)
        page = max(chunk_of(footer.column(number), self._bytes).largest for number in self._leaves([column]))
        return 2 * page + min(_BATCH_BYTES, most_rows * page)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of all rows; by default, all columns.

        Raises:
            ValueError: They take more memory than the size of the file justifies; or as for `batches`.
        """
        tables, used = [], 0
        for group in range(self.file.num_row_groups):
            found = []
            for batch in self.batches(group, columns):
                used += batch.nbytes
                self._check(used)
                found.append(batch)
            if found:
                tables.append(pa.Table.from_batches(found).combine_chunks())
        if not tables:
            return self.file.read(columns, use_threads=False)  # of no rows
        return pa.concat_tables(tables)

    def check_rows(self, count: int) -> None:
        """Raise if a file has more rows than bytes: a few bytes may stand for thousands of millions of equal rows."""
        if count > self._size:
            raise BeyondBoundsError(
                f"it has more rows than bytes, of which there are {self._size:,}; leave out rows without a picture"
            )

    def _check(self, used: int) -> None:
        most = most_held(self._size)
        if used > most:
            raise BeyondBoundsError(
                f"its columns take more than {format_bytes(most)} in memory, which is too much for a file "
                f"of {format_bytes(self._size)}; remove columns that repeat large values"
            )

    def _rows_at_once(self, group: int, columns: Sequence[str] | None, most_rows: int) -> int:
        """Return how many rows fit into a batch, whatever they hold."""
        footer = self.file.metadata.row_group(group)
        most_rows = max(1, min(most_rows, footer.num_rows))
        chunks = [(number, footer.column(number)) for number in self._leaves(columns)]
        if self._hold is not None:
            self._hold([place_of(column) for _, column in chunks])
        each = _WIDEST
        for number, column in chunks:
            chunk = chunk_of(column, self._bytes)
            width = self._lengths[number] + _WIDEST
            has_texts = column.physical_type == "BYTE_ARRAY"
            if self._is_repeated[number]:  # all values may be in one row
                held = chunk.values * width + chunk.plain
                self._check(held)
                if has_texts and held + self._texts(chunk, column.compression) > most_held(self._size):
                    self._check(held + self._counted(group, number, chunk))
            else:
                each += width + (self._longest(chunk, column.compression, most_rows) if has_texts else 0)
        return max(1, min(_BATCH_BYTES // each, most_rows))

    def _leaves(self, columns: Sequence[str] | None) -> list[int]:
        if columns is None:
            return list(range(len(self._paths)))
        wanted = set(columns)  # there may be thousands, in each of thousands of row groups
        return [number for number, path in enumerate(self._paths) if not wanted.isdisjoint(_with_parents(path))]

    def _longest(self, chunk: Chunk, codec: str, count: int) -> int:
        """Return how many bytes each of so many values may have, besides pages that become rows only once."""
        if chunk.shares or chunk.plain > _BATCH_BYTES:
            return chunk.largest
        return self._longest_word(chunk, codec, count)

    def _texts(self, chunk: Chunk, codec: str) -> int:
        """Return how many bytes all values of a chunk may have, besides those that are stored once for each."""
        if chunk.shares:
            return chunk.values * chunk.largest
        return chunk.repeats * self._longest_word(chunk, codec, chunk.repeats)

    def _counted(self, group: int, number: int, chunk: Chunk) -> int:
        """Return how many bytes all values of a chunk have, by looking at each reference to its dictionary.

        One long value among millions of short ones would else make the estimate too large.
        """
        if chunk.shares:
            return chunk.values * chunk.largest
        total, path = 0, self._paths[number]
        with pq.ParquetFile(
            self._source, metadata=self.file.metadata, read_dictionary=[path], pre_buffer=False
        ) as references:
            for batch in references.iter_batches(_COUNTED_ROWS, [group], [path], use_threads=False):
                values = _leaf(batch.column(0))
                lengths = pc.binary_length(values.dictionary)
                total += pc.sum(lengths.take(values.indices)).as_py() or 0
        return total

    def _longest_word(self, chunk: Chunk, codec: str, count: int) -> int:
        if chunk.dictionary * count <= _BATCH_BYTES:
            return chunk.dictionary
        return chunk.longest(self._bytes, codec)

    def _bytes(self, offset: int, size: int) -> bytes:
        return bytes(self._source.read_at(size, offset))


def _leaf(values: pa.Array) -> pa.DictionaryArray:
    """Return the values in lists and structs, of which only one column has been read."""
    while not pa.types.is_dictionary(values.type):
        values = values.field(0) if pa.types.is_struct(values.type) else values.flatten()
    return values


def _with_parents(path: str) -> Iterator[str]:
    """Yield a path and those of the columns that it is part of: a, a.b and a.b.c for a.b.c."""
    return accumulate(path.split("."), "{}.{}".format)


@contextmanager
def open_parquet(source: Path | pa.NativeFile | Any, footer: pq.FileMetaData | None = None) -> Iterator[ParquetRows]:
    """Open a Parquet file that somebody else wrote.

    Args:
        source: Its path, an open file of Arrow's, or a Python file.
        footer: Its footer, if that has been read.

    Raises:
        OSError, pa.ArrowException: The file cannot be opened.
    """
    if isinstance(source, Path):
        opened = pa.OSFile(str(source))
    else:
        opened = source if isinstance(source, pa.NativeFile) else pa.PythonFile(source, "r")
    with opened, pq.ParquetFile(opened, pre_buffer=False, metadata=footer) as file:
        yield ParquetRows(file, opened, getattr(source, "hold", None))
