"""JPEG files decoded by the libjpeg inside Pillow's wheel, straight into a picture's memory.

Pillow gives libjpeg a buffer of one row and copies every row into a picture that it has first filled with black.
Calling the same library with the picture's own memory takes a fifth less time for a small photo, and gives the same
bits because it is the same code. This is done only if the extension `_libjpeg` was built, Pillow is a wheel with its
own libjpeg, and the results for a few pictures have matched Pillow's bits in this process. A file that makes libjpeg
warn is left to Pillow, which decides what to do with it.

Concurrency: pure functions; the check runs once per process, possibly in two threads at once, with the same outcome.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import PIL
from PIL import Image

from sophon.pipeline.pixels import Size, arrow, blank

if TYPE_CHECKING:
    from sophon.pipeline.jpeg import _libjpeg as kernel
else:
    try:
        from sophon.pipeline.jpeg import _libjpeg as kernel
    except ImportError:  # built without a compiler
        kernel = None

# Size and chroma sampling, in Pillow's numbers, of the pictures on which Pillow and the extension are compared.
_CHECKED: tuple[tuple[Size, int], ...] = (((37, 29), 0), ((50, 33), 1), ((64, 48), 2), ((17, 70), 2), ((3, 2), 2))


def decoded(data: bytes | memoryview, size: Size) -> Image.Image | None:
    """Return the picture in a JPEG file with three components.

    Args:
        data: The file.
        size: Width and height from its header.

    Returns:
        The picture that Pillow would give; None if Pillow has to decode the file.
    """
    return _decoded(data, size) if available() else None


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether the library was found and gives Pillow's bits."""
    path = _library()
    if kernel is None or path is None or not kernel.open_library(str(path).encode()):
        return False
    noise = np.random.Generator(np.random.Philox(2))
    for size, sampling in _CHECKED:
        pixels = noise.integers(0, 256, (size[1], size[0], 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90, subsampling=sampling)
        picture = _decoded(file.getvalue(), size)
        with Image.open(file) as expected:
            if picture is None or picture.tobytes() != expected.tobytes():
                return False
    return True


def _library() -> Path | None:
    """Return the path of the libjpeg in Pillow's wheel, or None unless there is exactly one."""
    found = list((Path(PIL.__file__).parent.parent / "pillow.libs").glob("libjpeg-*.so*"))
    return found[0] if len(found) == 1 else None


def _decoded(data: bytes | memoryview, size: Size) -> Image.Image | None:
    picture = blank(size)
    target = arrow(picture)
    return picture if target is not None and kernel.decode(data, size, target) else None
