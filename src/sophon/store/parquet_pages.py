"""The sizes of a Parquet file's pages, from the header that each page has, before anything is decompressed.

A footer also has sizes, but Arrow does not compare them with the pages, so a file may declare any. The header of a page
is what Arrow allocates by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sophon.units import format_bytes

MOST_PAGE_BYTES: Final = 1 << 30  # as large as a sample may be; more only if it shrinks as little as photos do
_LARGE: Final = 1 << 26
_MOST_EXPANSION: Final = 2000  # of a large page; photos hardly shrink, and blank bitmaps to a thousandth
_PHOTOS_EXPANSION: Final = 16  # of a page beyond `MOST_PAGE_BYTES`: pyarrow puts 1,024 photos into one
# How much to read for a header: nearly all are shorter than the first of these, and Arrow reads up to the last.
_HEADER_BYTES: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24)
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN, _BY_DICTIONARY = (0, 6), (2, 8)  # plain and delta-length; the values of a dictionary
_MOST_PAGES: Final = 1 << 16  # of a chunk: 8 KB each in half a gigabyte
_MOST_WORDS: Final = 1 << 18  # in a dictionary whose values are looked at, which takes 40 ms
_MOST_WORDS_BYTES: Final = 1 << 22
# Names of `pa.decompress`. "LZ4" in a footer may also be Hadoop's format, which adds lengths: see `Chunk.longest`.
_CODECS: Final = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli", "LZ4": "lz4_raw"}
_STRUCT, _NUMBERS, _DEPTH = 12, (4, 5, 6), 4

Read = Callable[[int, int], bytes]
"""Returns bytes of a file, given offset and size."""


class BeyondBoundsError(ValueError):
    """A file that may be right, but takes more memory than files may; the text says what to do."""


@dataclass
class Chunk:
    """What the pages of a column chunk become when they are read.

    Args:
        values: Number of values.
        repeats: Number of values that refer to the dictionary.
        largest: Size of the largest page: no value can be larger.
        plain: Total size of the pages with values that are stored once for each row.
        dictionary: Size of the dictionary, any value of which may be repeated in all rows.
        shares: Whether values are stored as their difference from the one before: any may be as large as a page.
        words: Place, size and number of values of the dictionary in the file.
    """

    values: int = 0
    repeats: int = 0
    largest: int = 0
    plain: int = 0
    dictionary: int = 0
    shares: bool = False
    words: tuple[int, int, int] = (0, 0, 0)

    def longest(self, read: Read, codec: str) -> int:
        """Return the size of the longest value in the dictionary; at most its size, if looking is not worth it."""
        at, size, count = self.words
        if count > _MOST_WORDS or self.dictionary > _MOST_WORDS_BYTES or codec not in ("UNCOMPRESSED", *_CODECS):
            return self.dictionary
        data = read(at, size)
        if codec == "LZ4" and data[:1] < b"\x10":  # LZ4 itself begins with a literal; Hadoop's lengths begin with 0
            return self.dictionary
        if codec != "UNCOMPRESSED":
            data = pa.decompress(data, self.dictionary, _CODECS[codec], asbytes=True)
        longest = at = 0
        for _ in range(count):
            length = int.from_bytes(data[at : at + 4], "little")
            longest, at = max(longest, length), at + 4 + length
        return min(longest, self.dictionary)


def chunk_of(column: Any, read: Read) -> Chunk:
    """Return what the pages of a column chunk become.

    Args:
        column: The chunk's part of the footer.
        read: How to read the file.

    Raises:
        ValueError: A page is larger than pages may be, or has no header.
    """
    at, total = place_of(column)
    end, found, pages = at + total, Chunk(), 0
    while at < end and found.values < column.num_values:
        pages += 1
        if pages > _MOST_PAGES:
            raise BeyondBoundsError(
                f"column {column.path_in_schema!r:.80} has more than {_MOST_PAGES:,} pages in a row group; write the "
                "file again with larger pages, or fewer rows in a row group"
            )
        page, size = _header(read, at, end)
        kind, expanded, packed = (_whole(page.get(field, 0)) for field in (1, 2, 3))
        _check(column.path_in_schema, expanded, packed)
        found.largest = max(found.largest, expanded)
        said = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind)
        told = page.get(said, {}) if said else {}
        if not isinstance(told, dict):
            raise ValueError("a page has a damaged header")
        if kind == _DICTIONARY:
            found.dictionary = max(found.dictionary, expanded)
            found.words = (at + size, packed, _whole(told.get(1, 0)))
        elif said:
            # The second version has counts of nulls and rows before the encoding.
            encoding = told.get(4 if kind == _DATA_V2 else 2, 0)
            values = _whole(told.get(1, 0))
            found.values += values
            if encoding in _BY_DICTIONARY:
                found.repeats += values
            else:
                found.plain += expanded
            found.shares |= encoding not in (*_PLAIN, *_BY_DICTIONARY)
        at += size + packed
    return found


def place_of(column: Any) -> tuple[int, int]:
    """Return where a column chunk begins, and its size."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    return start, column.total_compressed_size


def _check(column: str, expanded: int, packed: int) -> None:
    if expanded > MOST_PAGE_BYTES and expanded > _PHOTOS_EXPANSION * packed:
        raise BeyondBoundsError(
            f"a page of column {column!r:.80} has {format_bytes(expanded)}, more than {format_bytes(MOST_PAGE_BYTES)}; "
            "write the file again with fewer rows in a page"
        )
    if expanded > _LARGE and expanded > _MOST_EXPANSION * packed:
        raise BeyondBoundsError(
            f"{format_bytes(packed)} of column {column!r:.80} become {format_bytes(expanded)}, more than "
            f"{_MOST_EXPANSION:,} times as much; if the file is right, write it again without compression"
        )


def _whole(number: object) -> int:
    if not isinstance(number, int) or not 0 <= number < 1 << 31:
        raise ValueError("a page has a damaged header")
    return number


def _header(read: Read, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the header of a page, by the numbers of its fields, and its size."""
    for size in _HEADER_BYTES:
        data = read(at, min(size, end - at))
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if at + size >= end:
                break
    raise ValueError("a page has a damaged header")


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return a struct in Thrift's compact protocol, and where it ends; values that are not numbers are left out."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _number(data, at)
        if kind == _STRUCT and depth < _DEPTH:
            fields[number], at = _struct(data, at, depth + 1)
        elif kind in _NUMBERS:
            fields[number], at = _number(data, at)
        else:
            at = _past(data, at, kind)


def _past(data: bytes, at: int, kind: int) -> int:
    """Return where a value ends that is not needed."""
    if kind in (1, 2):  # true and false are in their kind
        return at
    if kind == 3:
        return at + 1
    if kind == 7:
        return at + 8
    if kind == 8:
        size, at = _varint(data, at)
        if at + size > len(data):
            raise IndexError
        return at + size
    raise ValueError("a page has a damaged header")


def _number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a page has a damaged header")
