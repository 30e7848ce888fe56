"""NIfTI files, versions 1 and 2, in either byte order, plain (`.nii`) or compressed (`.nii.gz`).

Only the fields that affect voxels are read: sizes, type, spacing, slope and intercept, with nibabel's meaning.
Orientation (qform, sform) is ignored: voxels are in the order of the file, as in ``nibabel.load(file).dataobj``.

Limits:
    A gzip stream can only be read from its beginning, and its checksum is at its end. So the whole file is decompressed
    for any box, which also detects damage outside the box. Pairs of files (`.hdr` and `.img`) are refused.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from sophon.errors import OpError
from sophon.pipeline.ops.volumes.file import AXES, REMEDY, Header, VolumeFile, Voxels, slices
from sophon.pipeline.part import Box

Buffer = bytes | memoryview

GZIP = b"\x1f\x8b"
_TYPES = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
    1024: "i8",
    1280: "u8",
}
_SIZES = (348, 540)  # header sizes of versions 1 and 2
_EXTENSION_BYTES = 4  # bytes after the header that flag extensions
_MOST_DIMENSIONS = 7
_MOST_LEFT_BYTES = 1 << 20  # bytes allowed after the voxels of a compressed file
_MOST_OFFSET = 1 << 26  # bytes before the voxels: the header and its extensions
_PIECE_BYTES = 1 << 18  # of a compressed file, decompressed at a time; pieces of 64 KiB take 4 % more CPU time
_INFLATED_BYTES = 1 << 20  # of a piece, which may be a thousand times as long as its compressed form
_MOST_MEMBERS = 1 << 16  # bgzip writes members of 64 KiB; each costs some microseconds, however small it is
_GZIP_ONLY = 31  # zlib's window bits: the largest window, and a gzip header


class NiftiFile(VolumeFile):
    """A NIfTI file.

    Args:
        data: The whole file.
        max_voxels: Maximum number of voxels.

    Raises:
        OpError: The file is not NIfTI, or is damaged.
    """

    def __init__(self, data: Buffer, max_voxels: int) -> None:
        self._packed = data[:2] == GZIP
        self._data = memoryview(data)
        stream = _Stream(self._data) if self._packed else None
        start = bytes(self._data[: _SIZES[1]]) if stream is None else bytes(stream.read(_SIZES[1]))
        header, self._offset = _parsed(start)
        self.header = header.checked(max_voxels)

    def read(self, box: Box) -> Voxels:
        """Return the stored values of a box."""
        header = self.header
        x, y, z = header.sizes
        wanted = self._offset + header.voxels * header.dtype.itemsize
        # x is the fastest axis in memory, and channels are the slowest: the slices of one channel lie side by side.
        first, count = (box[2], box[2 + AXES]) if header.channels == 1 else (0, z)
        slice_bytes = y * x * header.dtype.itemsize
        start = self._offset + first * slice_bytes
        size_bytes = header.channels * count * slice_bytes
        if self._packed:
            data: Buffer | bytearray = _unpacked(self._data, start, size_bytes, wanted)
        elif len(self._data) < wanted:
            raise _too_short(len(self._data), wanted)
        else:
            data = self._data[start : start + size_bytes]
        flat = np.frombuffer(data, header.dtype)
        inner = (*box[:2], box[2] - first, *box[AXES:])
        found = flat.reshape(header.channels, count, y, x).transpose(0, 3, 2, 1)[slices(inner)]
        return found.astype(header.dtype.newbyteorder("="))


def _too_short(found: int, wanted: int) -> OpError:
    return OpError(f"the file has {found:,} bytes, expected {wanted:,}.", remedy=REMEDY)


def is_nifti(data: Buffer) -> bool:
    """Return whether a file looks like NIfTI, compressed or not."""
    if data[:2] == GZIP:
        return True
    sizes = [size.to_bytes(4, order) for size in _SIZES for order in ("little", "big")]
    return bytes(data[:4]) in sizes


def _parsed(start: bytes) -> tuple[Header, int]:
    """Return the parsed header and the offset of the voxels."""
    for order in "<>":
        if len(start) >= _SIZES[0] and struct.unpack_from(f"{order}i", start)[0] in _SIZES:
            break
    else:
        raise OpError(f"the file has no NIfTI header: {start[:8]!r}.", remedy=REMEDY)
    if struct.unpack_from(f"{order}i", start)[0] == _SIZES[0]:
        magic, least = start[344:348], _SIZES[0] + _EXTENSION_BYTES
        dim = struct.unpack_from(f"{order}8h", start, 40)
        (code,) = struct.unpack_from(f"{order}h", start, 70)
        pixdim = struct.unpack_from(f"{order}8f", start, 76)
        offset, slope, inter = struct.unpack_from(f"{order}3f", start, 108)
    else:
        magic, least = start[4:8], _SIZES[1] + _EXTENSION_BYTES
        if len(start) < _SIZES[1]:
            raise OpError(f"the header has {len(start)} bytes, expected {_SIZES[1]}.", remedy=REMEDY)
        (code,) = struct.unpack_from(f"{order}h", start, 12)
        dim = struct.unpack_from(f"{order}8q", start, 16)
        pixdim = struct.unpack_from(f"{order}8d", start, 104)
        (offset,) = struct.unpack_from(f"{order}q", start, 168)
        slope, inter = struct.unpack_from(f"{order}2d", start, 176)
    if magic[:2] != b"n+":
        raise OpError(f"the NIfTI header ends in {magic!r}.", remedy="Save it as one file, .nii or .nii.gz.")
    if code not in _TYPES:
        raise OpError(
            f"the voxels have NIfTI type {code}.", remedy=f"Save it with one of {', '.join(_TYPES.values())}."
        )
    header = _header(dim, pixdim, np.dtype(order + _TYPES[code]), slope, inter)
    if not math.isfinite(offset) or offset != int(offset) or not (offset == 0 or least <= offset <= _MOST_OFFSET):
        raise OpError(f"the header says that voxels begin at byte {offset}.", remedy=REMEDY)
    return header, int(offset) or least


def _header(
    dim: tuple[int, ...], pixdim: tuple[float, ...], dtype: np.dtype[Any], slope: float, inter: float
) -> Header:
    if not 1 <= dim[0] <= _MOST_DIMENSIONS:
        raise OpError(f"the header declares {dim[0]} dimensions, expected 1 to {_MOST_DIMENSIONS}.", remedy=REMEDY)
    shape = [*dim[1 : dim[0] + 1], 1, 1][: max(dim[0], AXES)]
    if min(shape) < 1 or any(size != 1 for size in shape[AXES + 1 :]):
        raise OpError(
            f"the volume has shape {tuple(shape)}.", remedy="Save it with three dimensions, or channels as a fourth."
        )
    steps = [abs(step) or 1.0 for step in pixdim[1 : AXES + 1]]
    if slope == 0 or not math.isfinite(slope):  # as the standard says: values are not scaled
        slope, inter = 1.0, 0.0
    sizes = (shape[0], shape[1], shape[2])
    channels = shape[AXES] if len(shape) > AXES else 1
    return Header(channels, sizes, dtype, (steps[0], steps[1], steps[2]), slope, inter)


class _Stream:
    """Decompresses a gzip file of one or more members, a requested number of bytes at a time."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._inflate = zlib.decompressobj(_GZIP_ONLY)
        self._members = 1

    def read(self, most: int) -> bytearray:
        """Return this many bytes, or fewer at the end.

        Raises:
            OpError: The stream is damaged, or ends too early.
        """
        found = bytearray()  # grows with what is really there, whatever the header declares
        for piece in self._pieces(most):
            found += piece
        return found

    def skip(self, most: int) -> int:
        """Decompress this many bytes, or fewer at the end, without keeping them; return how many there were."""
        return sum(map(len, self._pieces(most)))

    def _pieces(self, most: int) -> Iterator[bytes]:
        while most > 0:
            if self._inflate.eof:
                if self._data[self._at : self._at + 2] != GZIP:  # some tools pad the file with zeros
                    break
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise OpError(f"the gzip file has more than {_MOST_MEMBERS:,} members.", remedy=REMEDY)
                self._inflate = zlib.decompressobj(_GZIP_ONLY)
            given = self._data[self._at : self._at + _PIECE_BYTES]
            try:
                piece = self._inflate.decompress(given, min(most, _INFLATED_BYTES))
            except zlib.error as error:
                raise OpError(f"the gzip stream is damaged: {error}.", remedy=REMEDY) from error
            # At the end of a member the two may hold the same bytes: the tail was filled by an earlier call.
            left = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            self._at += len(given) - len(left)
            if not len(given) and not piece and not self._inflate.eof:
                raise OpError("the gzip stream ends too early.", remedy=REMEDY)
            most -= len(piece)
            yield piece


def _unpacked(data: memoryview, start: int, size_bytes: int, wanted: int) -> bytearray:
    """Return some bytes of a gzip file, after verifying its checksum.

    Only the requested bytes are kept: copying all bytes of a scan would hold the GIL for milliseconds and take more
    memory.

    Args:
        data: The file.
        start: Where the bytes begin in the decompressed file.
        size_bytes: How many bytes to return.
        wanted: How many bytes the decompressed file must have.

    Raises:
        OpError: The file is damaged, or has fewer bytes or many more bytes than it must have.
    """
    stream = _Stream(data)
    before = stream.skip(start)
    found = stream.read(size_bytes)
    count = before + len(found) + stream.skip(wanted - start - size_bytes)
    if count < wanted:
        raise _too_short(count, wanted)
    if stream.skip(_MOST_LEFT_BYTES) == _MOST_LEFT_BYTES:
        raise OpError(f"there are more than {_MOST_LEFT_BYTES:,} bytes after the voxels.", remedy=REMEDY)
    return found
