"""Patches: the part of a volume file that a box needs, sent over the link instead of the file.

There are two forms, and the smaller one is sent. *chunks* are the unchanged chunks of a file that the box touches, so
nothing is decompressed near storage. *voxels* are the stored values of the box itself, recompressed; this is the only
form for a `.nii.gz`. Either way the trainer receives the stored values, not the scaled ones, which may be larger.

Byte layout, little-endian::

    4 bytes "SVP1" | length of the header: uint32 | header: JSON | chunks, one after another; or one zstd frame

Floats with few distinct values, as in scans of scaled integers, are sent as a table of those values before the frame,
and the frame holds indexes into the table. The frame holds numbers in the smallest type that fits them all, as
zigzag-coded differences along x if that helps, and shuffled: all first bytes, then all second bytes, and so on. On
abdominal CT this takes 6 % fewer bytes than shuffled plain numbers, and a quarter fewer than zstd alone.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sophon.errors import OpError
from sophon.pipeline.ops.volumes.chunked import ChunkedFile, Chunks, Grid, chunks_of
from sophon.pipeline.ops.volumes.file import AXES, NUMBERS, Header, VolumeFile, Voxels, slices
from sophon.pipeline.part import Box, count_of, holds

Buffer = bytes | memoryview

PATCH = b"SVP1"
_HEAD = struct.Struct("<4sI")
_MOST_HEADER_BYTES = 1 << 20
_LEVEL = 3  # zstd's own default
_NARROWER = ("uint8", "int8", "uint16", "int16", "int32")
_PROBE_VOXELS = 1 << 15
_MOST_ENTRIES = 1 << 12  # of a table
_AS_THEY_ARE = 1.15  # chunks with at most this many times the box's voxels are not worth recompressing


def cut_patch(file: VolumeFile, box: Box) -> bytes:
    """Return the patch of a box of a file.

    Raises:
        OpError: The file is damaged in that box.
    """
    of_chunks = b""
    if isinstance(file, ChunkedFile):
        of_chunks = _chunks_patch(file, box)
        touched = file.chunks.touched(box)
        sides = zip(touched, file.chunks.shape, strict=True)
        voxels = math.prod(len(places) * side for places, side in sides)
        if voxels <= _AS_THEY_ARE * count_of(box) * file.header.channels:
            return of_chunks
    of_voxels = _voxels_patch(file.header, box, file.read(box))
    return of_chunks if of_chunks and len(of_chunks) < len(of_voxels) else of_voxels


class Patch(VolumeFile):
    """A received patch.

    Args:
        data: The whole patch.
        max_voxels: Maximum number of voxels in the whole volume.

    Raises:
        OpError: The data is not a patch, or is damaged.

    Attributes:
        box: The box of the whole volume that the patch covers.
    """

    box: Box

    def __init__(self, data: Buffer, max_voxels: int) -> None:
        view = memoryview(data)
        try:
            magic, length = _HEAD.unpack_from(view)
            if magic != PATCH or length > _MOST_HEADER_BYTES or _HEAD.size + length > len(view):
                raise ValueError("it has no header")
            said = json.loads(bytes(view[_HEAD.size : _HEAD.size + length]))
            self._rest = view[_HEAD.size + length :]
            self.box = tuple(map(int, said["box"]))
            self._chunks = chunks_of(said["meta"], max_voxels) if "meta" in said else None
            self.header = _header(said, max_voxels) if self._chunks is None else self._chunks.header
            if len(self.box) != 2 * AXES or min(self.box) < 0 or not holds(self.header.whole, self.box):
                raise ValueError(f"the box {self.box} is not inside {self.header}")
            self._said = said
        except (struct.error, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise OpError(f"the data is not a volume patch: {error!s:.120}.") from error

    def read(self, box: Box) -> Voxels:
        """Return the stored values of a box, which must lie inside the patch."""
        if not holds(self.box, box):
            raise OpError(f"the box {box} is not inside the patch of {self.box}.")
        if self._chunks is not None:
            return self._chunks.assembled(box, self._found(self._chunks))
        starts = self.box[:AXES]
        inner = (*(at - start for at, start in zip(box, starts, strict=False)), *box[AXES:])
        return self._voxels()[slices(inner)]

    def _found(self, chunks: Chunks) -> dict[Grid, memoryview]:
        touched = chunks.touched(self.box)
        lengths, count = self._said.get("lengths"), math.prod(map(len, touched))
        if not isinstance(lengths, list) or len(lengths) != count or any(type(n) is not int for n in lengths):
            raise OpError("the patch does not give the lengths of its chunks.")
        places = itertools.product(*touched)
        if sum(length for length in lengths if length >= 0) != len(self._rest):
            raise OpError("the chunks of the patch do not add up to its size.")
        found, at = {}, 0
        for place, length in zip(places, lengths, strict=True):
            if length >= 0:
                found[place] = self._rest[at : at + length]
                at += length
        return found

    def _voxels(self) -> Voxels:
        import pyarrow as pa  # takes a tenth of a second, which `import sophon` should not cost

        said = self._said
        shape = (self.header.channels, *self.box[AXES:])
        entries = said.get("table", 0)
        if type(entries) is not int or not 0 <= entries <= _MOST_ENTRIES:
            raise OpError(f"the patch has a table of {entries!r:.20} values.")
        table, rest = (
            self._rest[: entries * self.header.dtype.itemsize],
            self._rest[entries * self.header.dtype.itemsize :],
        )
        if said.get("as") not in (*_NARROWER, self.header.dtype.name):
            raise OpError(f"the patch has voxels of type {said.get('as')!r:.40}.")
        dtype = np.dtype(said["as"])
        size = math.prod(shape) * dtype.itemsize
        try:
            data = pa.Codec("zstd").decompress(rest, decompressed_size=size, asbytes=True)
        except (OSError, ValueError) as error:
            raise OpError(f"the volume patch is damaged: {error}.") from error
        if len(data) != size:
            raise OpError(f"the patch has {len(data):,} bytes, expected {size:,}.")
        numbers = _unshuffled(data, dtype).reshape(shape)
        del data  # a patch may be as large as a volume, so it is held as few times as possible
        if said.get("differences") is True and dtype.kind != "f":
            _unzigzag(numbers)
            np.cumsum(numbers, axis=1, dtype=dtype, out=numbers)
        if entries:
            values = np.frombuffer(table, self.header.dtype.newbyteorder("="))
            if dtype.kind != "u" or len(values) != entries or int(numbers.max(initial=0)) >= entries:
                raise OpError("the patch refers to values that are not in its table.")
            return values[numbers]
        with np.errstate(invalid="ignore"):
            return numbers.astype(self.header.dtype, copy=False)


def _chunks_patch(file: ChunkedFile, box: Box) -> bytes:
    stored = file.stored(box)
    places = list(itertools.product(*file.chunks.touched(box)))
    lengths = [len(stored[place]) if place in stored else -1 for place in places]
    said = {"box": list(box), "meta": file.meta, "lengths": lengths}
    return _packed(said, [stored[place] for place in places if place in stored])


def _voxels_patch(header: Header, box: Box, stored: Voxels) -> bytes:
    import pyarrow as pa  # takes a tenth of a second, which `import sophon` should not cost

    numbers, table = _narrowed(stored), b""
    if numbers.dtype.kind == "f":
        numbers, table = _tabled(numbers)
    zstd = pa.Codec("zstd", compression_level=_LEVEL)
    coded, differences = numbers, False
    if numbers.dtype.kind != "f":
        planes = max(1, _PROBE_VOXELS // max(1, numbers[:, 0].size))
        middle = numbers[:, numbers.shape[1] // 2 :][:, :planes]
        plain, differing = (len(zstd.compress(_shuffled(a))) for a in (middle, _differences(middle)))
        differences = differing < plain
        coded = _differences(numbers) if differences else numbers
    said = {
        "box": list(box),
        "channels": header.channels,
        "sizes": list(header.sizes),
        "dtype": header.dtype.name,
        "spacing": list(header.spacing),
        "slope": header.slope,
        "inter": header.inter,
        "as": numbers.dtype.name,
        "differences": differences,
        "table": len(table) // header.dtype.itemsize,
    }
    return _packed(said, [table, zstd.compress(_shuffled(coded), asbytes=True)])


def _packed(said: Mapping[str, Any], parts: list[Any]) -> bytes:
    head = json.dumps(said, separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(PATCH, len(head)), head, *parts))


def _header(said: Mapping[str, Any], max_voxels: int) -> Header:
    x, y, z = map(int, said["sizes"])
    a, b, c = map(float, said["spacing"])
    if said["dtype"] not in NUMBERS:  # NumPy would build a type of any number of fields
        raise ValueError(f"numbers of type {said['dtype']!r:.40}")
    dtype = np.dtype(said["dtype"])
    slope, inter = float(said["slope"]), float(said["inter"])
    return Header(int(said["channels"]), (x, y, z), dtype, (a, b, c), slope, inter).checked(max_voxels)


def _narrowed(stored: Voxels) -> Voxels:
    """Return numbers in the smallest type that represents all of them exactly."""
    if stored.size == 0:
        return stored
    stored = np.ascontiguousarray(stored)
    low, high = stored.min(), stored.max()
    for name in _NARROWER:
        dtype, limits = np.dtype(name), np.iinfo(name)
        # Not if there are NaNs: every comparison with one is false.
        if dtype.itemsize < stored.dtype.itemsize and limits.min <= low and high <= limits.max:
            narrow = stored.astype(dtype)
            # Minus zero equals zero but has different bits.
            if stored.dtype.kind == "f" and not np.array_equal(
                narrow.astype(stored.dtype).view("u1"), stored.view("u1")
            ):
                return stored
            return narrow
    return stored


def _tabled(numbers: Voxels) -> tuple[Voxels, bytes]:
    """Return indexes into a table of the distinct floats, and the table; the floats themselves if there are many."""
    bits = np.ascontiguousarray(numbers).view(f"u{numbers.itemsize}")
    found, places = np.unique(bits, return_inverse=True)
    if len(found) > min(_MOST_ENTRIES, numbers.size // 8):
        return numbers, b""
    dtype = np.uint8 if len(found) <= 256 else np.uint16
    return places.astype(dtype).reshape(numbers.shape), found.view(numbers.dtype).tobytes()


def _differences(numbers: Voxels) -> Voxels:
    """Return the zigzag-coded differences between neighbours along x.

    Any overflow here is undone by the matching overflow when the differences are summed.
    """
    found = np.diff(numbers, axis=1, prepend=numbers.dtype.type(0))
    unsigned = found.view(f"u{found.itemsize}")
    sign = unsigned >> np.asarray(8 * found.itemsize - 1, unsigned.dtype)
    coded: Voxels = (unsigned << np.asarray(1, unsigned.dtype)) ^ (np.asarray(0, unsigned.dtype) - sign)
    return coded.view(found.dtype)


def _unzigzag(coded: Voxels) -> None:
    """Undo the zigzag coding in place."""
    unsigned = coded.view(f"u{coded.itemsize}")
    one = np.asarray(1, unsigned.dtype)
    sign = unsigned & one
    np.negative(sign, out=sign)
    unsigned >>= one
    unsigned ^= sign


def _shuffled(numbers: Voxels) -> bytes:
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


def _unshuffled(data: bytes, dtype: np.dtype[Any]) -> Voxels:
    parts = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    return parts.T.copy().reshape(-1).view(dtype)
