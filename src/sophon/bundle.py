"""Bundles: the fields of one sample, one after another, as one byte string.

A sample with one field is its file. A sample with several fields (a picture with its mask, a recording with its text)
is a bundle of them, on disk reads, on the link and in caches alike; code that only passes samples on need not know what
they contain.

Layout, little-endian::

    4 bytes "SFB1" | number of parts: uint32 | bytes of each part: uint64 … | the parts

The reader of a bundle knows how many parts to expect, and trusts none of its numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sophon.errors import PayloadError

MOST_PARTS = 64
_MAGIC = b"SFB1"
_HEAD = struct.Struct("<4sI")


def head_bytes(parts: int) -> int:
    """Return the overhead in bytes of a bundle with this many parts; a single part is not wrapped."""
    return 0 if parts == 1 else _HEAD.size + 8 * parts


def pack(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return parts as a bundle; a single part is returned unchanged."""
    if len(parts) == 1:
        return bytes(parts[0])
    head = _HEAD.pack(_MAGIC, len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return b"".join((head, *parts))


def unpack(data: bytes | memoryview, parts: int) -> list[memoryview]:
    """Return the parts of a bundle, as views of its memory.

    Raises:
        PayloadError: The bundle does not have this many parts, or its sizes do not add up.
    """
    view = memoryview(data)
    if parts == 1:
        return [view]
    start = head_bytes(parts)
    if len(view) < start or _HEAD.unpack_from(view) != (_MAGIC, parts):
        raise PayloadError(f"expected a bundle of {parts} fields, got {bytes(view[:8])!r}")
    sizes = struct.unpack_from(f"<{parts}Q", view, _HEAD.size)
    if start + sum(sizes) != len(view):
        raise PayloadError(f"the sizes of a bundle's {parts} fields do not add up to its {len(view):,} bytes")
    found = []
    for size in sizes:
        found.append(view[start : start + size])
        start += size
    return found


def divided(data: bytes, others: int) -> tuple[bytes, list[memoryview]]:
    """Return the first part of a bundle and the others, which are passed on unchanged; all data if there are none."""
    if not others:
        return data, []
    first, *rest = unpack(data, 1 + others)
    return bytes(first), rest
