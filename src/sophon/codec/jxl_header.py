"""Parses the header of a JPEG XL codestream (ISO/IEC 18181-1), as far as our payloads use it.

libjxl allocates as much as a file asks for: large frames, thousands of extra channels, frames that refer to others. So
the header is read first, and anything but one plain lossless frame of 8-bit pixels is rejected.
"""

from __future__ import annotations

from typing import Final

from sophon.errors import PayloadError

_SIGNATURE: Final = b"\xff\x0a"
# Number of bits in which a side is stored, by selector.
_SIDE_BITS: Final = (9, 13, 18, 30)
# Width : height, by ratio number; 0 means that the width is given explicitly.
_RATIOS: Final = ((0, 0), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_RGB: Final = 0
_GRAY: Final = 1


class _Bits:
    """Reads bits of the header, lowest first."""

    def __init__(self, head: bytes) -> None:
        self._value = int.from_bytes(head, "little")
        self._left = 8 * len(head)
        self._used = 0

    def take(self, count: int) -> int:
        if self._left < count:
            raise PayloadError("the JPEG XL payload ends within its header")
        self._left -= count
        self._used += count
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        return value

    def must(self, count: int, expected: int, what: str) -> None:
        found = self.take(count)
        if found != expected:
            raise PayloadError(f"expected plain lossless 8-bit JPEG XL, got one with {what}")

    def enum(self) -> int:
        selector = self.take(2)
        return selector if selector < 2 else (self.take(4) + 2 if selector == 2 else self.take(6) + 18)

    def align(self) -> None:
        self.take(-self._used % 8)


def declared(head: bytes) -> tuple[int, int, int]:
    """Return the height, width and channels that the first bytes of a payload declare.

    Raises:
        PayloadError: The header is not one that our encoder writes.
    """
    if head[:2] != _SIGNATURE:
        raise PayloadError(f"expected a JPEG XL codestream, got bytes that start with {head[:8].hex(' ')}")
    bits = _Bits(head[2:])
    height, width = _size(bits)
    channels = _channels(bits)
    bits.must(1, 1, "custom transforms")
    bits.align()
    _frame(bits)
    return height, width, channels


def _size(bits: _Bits) -> tuple[int, int]:
    small = bits.take(1)
    height = _side(bits, small)
    across, down = _RATIOS[bits.take(3)]
    return height, (height * across // down if across else _side(bits, small))


def _side(bits: _Bits, small: int) -> int:
    return 8 * (bits.take(5) + 1) if small else 1 + bits.take(_SIDE_BITS[bits.take(2)])


def _channels(bits: _Bits) -> int:
    """Read the metadata of the picture and return how many channels it has."""
    bits.must(1, 0, "lossy colours")
    bits.must(1, 0, "an orientation, a preview or an animation")
    bits.must(1, 0, "floating-point samples")
    bits.must(2, 0, "a different number of bits per sample")
    bits.take(1)  # whether 16 bits suffice for the decoder's buffers
    bits.must(2, 0, "extra channels")
    bits.must(1, 0, "lossy colours")
    space = _RGB if bits.take(1) else _colours(bits)
    bits.must(2, 0, "extensions")
    return 1 if space == _GRAY else 3


def _colours(bits: _Bits) -> int:
    """Read a colour encoding that is not the default and return its colour space."""
    bits.must(1, 0, "a colour profile")
    space = bits.enum()
    if space not in (_RGB, _GRAY) or bits.enum() != 1 or (space == _RGB and bits.enum() != 1):
        raise PayloadError("expected JPEG XL in gray or sRGB, got a different colour space")
    bits.must(1, 0, "a gamma")
    bits.enum()  # transfer function: not applied to lossless pictures
    bits.enum()  # rendering intent: not applied either
    return space


def _frame(bits: _Bits) -> None:
    """Read the header of the first frame, which must be the last and have the size of the picture."""
    bits.must(1, 0, "lossy pixels")
    bits.must(2, 0, "frames that others refer to")
    bits.must(1, 1, "lossy pixels")
    bits.must(2, 0, "noise, patches or splines")
    bits.must(1, 0, "lossy colours")
    bits.must(2, 0, "upsampled pixels")
    bits.take(2)  # size of groups
    bits.must(2, 0, "several passes")
    bits.must(1, 0, "a frame with its own size")
    bits.must(2, 0, "blended frames")
    bits.must(1, 1, "several frames")
