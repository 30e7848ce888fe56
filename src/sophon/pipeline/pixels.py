"""Resizing and float look-up in the optional extension `_pixels`, with the same bits as Pillow and NumPy.

The extension is used only if it was built, the processor is one on which its arithmetic is known to match Pillow's, and
it has reproduced Pillow's bits on a few synthetic pictures in this process; otherwise Pillow does the work.

Concurrency: pure functions; the check runs once per process, possibly in two threads at once, with the same outcome.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, _imaging

if TYPE_CHECKING:
    from sophon.pipeline import _pixels as kernel
else:
    try:
        from sophon.pipeline import _pixels as kernel
    except ImportError:  # built without a compiler
        kernel = None

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Size = tuple[int, int]  # width, height
PillowBox = tuple[int, int, int, int]  # left, top, right, bottom
DownFirst = Callable[[Size, Size], bool]
"""Given a size and a target size: whether the height is resized first."""

# On other processors compilers may fuse a multiplication and an addition, in Pillow or here, and then round only once.
_MACHINES = ("x86_64", "AMD64")

# Pictures and sizes, as (width, height), on which the extension is compared with Pillow: smaller, larger, wider,
# taller, tiny ones, and those at which Pillow 13 changes the order of its steps.
_CHECKED: tuple[tuple[Size, Size], ...] = (
    ((37, 29), (24, 24)),
    ((61, 90), (33, 17)),
    ((90, 61), (17, 33)),
    ((5, 4), (24, 24)),
    ((16, 1), (7, 3)),
    ((23, 23), (23, 11)),
    ((30, 36), (25, 26)),
    ((30, 37), (25, 26)),
    ((20, 28), (25, 26)),
    ((20, 24), (25, 26)),
)

_NOTHING = Image.Image()


def _tall_first(size: Size, target: Size) -> bool:
    """The rule of Pillow 13 and later: the height first if it shrinks by much more than the width."""
    (width, height), (to_width, to_height) = size, target
    return height > to_height and height - to_height > 2 * (width - to_width)


def _never(size: Size, target: Size) -> bool:  # noqa: ARG001 - as the other rule
    """The rule of Pillow 12 and earlier: always the width first."""
    return False


def crop_and_resize(picture: Image.Image, box: PillowBox, size: tuple[int, int]) -> Image.Image:
    """Return ``picture.crop(box).resize(size, BILINEAR)`` for a box inside the picture.

    Pillow's ``resize(box=…)`` would also take one step, but its filter reads pixels outside the box and gives different
    bits.
    """
    rule = pillows_rule()
    if rule is not None and (resized := _resize(picture, box, size, rule)) is not None:
        return resized
    if box != (0, 0, *picture.size):
        picture = picture.crop(box)
    return picture.resize(size, Image.Resampling.BILINEAR)


def write_planes(
    picture: Image.Image,
    box: PillowBox,
    out: np.ndarray[Any, np.dtype[Any]],
    table: Floats | None = None,
    flips: tuple[bool, bool] = (False, False),
) -> bool:
    """Write the channels of a box one by one into `out` (3, height, width); return False if that is not possible.

    If its size differs from that of `out`, the box is first resized as by `crop_and_resize`; then it is mirrored.

    Args:
        picture: The picture.
        box: The box.
        out: The array for the result: bytes, or floats if there is a table.
        table: The result for each value of each channel, of shape (3, 256); None to write the bytes themselves.
        flips: Whether left and right, and top and bottom, are exchanged.
    """
    rule = pillows_rule()
    dtype = np.uint8 if table is None else np.float32
    if rule is None or picture.mode != "RGB" or out.dtype != dtype or not out.flags.c_contiguous:
        return False
    source = arrow(picture)
    if source is None or out.ndim != 3 or len(out) != 3 or not out.size or not _is_inside(box, picture):
        return False
    down_first = rule((box[2] - box[0], box[3] - box[1]), (out.shape[2], out.shape[1]))
    if table is None:
        kernel.separate(source, picture.size, box, down_first, *flips, out)
    else:
        kernel.look_up(source, picture.size, box, down_first, *flips, out, table)
    return True


def separate(picture: Image.Image, out: Bytes) -> bool:
    """Write the channels of a picture one by one into `out` (3, height, width); return False if not possible."""
    return out.shape == (3, picture.height, picture.width) and write_planes(picture, (0, 0, *picture.size), out)


def look_up(picture: Image.Image, table: Floats, out: Floats) -> bool:
    """Write the `table` (3, 256) value of each pixel into `out` (3, height, width); return False if not possible."""
    return out.shape == (3, picture.height, picture.width) and write_planes(picture, (0, 0, *picture.size), out, table)


@lru_cache(maxsize=1)
def pillows_rule() -> DownFirst | None:
    """Return the order in which Pillow resizes here; None if the extension is missing or gives different bits."""
    # Rows of a picture follow each other without gaps unless the user has set PILLOW_ALIGNMENT.
    if kernel is None or platform.machine() not in _MACHINES or _imaging.get_alignment() != 1:
        return None
    noise = np.random.Generator(np.random.Philox(1))
    rules: list[DownFirst] = [_tall_first, _never]
    for size, target in _CHECKED:
        picture = Image.fromarray(noise.integers(0, 256, (size[1], size[0], 3), np.uint8))
        expected = picture.resize(target, Image.Resampling.BILINEAR).tobytes()
        for rule in tuple(rules):
            resized = _resize(picture, (0, 0, *size), target, rule)
            if resized is None or resized.tobytes() != expected:
                rules.remove(rule)
    return rules[0] if rules else None


def _resize(picture: Image.Image, box: PillowBox, size: Size, rule: DownFirst) -> Image.Image | None:
    if picture.mode != "RGB" or not _is_inside(box, picture) or min(size) < 1:
        return None
    # Written in place: Pillow cannot adopt pixels without copying them, and nothing else holds this picture yet.
    result = blank(size)
    source, target = arrow(picture), arrow(result)
    if source is None or target is None:
        return None
    kernel.resize(source, picture.size, box, target, size, rule((box[2] - box[0], box[3] - box[1]), size))
    result.info = picture.info.copy()
    return result


def _is_inside(box: PillowBox, picture: Image.Image) -> bool:
    left, top, right, bottom = box
    width, height = picture.size
    return 0 <= left < right <= width and 0 <= top < bottom <= height


def blank(size: Size) -> Image.Image:
    """Return a picture with undefined pixels; `Image.new` would fill it with black, which takes 25 µs more."""
    return _NOTHING._new(_imaging.new("RGB", size))


def arrow(picture: Image.Image) -> object:
    """Return the pixels of a picture as an Arrow array without copying them, or None if they lie in several pieces."""
    try:
        return picture.__arrow_c_array__()[1]
    except ValueError:
        return None
