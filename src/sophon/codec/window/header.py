"""What comes before the entropy-coded data of a JPEG file, and whether a window may be cut from it.

The rules are those under which libjpeg (through Pillow) is certain to decode the whole file, and to decode the part
the same way alone: what it would reject, repair or treat specially is refused here. The list is in `parse`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from sophon.errors import Error

# Pillow warns beyond this many pixels and raises beyond twice as many (Image.MAX_IMAGE_PIXELS as shipped).
MAX_PIXELS: Final = 1024 * 1024 * 1024 // 4 // 3
# libjpeg's own bound on either side.
MAX_SIDE: Final = 65500
MAX_BLOCKS_PER_MCU: Final = 10

_SOF_NAMES: Final = {
    0xC2: "progressive",
    0xC3: "lossless",
    0xC5: "hierarchical",
    0xC6: "hierarchical",
    0xC7: "hierarchical",
    0xC9: "arithmetic coding",
    0xCA: "arithmetic coding",
    0xCB: "lossless",
    0xCC: "arithmetic coding",
    0xCD: "hierarchical",
    0xCE: "hierarchical",
    0xCF: "hierarchical",
    0xDC: "a DNL marker",
    0xDE: "hierarchical",
    0xDF: "hierarchical",
}


class NotWindowable(Error):  # noqa: N818 - an answer, not a fault: the caller falls back to a smaller cut
    """No window that is certain to have the same pixels can be cut from this file.

    Args:
        reason: What was found, as a noun phrase.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no window: {reason}; send the whole file instead")

    def __reduce__(self) -> tuple[type[NotWindowable], tuple[str]]:
        return (NotWindowable, (self.reason,))


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
    """A baseline or extended sequential JPEG with one scan, up to its entropy-coded data.

    Attributes:
        width: Width of the picture in pixels.
        height: Height of the picture in pixels.
        components: Colour components in the order of frame and scan. A lone component has one block in an MCU: its
            factors are given as 1, which is how it decodes, whatever the frame says.
        mcu_width: Width of an MCU in pixels.
        mcu_height: Height of an MCU in pixels.
        restart_interval: MCUs between restart markers, 0 for none.
        scan_start: Offset of the first entropy-coded byte.
        frame: The SOF segment with its marker.
        scan: The SOS segment with its marker.
        quantisation: Table number → precision and number byte, then the values.
        dc: Table number → 16 counts, then the values.
        ac: Table number → 16 counts, then the values.
        jfif: Whether a JFIF segment says that three components are YCbCr.
        adobe: The 12 bytes of the Adobe segment that name the colour transform, or none.
        doubtful: Whether Pillow reads more of this file's metadata than is checked here, and may fail on it.
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
    jfif: bool
    adobe: bytes | None
    doubtful: bool

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs per row, and rows of them."""
        return -(-self.width // self.mcu_width), -(-self.height // self.mcu_height)


class _Tables:
    """Collects the segments of a header one by one."""

    def __init__(self) -> None:
        self.frame = b""
        self.quantisation: dict[int, bytes] = {}
        self.dc: dict[int, bytes] = {}
        self.ac: dict[int, bytes] = {}
        self.restart_interval = 0
        self.jfif = False
        self.adobe: bytes | None = None
        self.density = False
        self.exif = False
        self.doubtful = False

    def read(self, marker: int, body: bytes) -> None:
        if marker == 0xC4:
            self._huffman(body)
        elif marker == 0xDB:
            self._quantisation(body)
        elif marker in (0xC0, 0xC1):
            if self.frame:
                raise NotWindowable("two frames")
            self.frame = struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
        elif marker == 0xDD:
            if len(body) != 2:
                raise NotWindowable("a damaged restart interval")
            self.restart_interval = int.from_bytes(body, "big")
        elif 0xE0 <= marker <= 0xEF:
            self._application(marker, body)
        elif marker != 0xFE:
            raise NotWindowable(_SOF_NAMES.get(marker, f"an unexpected marker 0x{marker:02X}"))

    def _application(self, marker: int, body: bytes) -> None:
        if marker == 0xE0 and body.startswith(b"JFIF"):
            if len(body) < 14 or body[4]:
                raise NotWindowable("a damaged JFIF segment")
            self.jfif = True
            self.density = self.density or body[7] in (1, 2)
        elif marker == 0xEE and body.startswith(b"Adobe"):
            if len(body) < 12:
                raise NotWindowable("a damaged Adobe segment")
            self.adobe = body[:12]
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            self.exif = True
        elif marker == 0xE2 and body.startswith(b"ICC_PROFILE\0"):
            if len(body) < 14:
                raise NotWindowable("a damaged ICC segment")
        elif (marker == 0xE2 and body.startswith(b"MPF\0")) or (marker == 0xED and body.startswith(b"Photoshop")):
            self.doubtful = True

    def _quantisation(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            precision, number = divmod(body[at], 16)
            end = at + 1 + 64 * (1 + precision)
            if precision > 1 or number > 3 or end > len(body):
                raise NotWindowable("a damaged quantisation table")
            self.quantisation[number] = body[at:end]
            at = end

    def _huffman(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            kind, number = divmod(body[at], 16)
            values = sum(body[at + 1 : at + 17])
            end = at + 17 + values
            if kind > 1 or number > 3 or values > 256 or end > len(body):
                raise NotWindowable("a damaged Huffman table")
            table = body[at + 1 : end]
            if kind:
                self.ac[number] = table
            elif max(table[16:], default=0) > 15:
                raise NotWindowable("a DC table with categories above 15")
            else:
                self.dc[number] = table
            at = end


def parse(data: bytes | bytearray | memoryview) -> Header:
    """Read the header of a JPEG file.

    It refuses: anything but 8-bit baseline or extended sequential Huffman coding; a scan that does not hold all
    components in the order of the frame; 2 components (Pillow has no mode for them); heights left to a DNL marker;
    sampling factors that do not divide the largest one; bytes between segments; segments of a wrong length; missing
    tables (libjpeg would fill in standard ones); DC categories above 15; pictures that Pillow warns about.

    Args:
        data: The file, from its first byte.

    Returns:
        What the header says.

    Raises:
        NotWindowable: It is not a file from which a window can be cut.
    """
    if bytes(data[:3]) != b"\xff\xd8\xff":
        raise NotWindowable("not a JPEG file")
    tables = _Tables()
    at = 2
    size = len(data)
    while True:
        if at + 4 > size:
            raise NotWindowable("a header that ends too early")
        if data[at] != 0xFF:
            raise NotWindowable("bytes between the segments of the header")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1  # fill byte
            continue
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9:
            raise NotWindowable(f"an unexpected marker 0x{marker:02X}")
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if end > size or end < at + 4:
            raise NotWindowable("a header that ends too early")
        if marker == 0xDA:
            return _finish(tables, bytes(data[at:end]), end)
        tables.read(marker, bytes(data[at + 4 : end]))
        at = end


def _finish(tables: _Tables, scan: bytes, scan_start: int) -> Header:
    frame = tables.frame
    if not frame:
        raise NotWindowable("a scan without a frame")
    if len(frame) < 10 or len(frame) != 10 + 3 * frame[9]:
        raise NotWindowable("a damaged frame")
    precision, height, width, count = struct.unpack_from(">BHHB", frame, 4)
    if precision != 8:
        raise NotWindowable(f"{precision} bits per sample")
    if count not in (1, 3, 4):
        raise NotWindowable(f"{count} components")
    if height == 0 or width == 0:
        raise NotWindowable("no height or width in the frame")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise NotWindowable(f"a picture of {width} × {height} pixels, more than Pillow decodes without a warning")
    components, mcu_width, mcu_height = _layout(frame[9:], scan)
    for _, _, quantisation, dc, ac in components:
        if quantisation not in tables.quantisation:
            raise NotWindowable("a missing quantisation table")
        if dc not in tables.dc or ac not in tables.ac:
            raise NotWindowable("a missing Huffman table")
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
        jfif=tables.jfif,
        adobe=tables.adobe,
        # Pillow reads the density from Exif where JFIF has none, and gives up on some damaged ones.
        doubtful=tables.doubtful or (tables.exif and not tables.density),
    )


@lru_cache(maxsize=64)  # the files of a data set share a handful of them
def _layout(frame_end: bytes, scan: bytes) -> tuple[tuple[Component, ...], int, int]:
    """Return the components and the size of an MCU, by the end of the frame segment and the scan segment.

    Args:
        frame_end: The number of components, then three bytes for each.
        scan: The scan segment with its marker.
    """
    count = frame_end[0]
    if len(scan) < 5 or len(scan) != 8 + 2 * scan[4]:
        raise NotWindowable("a damaged scan header")
    if scan[4] != count:
        raise NotWindowable("several scans")
    identifiers = frame_end[1::3]
    if scan[5:-3:2] != identifiers or len(set(identifiers)) != count:
        raise NotWindowable("components out of order")
    components = tuple(
        [
            Component(frame_end[i + 1] >> 4, frame_end[i + 1] & 15, frame_end[i + 2], scan[j] >> 4, scan[j] & 15)
            for i, j in zip(range(1, len(frame_end), 3), range(6, len(scan) - 3, 2), strict=True)
        ]
    )
    widest, highest = max([c.h for c in components]), max([c.v for c in components])
    for h, v, *_ in components:
        if not (1 <= h <= 4 and 1 <= v <= 4):
            raise NotWindowable("sampling factors out of range")
        if widest % h or highest % v:
            raise NotWindowable("sampling factors that do not divide the largest one")
    if count == 1:
        return (components[0]._replace(h=1, v=1),), 8, 8
    if sum([c.h * c.v for c in components]) > MAX_BLOCKS_PER_MCU:
        raise NotWindowable("more than 10 blocks in an MCU")
    return components, 8 * widest, 8 * highest
