"""The scans of a progressive JPEG: which coefficients each of them contains, and whether all coefficients are complete.

libjpeg does its best with a file whose scans break the rules, and smooths the blocks of a file that ends before
its coefficients are complete. Neither works with part of a picture, so such files are rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sophon.codec.window.refusal import NotWindowable
from sophon.codec.window.segments import Tables

if TYPE_CHECKING:
    from sophon.codec.window import _progressive as kernel
else:
    try:
        from sophon.codec.window import _progressive as kernel
    except ImportError:  # built without a compiler
        kernel = None

# Encoders write about ten. Each scan may touch every block, so a file with thousands of scans, which the rules allow,
# would take seconds.
MAX_SCANS: Final = 64
# 8-bit pictures have no coefficient of 2^11 or more.
MAX_SHIFT: Final = 10

_COEFFICIENTS: Final = 64
_UNKNOWN: Final = -1
_SCAN: Final = 0xDA
_END: Final = 0xD9


class Scan(NamedTuple):
    """One scan of a progressive JPEG.

    Attributes:
        start: Offset of its first entropy-coded byte.
        end: Offset of the marker after its last entropy-coded byte.
        interval: MCUs between restart markers, 0 for none.
        components: The components that the scan contains, by their position in the frame.
        tables: The Huffman table of each component: 16 counts, then the values. Empty for a refinement of DC, whose
            bits are not Huffman-coded.
        first: First coefficient in zigzag order; 0 is DC.
        last: Last coefficient.
        before: How many low bits were missing before this scan; 0 if it is the first scan of these coefficients.
        after: How many low bits are missing after this scan.
    """

    start: int
    end: int
    interval: int
    components: tuple[int, ...]
    tables: tuple[bytes, ...]
    first: int
    last: int
    before: int
    after: int


def read_scans(data: bytes | bytearray | memoryview, at: int, identifiers: bytes, tables: Tables) -> tuple[Scan, ...]:
    """Read the headers of all scans, up to the end of the picture.

    It rejects: more than `MAX_SCANS` scans; scans that repeat coefficients, have them out of order or leave bits
    missing; components out of order; quantisation tables that change between scans; missing Huffman tables; segments
    between scans other than tables, restart intervals and comments; a file without an EOI marker.

    Args:
        data: The file.
        at: Offset of the first scan's header.
        identifiers: Identifiers of the components, in frame order.
        tables: The tables before the first scan; those between scans are added to it.

    Raises:
        NotWindowable: No window can be cut from the file.
    """
    if kernel is None:
        raise NotWindowable("it is progressive, and the extension was not built")
    missing = [[_UNKNOWN] * _COEFFICIENTS for _ in identifiers]
    scans: list[Scan] = []
    while True:
        if at + 2 > len(data):
            raise NotWindowable("the scans end too early")
        marker = data[at + 1]
        if data[at] != 0xFF:
            raise NotWindowable("there are bytes between scans")
        if marker == 0xFF:
            at += 1  # fill byte
            continue
        if marker == _END:
            break
        end = at + 2 + (data[at + 2] << 8 | data[at + 3]) if at + 4 <= len(data) else 0
        if end > len(data) or end < at + 4:
            raise NotWindowable("the scans end too early")
        body = bytes(data[at + 4 : end])
        at = end
        if marker != _SCAN:
            tables.read_between(marker, body)
            continue
        if len(scans) == MAX_SCANS:
            raise NotWindowable(f"it has more than {MAX_SCANS} scans")
        at = kernel.scan_end(data, end)
        scans.append(_scan(body, end, at, identifiers, tables))
        _note(scans[-1], missing)
    if any(any(bits) for bits in missing):
        raise NotWindowable("the scans leave coefficients incomplete")
    return tuple(scans)


def _scan(body: bytes, start: int, end: int, identifiers: bytes, tables: Tables) -> Scan:
    count = body[0] if body else 0
    if not 0 < count <= len(identifiers) or len(body) != 4 + 2 * count:
        raise NotWindowable("a scan header is damaged")
    first, last, bits = body[-3:]
    before, after = divmod(bits, 16)
    components = tuple([identifiers.find(body[i]) for i in range(1, 1 + 2 * count, 2)])
    if list(components) != sorted(set(components)) or components[0] < 0:
        raise NotWindowable("the components are out of order")
    if first > last or last >= _COEFFICIENTS or (last if first == 0 else count > 1):
        raise NotWindowable("a scan has coefficients that cannot be combined")
    if after > MAX_SHIFT or (before and before != after + 1):
        raise NotWindowable("a scan has an impossible precision")
    if first == 0 and before:
        found: list[bytes | None] = [b""] * count
    else:
        numbers = body[2 : 2 + 2 * count : 2]
        found = [tables.ac.get(n & 15) if first else tables.dc.get(n >> 4) for n in numbers]
    known = tuple([table for table in found if table is not None])
    if len(known) != count:
        raise NotWindowable("a Huffman table is missing")
    return Scan(start, end, tables.restart_interval, components, known, first, last, before, after)


def _note(scan: Scan, missing: list[list[int]]) -> None:
    """Record how many bits are missing after a scan, if the scan is allowed at this point."""
    expected = scan.before or _UNKNOWN
    for component in scan.components:
        bits = missing[component]
        if scan.first and bits[0] == _UNKNOWN:
            raise NotWindowable("an AC scan comes before the DC scan")
        if any(have != expected for have in bits[scan.first : scan.last + 1]):
            raise NotWindowable("the scans repeat coefficients or have them out of order")
        bits[scan.first : scan.last + 1] = [scan.after] * (scan.last + 1 - scan.first)
