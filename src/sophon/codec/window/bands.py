"""Bands: the rows of a JPEG object that one pass of a sample needs, read with one request and cut to a window.

The scan of a JPEG file runs row by row. So the rows that a box needs are one contiguous piece of the file, which the
index points locate; with the header from the index (`pages`) that piece is all that is needed to cut a window. Unread
bytes are zero in memory, and `cut` fails rather than read them: it stops at the next index point.

A band is read only if it is sufficiently smaller than the object; otherwise the whole object is read.
"""

from __future__ import annotations

import weakref
import zlib
from typing import Any, Final, Protocol

import numpy as np

from sophon.codec.window.blocks import needed
from sophon.codec.window.codec import box_of, payload_of
from sophon.codec.window.header import Header, parse
from sophon.codec.window.jpeg import Index, available, build_index, cut
from sophon.codec.window.pages import Entry, Pages
from sophon.codec.window.refusal import NotWindowable
from sophon.codec.window.windowed import Windowed
from sophon.errors import ArtifactError, OpError
from sophon.pipeline import Key, Pipeline, can_crop_early
from sophon.pipeline.ops.decode import Decode, check_jpeg
from sophon.store import Store

INDEX_SHARE: Final = 0.008
"""Share of a scan's bytes that index points may take. More than one point for every row or two would not pay off."""
_WORTHWHILE: Final = 0.92  # share of an object: below it a band saves more than the overhead of a response
_MARGIN_BYTES: Final = 8  # after the last point: its byte, a stuffed zero, a restart marker
_METADATA: Final = (*range(0xE1, 0xEE), 0xEF, 0xFE)  # APP1 … APP15 without Adobe's APP14, and comments
_MOST_HEADER_BYTES: Final = 1 << 24


class Ranged(Protocol):
    """A store that can read parts of samples."""

    def identity(self, index: int) -> bytes:
        """Return 8 bytes that identify the object of a sample as it was listed."""

    def read_part(self, index: int, start: int, length: int) -> memoryview:
        """Return some of the bytes of a sample."""


class Bands:
    """Reads windows of a store's samples.

    Args:
        store: The data set: a `Ranged` store.
        pages: The window index of the data set.
    """

    def __init__(self, store: Store, pages: Pages) -> None:
        self._store: Any = store
        self._pages = pages

    def suits(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline crops before any op needs the whole picture, and uses no metadata."""
        decode = pipeline.ops[0]
        plain = isinstance(decode, Decode) and not decode.upright and not decode.metadata
        return plain and available() and can_crop_early(pipeline)

    def window(self, sample: int, pipeline: Pipeline, key: Key) -> Windowed | None:
        """Return the window that a pass of a sample needs; None if the whole object should be read.

        Raises:
            StoreError: The object cannot be read.
        """
        store = self._store
        found = self._known(sample)
        if found is None or not self.suits(pipeline):
            return None
        header, index = found
        size = int(store.manifest.sizes[sample])
        try:
            box = box_of(pipeline, key, header)
            if box is None or index.file_bytes != size:
                return None
            top, left, height, width = box
            pillow_box = (left, top, left + width, top + height)
            start, end = span(header, index, needed(header, pillow_box).mcus)
            length = min(end + _MARGIN_BYTES, size) - start
            if length > _WORTHWHILE * size:
                return None
            sparse = bytearray(size)
            sparse[start : start + length] = store.read_part(sample, start, length)
            window = cut(sparse, pillow_box, index, header, trusted=True)
        except (NotWindowable, ArtifactError, OpError):
            return None
        return Windowed.of(payload_of(window), size, length, lambda: store.read(sample))

    def _known(self, sample: int) -> tuple[Header, Index] | None:
        """Return the header and index points of a sample, if the index has them for the object as listed."""
        try:
            entry = self._pages.entry(sample)
            if entry is None or not entry.points or entry.name != self._store.identity(sample):
                return None
            unpacker = zlib.decompressobj()
            header = unpacker.decompress(entry.header, _MOST_HEADER_BYTES)
            return parse(header), Index.from_bytes(entry.points)
        except (OSError, ArtifactError, NotWindowable, zlib.error):
            return None  # the whole object contains all that is needed


def span(header: Header, index: Index, mcus: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return the byte range of a file that contains some MCUs: from the first to just after the last.

    Raises:
        ArtifactError: The index does not fit the header.
    """
    packed = np.frombuffer(index.points, np.uint8)
    ends = np.flatnonzero(packed < 0x80)
    starts = np.concatenate(([0], ends[:-1] + 1))
    shifts = 7 * (np.arange(len(packed)) - np.repeat(starts, np.diff(np.append(starts, len(packed)))))
    values = np.add.reduceat((packed & 0x7F).astype(np.uint64) << shifts.astype(np.uint64), starts)
    per_row, rows = header.mcus
    points_per_row = (per_row - 1) // index.stride + 1
    fields = 1 + len(header.components)
    if len(values) != (points_per_row * rows + 1) * fields:
        raise ArtifactError("the window index belongs to a different picture")
    bits = 8 * header.scan_start + np.cumsum(values[::fields])
    left, top, _, bottom = mcus
    first = top * points_per_row + left // index.stride
    return int(bits[first]) >> 3, int(bits[bottom * points_per_row]) >> 3


def make_entry(name: bytes, data: bytes) -> Entry:
    """Return the index entry of an object; its header and points are empty if no window can be cut from the object."""
    try:
        check_jpeg(data)
        header = parse(data)
        index = build_index(data, header, INDEX_SHARE)
        bare = bytes(_without_metadata(data, header))
        if not _alike(parse(bare), header):
            return Entry(name, b"", b"")
        return Entry(name, zlib.compress(bare, 9), index.to_bytes())
    except (NotWindowable, OpError):
        return Entry(name, b"", b"")


def _without_metadata(data: bytes, header: Header) -> bytearray:
    """Return everything before the scan, with zeros in place of bytes that affect neither size nor pixels."""
    bare = bytearray(data[: header.scan_start])
    at = 2
    while at + 4 <= len(bare):
        if bare[at + 1] == 0xFF:
            at += 1
            continue
        end = at + 2 + int.from_bytes(bare[at + 2 : at + 4], "big")
        if bare[at + 1] in _METADATA:
            bare[at + 4 : end] = bytes(end - at - 4)
        at = end
    return bare


def _alike(one: Header, two: Header) -> bool:
    names = [name for name in Header.__slots__ if name != "doubtful"]
    return all(getattr(one, name) == getattr(two, name) for name in names)


_BANDS: weakref.WeakKeyDictionary[Store, Bands] = weakref.WeakKeyDictionary()


def attach(store: Store, pages: Pages) -> None:
    """Use an index for reading windows of a store from now on."""
    _BANDS[store] = Bands(store, pages)


def bands_of(store: Store) -> Bands | None:
    """Return the reader of a store's windows; None if the store has no index."""
    return _BANDS.get(store)
