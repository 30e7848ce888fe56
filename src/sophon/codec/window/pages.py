"""The window index of objects, in pages: the information needed to read only some rows of a JPEG picture.

The index has one entry per sample, in manifest order: a name (a hash of key, size and ETag), the file's header without
its metadata, and the index points. An entry is used only if its name matches the sample, so it always matches the bytes
that a request with the same ETag returns.

Layout, little-endian::

    pages        each: PAGE_SAMPLES entries of (name: 8 bytes, header: uint32, index: uint32), then their bytes
    directory    each page: offset uint64, bytes uint32, CRC-32 uint32
    tail         bytes of the directory: uint64, samples: uint64, CRC-32 of the directory: uint32, "SBX1"

A reader fetches the tail, the directory, and a page when one of its samples is needed. Fetched pages are kept in a file
in the cache folder; a page that is missing or damaged there fails its CRC-32 and is fetched again.

Unlike an index of files (`sidecar`), this index has no seal: it is in the same bucket as the data, and anyone who can
write there can change the data too.

Concurrency: any number of threads may read; two may fetch the same page.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from cachetools import LRUCache

from sophon.errors import ArtifactError
from sophon.process.renewal import renew_after_fork

PAGE_SAMPLES: Final = 32  # about 50 KB: half a photo
NAME_BYTES: Final = 8
SUFFIX: Final = ".sophon-index"
_ENTRY: Final = struct.Struct(f"<{NAME_BYTES}sII")
_PLACE: Final = np.dtype([("offset", "<u8"), ("bytes", "<u4"), ("crc", "<u4")])
_TAIL: Final = struct.Struct("<QQI4s")
_MAGIC: Final = b"SBX1"
_MOST_DIRECTORY_BYTES: Final = 1 << 30
_MOST_PAGE_BYTES: Final = 1 << 28
_HELD_BYTES: Final = 64 << 20
_REMEDY: Final = "run `sophon index` again"

ReadAt = Callable[[int, int], bytes]


class Entry(NamedTuple):
    """The entry of one sample; `header` and `points` are empty if no window can be cut from it."""

    name: bytes
    header: bytes
    points: bytes


def pack_page(entries: list[Entry]) -> bytes:
    """Return a page."""
    head = b"".join(_ENTRY.pack(entry.name, len(entry.header), len(entry.points)) for entry in entries)
    return head + b"".join(part for entry in entries for part in entry[1:])


def unpack_page(page: bytes, samples: int) -> list[Entry]:
    """Return the entries of a page.

    Raises:
        ArtifactError: The page does not contain this many entries, or its lengths do not add up.
    """
    at = samples * _ENTRY.size
    if len(page) < at:
        raise ArtifactError(f"a page of the window index is too short; {_REMEDY}")
    entries = []
    for name, header, index in _ENTRY.iter_unpack(page[:at]):
        entries.append(Entry(name, page[at : at + header], page[at + header : at + header + index]))
        at += header + index
    if at != len(page):
        raise ArtifactError(f"the lengths in a page of the window index do not add up; {_REMEDY}")
    return entries


def finish(pages: list[tuple[int, int, int]], samples: int) -> bytes:
    """Return the end of an index, after its pages: directory and tail.

    Args:
        pages: Offset, length and CRC-32 of each page.
        samples: Number of samples.
    """
    directory = np.array(pages, _PLACE).tobytes()
    return directory + _TAIL.pack(len(directory), samples, zlib.crc32(directory), _MAGIC)


class Pages:
    """An index that is read page by page.

    Args:
        read_at: Returns bytes of the index, starting at an offset.
        size: Size of the whole index.
        where: Name of the index in messages.
        cache: File in which fetched pages are kept; None to keep none.

    Raises:
        ArtifactError: The index is damaged, or it is not an index.
    """

    def __init__(self, read_at: ReadAt, size: int, where: str, cache: Path | None = None) -> None:
        self._read_at = read_at
        self._where = where
        if size < _TAIL.size:
            raise ArtifactError(f"{where} is not a window index; {_REMEDY}")
        directory_bytes, samples, crc, magic = _TAIL.unpack(read_at(size - _TAIL.size, _TAIL.size))
        self.samples = int(samples)
        expected = -(-self.samples // PAGE_SAMPLES) * _PLACE.itemsize
        if magic != _MAGIC or directory_bytes != expected or directory_bytes > min(size, _MOST_DIRECTORY_BYTES):
            raise ArtifactError(f"{where} is not a window index, or is from a different release; {_REMEDY}")
        directory = read_at(size - _TAIL.size - directory_bytes, directory_bytes)
        if zlib.crc32(directory) != crc:
            raise ArtifactError(f"{where}: the window index is damaged; {_REMEDY}")
        self._places = np.frombuffer(directory, _PLACE)
        self._held: LRUCache[int, list[Entry]] = LRUCache(
            _HELD_BYTES, getsizeof=lambda entries: sum(len(entry.header) + len(entry.points) + 200 for entry in entries)
        )
        self._fd = -1 if cache is None else os.open(cache, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.Lock()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            if self._fd >= 0:
                os.close(self._fd)

    def entry(self, sample: int) -> Entry | None:
        """Return the entry of a sample; None if there is none.

        Raises:
            OSError: The page cannot be fetched.
            ArtifactError: The page is damaged.
        """
        if not 0 <= sample < self.samples:
            return None
        number = sample // PAGE_SAMPLES
        with self._lock:
            entries = self._held.get(number)
        if entries is None:
            first = number * PAGE_SAMPLES
            entries = unpack_page(self._page(number), min(PAGE_SAMPLES, self.samples - first))
            with self._lock, suppress(ValueError):  # raised if the page is too large to be kept
                self._held[number] = entries
        return entries[sample % PAGE_SAMPLES]

    def _page(self, number: int) -> bytes:
        offset, size, crc = (int(value) for value in self._places[number])
        if size > _MOST_PAGE_BYTES:
            raise ArtifactError(f"{self._where}: the window index has a page of {size:,} bytes; {_REMEDY}")
        if self._fd >= 0:
            page = os.pread(self._fd, size, offset)
            if len(page) == size and zlib.crc32(page) == crc:
                return page
        page = self._read_at(offset, size)
        if len(page) != size or zlib.crc32(page) != crc:
            raise ArtifactError(f"{self._where}: a page of the window index is damaged; {_REMEDY}")
        if self._fd >= 0:
            with suppress(OSError):  # a full disk: the page is fetched again next time
                os.pwrite(self._fd, page, offset)
        return page
