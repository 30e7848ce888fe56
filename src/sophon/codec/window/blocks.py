"""Finds the MCUs and blocks of a JPEG that determine the pixels of a box.

libjpeg decodes blocks one by one and then enlarges subsampled components to the size of the picture. Where a component
is halved in a direction, libjpeg interpolates ("fancy upsampling"): pixel 2i takes samples i - 1 and i, pixel 2i + 1
takes i and i + 1, and at the borders of the picture the outermost sample stands in for the missing one. All other
ratios repeat samples. So a box needs one more sample of each halved component on either side, and where the box reaches
the right or bottom border of the picture, the window must end there too.
"""

from __future__ import annotations

from dataclasses import dataclass

from sophon.codec.window.header import Header
from sophon.errors import ConfigError

# (left, top, right, bottom); right and bottom are exclusive, as in Pillow.
Box = tuple[int, int, int, int]

# Up to this width of a component libjpeg repeats samples instead of interpolating (jdsample.c).
_NARROW = 2


@dataclass(frozen=True, slots=True)
class NeededBlocks:
    """The part of a JPEG that a box needs.

    Attributes:
        mcus: Box of the part, in MCUs.
        pixels: Box of the part, in pixels: the window.
        kept: For each component, the box of blocks whose samples determine the pixels.
    """

    mcus: Box
    pixels: Box
    kept: tuple[Box, ...]


def needed(header: Header, box: Box) -> NeededBlocks:
    """Return the smallest region that decodes to the pixels of a box.

    Args:
        header: Header of the whole picture.
        box: The box in pixels.

    Raises:
        ConfigError: The box is empty or not inside the picture.
    """
    left, top, right, bottom = box
    if not (0 <= left < right <= header.width and 0 <= top < bottom <= header.height):
        raise ConfigError(
            f"box {box} is empty or not inside the picture of {header.width} × {header.height} pixels; "
            "expected 0 ≤ left < right ≤ width and 0 ≤ top < bottom ≤ height"
        )
    mcu_width, mcu_height = header.mcu_width, header.mcu_height
    x0, y0 = header.mcus
    x1 = y1 = 0
    halved = False
    kept: dict[tuple[int, int], Box] = {}
    for h, v, *_ in header.components:
        if (h, v) in kept:
            continue
        across, down = mcu_width // (8 * h), mcu_height // (8 * v)
        bx0, bx1 = _blocks(left, right, header.width, across)
        by0, by1 = _blocks(top, bottom, header.height, down)
        kept[h, v] = (bx0, by0, bx1, by1)
        x0, x1 = min(x0, bx0 // h), max(x1, -(-bx1 // h))
        y0, y1 = min(y0, by0 // v), max(y1, -(-by1 // v))
        halved = halved or across == 2
    x_end = min(x1 * mcu_width, header.width)
    if halved and x0 and -(-(x_end - x0 * mcu_width) // 2) <= _NARROW:
        x0 -= 1
    pixels = (x0 * mcu_width, y0 * mcu_height, x_end, min(y1 * mcu_height, header.height))
    return NeededBlocks((x0, y0, x1, y1), pixels, tuple([kept[c.h, c.v] for c in header.components]))


def _blocks(start: int, end: int, size: int, ratio: int) -> tuple[int, int]:
    """Return the blocks of a component that pixels `start` to `end` of `size` need, in one direction."""
    samples = -(-size // ratio)
    if ratio == 2:
        first, last = (start - 1) >> 1, (end >> 1) + 1
    else:
        first, last = start // ratio, -(-end // ratio)
    return max(first, 0) // 8, -(-min(last, samples) // 8)
