"""Parses the header of a JPEG file, and decides whether a window may be cut from it.

The rules guarantee that libjpeg (through Pillow) decodes the whole file, and that it decodes a window on its own to the
same pixels: files that libjpeg would reject, repair or treat specially are rejected here. `parse` lists the rules.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from sophon.codec.window.refusal import NotWindowable
from sophon.codec.window.scans import Scan, read_scans
from sophon.codec.window.segments import Tables

# Pillow warns beyond this many pixels and raises beyond twice as many (Image.MAX_IMAGE_PIXELS as shipped).
MAX_PIXELS: Final = 1024 * 1024 * 1024 // 4 // 3
# libjpeg's own bound on either side.
MAX_SIDE: Final = 65500
MAX_BLOCKS_PER_MCU: Final = 10

_BASELINE: Final = 0xC0
_EXTENDED: Final = 0xC1  # sequential, with 16-bit quantisation tables
_PROGRESSIVE: Final = 0xC2
# The DC and AC tables with which the components of a progressive picture are written, in frame order: luma, two chroma,
# and black.
_WRITTEN_WITH: Final = (0x00, 0x11, 0x11, 0x00)


class Component(NamedTuple):
    """One colour component, as the frame and the scan declare it.

    Attributes:
        h: Horizontal sampling factor: blocks across in an MCU.
        v: Vertical sampling factor: blocks down in an MCU.
        quantisation: Number of its quantisation table.
        dc: Number of its DC Huffman table.
        ac: Number of its AC Huffman table.
    """

    h: int
    v: int
    quantisation: int
    dc: int
    ac: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything that determines how a JPEG decodes: baseline or extended sequential with one scan, or progressive.

    For a progressive file, frame, scan and table numbers are those of the baseline windows made from it.

    Attributes:
        width: Width of the picture in pixels.
        height: Height of the picture in pixels.
        components: Colour components in the order of frame and scan. A single component has one block per MCU: its
            factors are given as 1, which is how it is decoded, whatever the frame declares.
        mcu_width: Width of an MCU in pixels.
        mcu_height: Height of an MCU in pixels.
        restart_interval: MCUs between restart markers, 0 for none; in a progressive file each scan has its own.
        scan_start: Offset of the first entropy-coded byte.
        frame: The SOF segment, including its marker.
        scan: The SOS segment, including its marker.
        quantisation: Table number → precision and number byte, then the values.
        dc: Table number → 16 counts, then the values.
        ac: Table number → 16 counts, then the values.
        scans: All scans of a progressive file, which together give every coefficient to its last bit; empty for other
            files.
        jfif: Whether a JFIF segment says that three components are YCbCr.
        adobe: The 12 bytes of the Adobe segment that name the colour transform; empty without one.
        doubtful: Whether the file has metadata that Pillow reads and may fail on, and that is not checked here.
    """

    width: int
    height: int
    components: tuple[Component, ...]
    mcu_width: int
    mcu_height: int
    restart_interval: int
    scan_start: int
    frame: bytes
    scan: bytes
    quantisation: dict[int, bytes]
    dc: dict[int, bytes]
    ac: dict[int, bytes]
    scans: tuple[Scan, ...]
    jfif: bool
    adobe: bytes | None
    doubtful: bool

    @property
    def mcus(self) -> tuple[int, int]:
        """Number of MCUs per row, and of MCU rows."""
        return -(-self.width // self.mcu_width), -(-self.height // self.mcu_height)

    def blocks(self, component: Component) -> tuple[int, int]:
        """Number of blocks of a single component per row, and of block rows."""
        across, down = self.mcu_width // component.h, self.mcu_height // component.v
        return -(-self.width // across), -(-self.height // down)


def parse(data: bytes | bytearray | memoryview) -> Header:
    """Read the header of a JPEG file.

    It rejects: anything but 8-bit Huffman coding, baseline, extended sequential or progressive; a sequential scan that
    does not hold all components in the order of the frame; 2 components (Pillow has no mode for them); heights left to
    a DNL marker; sampling factors that do not divide the largest one; bytes between segments; segments of a wrong
    length; missing tables (libjpeg would fill in standard ones); DC categories above 15; pictures that Pillow warns
    about; and for progressive files, whatever `scans.read_scans` rejects.

    Args:
        data: The file, from its first byte.

    Returns: The parsed header.

    Raises:
        NotWindowable: No window can be cut from the file.
    """
    if bytes(data[:3]) != b"\xff\xd8\xff":
        raise NotWindowable("it is not a JPEG file")
    tables = Tables()
    at = 2
    size = len(data)
    while True:
        if at + 4 > size:
            raise NotWindowable("the header ends too early")
        if data[at] != 0xFF:
            raise NotWindowable("there are bytes between the segments of the header")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1  # fill byte
            continue
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9:
            raise NotWindowable(f"it has an unexpected marker 0x{marker:02X}")
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if end > size or end < at + 4:
            raise NotWindowable("the header ends too early")
        if marker == 0xDA:
            return _finish(tables, data, at, end)
        tables.read(marker, bytes(data[at + 4 : end]))
        at = end


def _finish(tables: Tables, data: bytes | bytearray | memoryview, scan_at: int, scan_start: int) -> Header:
    frame, scan = tables.frame, bytes(data[scan_at:scan_start])
    if not frame:
        raise NotWindowable("a scan has no frame")
    if len(frame) < 10 or len(frame) != 10 + 3 * frame[9]:
        raise NotWindowable("the frame is damaged")
    precision, height, width, count = struct.unpack_from(">BHHB", frame, 4)
    if precision != 8:
        raise NotWindowable(f"it has {precision} bits per sample")
    if count not in (1, 3, 4):
        raise NotWindowable(f"it has {count} components")
    if height == 0 or width == 0:
        raise NotWindowable("the frame has no height or width")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise NotWindowable(f"it has {width} × {height} pixels, more than Pillow decodes without a warning")
    scans: tuple[Scan, ...] = ()
    if frame[1] == _PROGRESSIVE:
        scans = read_scans(data, scan_at, frame[10::3], tables)
        frame, scan = _as_baseline(frame, tables)
    components, mcu_width, mcu_height = _layout(frame[9:], scan)
    for _, _, quantisation, dc, ac in components:
        if quantisation not in tables.quantisation:
            raise NotWindowable("a quantisation table is missing")
        if not scans and (dc not in tables.dc or ac not in tables.ac):
            raise NotWindowable("a Huffman table is missing")
    return Header(
        width=width,
        height=height,
        components=components,
        mcu_width=mcu_width,
        mcu_height=mcu_height,
        restart_interval=tables.restart_interval,
        scan_start=scan_start,
        frame=frame,
        scan=scan,
        quantisation=tables.quantisation,
        dc=tables.dc,
        ac=tables.ac,
        scans=scans,
        jfif=tables.jfif,
        adobe=tables.adobe,
        # Pillow reads the density from Exif if JFIF has none, and fails on some damaged Exif data.
        doubtful=tables.doubtful or (tables.exif and not tables.density),
    )


def _as_baseline(frame: bytes, tables: Tables) -> tuple[bytes, bytes]:
    """Return the frame and the scan header of the baseline windows made from a progressive picture."""
    wide = any(table[0] >> 4 for table in tables.quantisation.values())
    pairs = zip(frame[10::3], _WRITTEN_WITH, strict=False)
    body = bytes([frame[9], *[byte for pair in pairs for byte in pair], 0, 63, 0])
    scan = struct.pack(">BBH", 0xFF, 0xDA, len(body) + 2) + body
    return bytes((0xFF, _EXTENDED if wide else _BASELINE)) + frame[2:], scan


@lru_cache(maxsize=64)  # the files of a data set share a handful of such segments
def _layout(frame_end: bytes, scan: bytes) -> tuple[tuple[Component, ...], int, int]:
    """Return the components and the size of an MCU, as the frame and scan segments declare them.

    Args:
        frame_end: The number of components, then three bytes for each.
        scan: The scan segment, including its marker.
    """
    count = frame_end[0]
    if len(scan) < 5 or len(scan) != 8 + 2 * scan[4]:
        raise NotWindowable("a scan header is damaged")
    if scan[4] != count:
        raise NotWindowable("it has several scans")
    identifiers = frame_end[1::3]
    if scan[5:-3:2] != identifiers or len(set(identifiers)) != count:
        raise NotWindowable("the components are out of order")
    components = tuple(
        [
            Component(frame_end[i + 1] >> 4, frame_end[i + 1] & 15, frame_end[i + 2], scan[j] >> 4, scan[j] & 15)
            for i, j in zip(range(1, len(frame_end), 3), range(6, len(scan) - 3, 2), strict=True)
        ]
    )
    widest, highest = max([c.h for c in components]), max([c.v for c in components])
    for h, v, *_ in components:
        if not (1 <= h <= 4 and 1 <= v <= 4):
            raise NotWindowable("sampling factors are out of range")
        if widest % h or highest % v:
            raise NotWindowable("sampling factors do not divide the largest one")
    if count == 1:
        return (components[0]._replace(h=1, v=1),), 8, 8
    if sum([c.h * c.v for c in components]) > MAX_BLOCKS_PER_MCU:
        raise NotWindowable("an MCU has more than 10 blocks")
    return components, 8 * widest, 8 * highest
