"""Cutting windows out of JPEG files, and the index that makes it cheap.

A window is a valid baseline JPEG of only the MCUs that a box of pixels needs: decoding it gives, for the box, the same
bits as decoding the whole file and cropping. Nothing is decoded to pixels here. `header` says which files are eligible,
`blocks` which MCUs are needed; the bit-level work is in the optional extensions `_jpeg` and `_progressive`.

Cost of a window:

* without an index the scan is walked from its start to the last row needed, and checked for stray markers to its end;
* with an index, a few MCUs at either side of each row are walked, and everything between is copied with a bit shift;
* in a progressive file every scan is read down to the last row needed, and the coefficients of the window are written
  with custom Huffman tables, which take 4 to 6 % fewer bytes than the standard ones and hardly more time.

Concurrency: all functions are pure and may be called from any thread; the heavy parts release the GIL.

Limits: progressive files have no index. Without an index the entropy-coded data below the window are not decoded. If
those are damaged, libjpeg decodes the whole file with a warning that Pillow does not pass on, and the pixels of the box
are the same; files on which Pillow would raise (no EOI marker, other markers, a wrong number or order of restart
markers) are rejected either way.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sophon.codec.window.blocks import Box, NeededBlocks, needed
from sophon.codec.window.header import Header, parse
from sophon.codec.window.refusal import NotWindowable
from sophon.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from sophon.codec.window import _jpeg as kernel
    from sophon.codec.window import _progressive as progressive
else:
    try:
        from sophon.codec.window import _jpeg as kernel
        from sophon.codec.window import _progressive as progressive
    except ImportError:  # built without a compiler
        kernel = None

Data = bytes | bytearray | memoryview

# Approximate maximum size of an index, as a share of the bytes of the scan. Mean time of a cut, measured on
# ImageNet files, by the actual share: 164 µs at 2.0 %, 146 µs at 2.4 %, 141 µs at 2.8 %.
INDEX_SHARE: Final = 0.025
# Measured mean size of a point in bytes: its position, and the DC value of each component.
_POINT_BYTES: Final = 2.4
_POINT_BYTES_PER_COMPONENT: Final = 1.2

# Width of Huffman look-up tables. Wider ones were measured to take longer to build than they save in the walk.
_WALK_LOOK_BITS: Final = 11
_INDEX_LOOK_BITS: Final = 9

_NO_KERNEL: Final = (
    "the window codec needs its C extension, which was not built; install a compiler, then reinstall sophon"
)
_JFIF: Final = bytes.fromhex("ffe000104a46494600010100000100010000")
_DC_CATEGORIES: Final = frozenset(range(12))
_LONGEST_CODE: Final = 16

_MAGIC: Final = b"SWIX"
_VERSION: Final = 1
# Magic, version, stride, bytes of the file, its fingerprint, bytes of points; then the points and a CRC-32 of
# everything.
_HEAD: Final = struct.Struct("<4sHHQQI")
_CRC: Final = struct.Struct("<I")
_MAX_STRIDE: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a JPEG picture as a separate JPEG file.

    Attributes:
        jpeg: The file.
        left: Column of the whole picture at which the window begins.
        top: Row of the whole picture at which the window begins.
        width: Width of the window in pixels.
        height: Height of the window in pixels.
        full_width: Width of the whole picture.
        full_height: Height of the whole picture.
    """

    jpeg: bytes
    left: int
    top: int
    width: int
    height: int
    full_width: int
    full_height: int


@dataclass(frozen=True, slots=True)
class Index:
    """Positions in the entropy-coded data of one file from which a walk can start.

    Attributes:
        stride: Number of MCUs between two points of a row.
        file_bytes: Size of the file.
        fingerprint: XXH64 of the file, which shows mistakes; anyone can make another file that has the same.
        points: The points, packed as described in `_jpeg.Scan.index`.
    """

    stride: int
    file_bytes: int
    fingerprint: int
    points: bytes

    def to_bytes(self) -> bytes:
        """Return the index as bytes, to be written to a file; the same index always gives the same bytes."""
        head = _HEAD.pack(_MAGIC, _VERSION, self.stride, self.file_bytes, self.fingerprint, len(self.points))
        body = head + self.points
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, packed: Data) -> Index:
        """Parse the result of `to_bytes`.

        Raises:
            ArtifactError: The bytes are not an index, or the index is damaged or of a different version.
        """
        packed = bytes(packed)
        if len(packed) < _HEAD.size + _CRC.size or not packed.startswith(_MAGIC):
            raise ArtifactError(f"expected a window index, got {len(packed)} other bytes; build it again")
        _, version, stride, file_bytes, fingerprint, size = _HEAD.unpack_from(packed)
        if version != _VERSION:
            raise ArtifactError(f"the window index has version {version}, expected {_VERSION}; build it again")
        if len(packed) != _HEAD.size + size + _CRC.size or not stride:
            raise ArtifactError(
                f"the window index is damaged: {len(packed)} bytes with {size} bytes of points; build it again"
            )
        if _CRC.unpack_from(packed, len(packed) - _CRC.size)[0] != zlib.crc32(packed[: -_CRC.size]):
            raise ArtifactError("the window index is damaged (wrong checksum); build it again")
        return cls(stride, file_bytes, fingerprint, packed[_HEAD.size : -_CRC.size])


def available() -> bool:
    """Return whether the extension was built; without it this node does not offer windows."""
    return kernel is not None


def condensed(data: Data, key: bytes) -> bytes:
    """Return what the names of files are made from; see `names`."""
    return kernel.condensed(data, key)


def build_index(data: Data, header: Header | None = None, share: float = INDEX_SHARE) -> Index:
    """Walk a file once and record where windows can start.

    The walk validates everything: a file that has an index is one that Pillow decodes.

    Args:
        data: The file.
        header: Header of the same file, if already parsed.
        share: Approximate maximum size of the index, as a share of the bytes of the scan.

    Raises:
        NotWindowable: No window can be cut from the file.
    """
    header = parse(data) if header is None else header
    if header.scans:
        raise NotWindowable("it is progressive and cannot be indexed")
    check_metadata(data, header)
    per_row, rows = header.mcus
    point_bytes = _POINT_BYTES + _POINT_BYTES_PER_COMPONENT * len(header.components)
    target_bytes = share * max(len(data) - header.scan_start, 1)
    stride = math.ceil(per_row * rows * point_bytes / target_bytes)
    stride = min(stride, per_row, _MAX_STRIDE)
    points = _scan(header, _WALK_LOOK_BITS).index(data, stride)
    return Index(stride, len(data), kernel.fingerprint(data), points)


def cut(
    data: Data, box: Box, index: Index | None = None, header: Header | None = None, *, trusted: bool = False
) -> Window:
    """Cut the window that a box of pixels needs.

    Args:
        data: The whole file.
        box: (left, top, right, bottom) in pixels of the whole picture; must lie inside it.
        index: Index of the same file; without one the scan is walked.
        header: Header of the same file, if already parsed; drawing a box needs the picture's size, for example.
        trusted: Whether the index was found by the name of these bytes, whose fingerprint is then not compared.

    Returns:
        A window that contains the box: column x of the picture is column x - left of the window.

    Raises:
        NotWindowable: The same pixels cannot be guaranteed; use the whole file.
        ArtifactError: The index was built from different bytes; build it again.
        ConfigError: The box is not inside the picture.
    """
    header = parse(data) if header is None else header
    region = needed(header, box)
    left, top, right, bottom = region.pixels
    if header.scans:
        jpeg = _cut_progressive(data, header, region)
        return Window(jpeg, left, top, right - left, bottom - top, header.width, header.height)
    targets = {component.dc: _completed(header.dc[component.dc]) for component in header.components}
    sources = {component.ac: header.ac[component.ac] for component in header.components}
    head = _head(header, right - left, bottom - top, targets, sources)
    if index is None:
        check_metadata(data, header)
        jpeg = _scan(header, _WALK_LOOK_BITS).cut(data, region.mcus, region.kept, targets, head)
    else:
        scan = _scan(header, _INDEX_LOOK_BITS)
        if index.file_bytes != len(data) or not (trusted or index.fingerprint == kernel.fingerprint(data)):
            raise ArtifactError("the window index was not built from this file; build it again")
        jpeg = scan.cut(data, region.mcus, region.kept, targets, head, index.points, index.stride)
    return Window(jpeg, left, top, right - left, bottom - top, header.width, header.height)


def _cut_progressive(data: Data, header: Header, region: NeededBlocks) -> bytes:
    """Read the coefficients that a region needs and write them as a baseline file."""
    if kernel is None:
        raise ConfigError(_NO_KERNEL)
    check_metadata(data, header)
    left, top, right, bottom = region.pixels
    components = tuple([(c.h, c.v, *header.blocks(c), c.dc) for c in header.components])
    dc, ac, scan = progressive.cut(data, header.mcus, components, header.scans, region.mcus, region.kept)
    return _head(header, right - left, bottom - top, dc, ac) + scan


def _scan(header: Header, look_bits: int) -> kernel.Scan:
    if kernel is None:
        raise ConfigError(_NO_KERNEL)
    per_row, rows = header.mcus
    return kernel.Scan(
        header.scan_start,
        per_row,
        rows,
        header.restart_interval,
        header.components,
        header.dc,
        header.ac,
        look_bits,
    )


def check_metadata(data: Data, header: Header) -> None:
    """Let Pillow open a file whose metadata may make Pillow fail; raise if it fails."""
    if not header.doubtful:
        return
    # Pillow is slow to import and not needed for files without such metadata.
    from sophon.pipeline.ops.decode import open_picture

    try:
        with open_picture(data, formats=("JPEG",)) as image:
            size = image.size
    except Exception as error:  # whatever Pillow raises, the whole file has to be sent
        raise NotWindowable(f"Pillow cannot read its metadata ({type(error).__name__})") from error
    if size != (header.width, header.height):
        raise NotWindowable("its metadata and its frame declare different sizes")


@lru_cache(maxsize=256)  # most files of a data set share a few such tables
def _completed(table: bytes) -> bytes:
    """Return a DC table with the codes of `table` plus one for every category it lacks.

    Canonical codes are given out in order of length, and none is all ones, so the space after the longest code is
    always free: adding longer codes there changes no existing code. If 16 bits are not enough, the table stays
    unchanged, and a window that needs a missing category is rejected.
    """
    if len(table) >= 16 + len(_DC_CATEGORIES) and _DC_CATEGORIES.issubset(table[16:]):
        return table
    missing = _DC_CATEGORIES.difference(table[16:])
    longest = len(table[:16].rstrip(b"\0"))
    # One free code of `longest` bits gives 2**k codes that are k bits longer, the last of which must stay unused.
    length = longest + len(missing).bit_length()
    if length > _LONGEST_CODE:
        return table
    counts = table[: length - 1] + bytes((len(missing),)) + table[length:16]
    return counts + table[16:] + bytes(sorted(missing))


def _head(header: Header, width: int, height: int, dc: dict[int, bytes], ac: dict[int, bytes]) -> bytes:
    """Return all segments of a window: only those that determine colour and coefficients."""
    parts = [b"\xff\xd8"]
    if header.jfif:
        parts.append(_JFIF)
    if header.adobe is not None:
        parts.append(_segment(0xEE, header.adobe))
    used = sorted({c.quantisation for c in header.components})
    parts.append(_segment(0xDB, b"".join([header.quantisation[number] for number in used])))
    parts.append(header.frame[:5] + struct.pack(">HH", height, width) + header.frame[9:])
    tables = [bytes((number,)) + dc[number] for number in sorted(dc)]
    tables += [bytes((0x10 | number,)) + ac[number] for number in sorted(ac)]
    parts.append(_segment(0xC4, b"".join(tables)))
    parts.append(header.scan)
    return b"".join(parts)


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
