"""The segments of a JPEG file: tables and everything else that determines how its scans decode."""

from __future__ import annotations

import struct
from typing import Final

from sophon.codec.window.refusal import NotWindowable

_SOF_REASONS: Final = {
    0xC3: "it is lossless",
    0xC5: "it is hierarchical",
    0xC6: "it is hierarchical",
    0xC7: "it is hierarchical",
    0xC9: "it uses arithmetic coding",
    0xCA: "it uses arithmetic coding",
    0xCB: "it is lossless",
    0xCC: "it uses arithmetic coding",
    0xCD: "it is hierarchical",
    0xCE: "it is hierarchical",
    0xCF: "it is hierarchical",
    0xDC: "it has a DNL marker",
    0xDE: "it is hierarchical",
    0xDF: "it is hierarchical",
}


class Tables:
    """Collects segments one by one.

    Attributes:
        frame: The SOF segment, including its marker.
        quantisation: Table number → precision and number byte, then the values.
        dc: Table number → 16 counts, then the values.
        ac: Table number → 16 counts, then the values.
        restart_interval: MCUs between restart markers, 0 for none.
        jfif: Whether there is a JFIF segment.
        adobe: The 12 bytes of the Adobe segment that name the colour transform; empty without one.
        density: Whether the JFIF segment gives the density.
        exif: Whether there is an Exif segment.
        doubtful: Whether there are other segments that Pillow reads and may fail on.
    """

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
        """Read a segment before the first scan."""
        if marker == 0xC4:
            self._huffman(body)
        elif marker == 0xDB:
            self._quantisation(body)
        elif marker in (0xC0, 0xC1, 0xC2):
            if self.frame:
                raise NotWindowable("it has two frames")
            self.frame = struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
        elif marker == 0xDD:
            self._restart_interval(body)
        elif 0xE0 <= marker <= 0xEF:
            self._application(marker, body)
        elif marker != 0xFE:
            raise NotWindowable(_SOF_REASONS.get(marker, f"it has an unexpected marker 0x{marker:02X}"))

    def read_between(self, marker: int, body: bytes) -> None:
        """Read a segment between two scans.

        libjpeg keeps the quantisation table that is current at a component's first scan, so a different table is
        rejected.
        """
        if marker == 0xC4:
            self._huffman(body)
        elif marker == 0xDD:
            self._restart_interval(body)
        elif marker == 0xDB:
            known = dict(self.quantisation)
            self._quantisation(body)
            if self.quantisation != known:
                raise NotWindowable("quantisation tables change between scans")
        elif marker != 0xFE:
            raise NotWindowable(f"it has an unexpected marker 0x{marker:02X} between scans")

    def _restart_interval(self, body: bytes) -> None:
        if len(body) != 2:
            raise NotWindowable("a restart interval is damaged")
        self.restart_interval = int.from_bytes(body, "big")

    def _application(self, marker: int, body: bytes) -> None:
        if marker == 0xE0 and body.startswith(b"JFIF"):
            if len(body) < 14 or body[4]:
                raise NotWindowable("a JFIF segment is damaged")
            self.jfif = True
            self.density = self.density or body[7] in (1, 2)
        elif marker == 0xEE and body.startswith(b"Adobe"):
            if len(body) < 12:
                raise NotWindowable("an Adobe segment is damaged")
            self.adobe = body[:12]
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            self.exif = True
        elif marker == 0xE2 and body.startswith(b"ICC_PROFILE\0"):
            if len(body) < 14:
                raise NotWindowable("an ICC segment is damaged")
        elif (marker == 0xE2 and body.startswith(b"MPF\0")) or (marker == 0xED and body.startswith(b"Photoshop")):
            self.doubtful = True

    def _quantisation(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            precision, number = divmod(body[at], 16)
            end = at + 1 + 64 * (1 + precision)
            if precision > 1 or number > 3 or end > len(body):
                raise NotWindowable("a quantisation table is damaged")
            self.quantisation[number] = body[at:end]
            at = end

    def _huffman(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            kind, number = divmod(body[at], 16)
            values = sum(body[at + 1 : at + 17])
            end = at + 17 + values
            if kind > 1 or number > 3 or values > 256 or end > len(body):
                raise NotWindowable("a Huffman table is damaged")
            table = body[at + 1 : end]
            if kind:
                self.ac[number] = table
            elif max(table[16:], default=0) > 15:
                raise NotWindowable("a DC table has categories above 15")
            else:
                self.dc[number] = table
            at = end
