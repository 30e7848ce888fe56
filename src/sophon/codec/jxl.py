"""jxl1, jxl3: lossless compression of pictures by JPEG XL, at two efforts.

Measured on crops of photos, 224 × 224: effort 1 gives about the bytes of `webp` for a third of its encoding time, and
effort 3 about 15 % fewer bytes for four times of it.

Concurrency: libjxl runs in the calling thread alone and releases the GIL; there is no state but what is cached here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from sophon.codec import layout
from sophon.codec.codec import Codec, Payload
from sophon.codec.jxl_header import declared
from sophon.errors import ConfigError, OpError, PayloadError
from sophon.pipeline import Kind, Spec, Value
from sophon.pipeline.checks import MAX_SIDE

_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
)  # what imagecodecs raises; its own errors are RuntimeErrors
_MODES = {1: "L", 3: "RGB"}
# libjxl's effort 1 makes a palette of few colours by hashing them, eight pixels at a time, and 0.11.2 takes one of two
# colours for the other where both come first in the same eight and have one hash; seen in a picture of 505 colours.
# Where it may have made a palette, what it gives is decoded again before it is sent.
_MANY_COLOURS = 1024
_ONE_NUMBER = np.array([1 << 16, 1 << 8, 1], np.int32)  # of a colour
_LOOKED_AT = 2048  # pixels: photos show that many colours in fewer of them


@cache
def _imagecodecs() -> Any:
    """Return the module `imagecodecs` if it is there and gives back what it was given; else None."""
    try:
        import imagecodecs  # heavy, and an extra that storage nodes may go without
    except ImportError:
        return None
    ramp = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3) * 37
    try:
        for effort in (1, 3):
            for pixels in (ramp, ramp[:, :, 0]):
                coded = _encoded(imagecodecs, pixels, effort)
                if not np.array_equal(imagecodecs.jpegxl_decode(coded, numthreads=1), pixels):
                    return None
    except (AttributeError, ImportError, *_ERRORS):  # built without JPEG XL
        return None
    return imagecodecs


def available() -> bool:
    """Return whether JPEG XL works here: it needs the package imagecodecs."""
    return _imagecodecs() is not None


def _encoded(module: Any, pixels: np.ndarray[Any, np.dtype[np.uint8]], effort: int) -> bytes:
    return bytes(module.jpegxl_encode(pixels, effort=effort, lossless=True, usecontainer=False, numthreads=1))


def _may_have_palette(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Return whether a picture may have so few colours that libjxl lists them; a few pixels tell of most photos."""
    if pixels.ndim == 2:
        return True
    flat = pixels.reshape(-1, 3)
    some = flat[:: max(1, len(flat) // _LOOKED_AT)].astype(np.int32)
    colours = np.sort(some @ _ONE_NUMBER)  # much quicker than a set of 2,000 numbers
    return int(np.count_nonzero(np.diff(colours))) < _MANY_COLOURS


class Jxl(Codec):
    """A picture as lossless JPEG XL.

    Byte layout: a JPEG XL codestream of one frame in modular coding, 8 bits per sample, one channel or three.

    Args:
        effort: libjxl's scale: 1 or 3.
    """

    def __init__(self, effort: int) -> None:
        self.effort = effort

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return f"jxl{self.effort}"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""
        sides = spec.shape[:2]
        is_known = spec.kind is Kind.IMAGE and not spec.mode  # RGB or L
        return is_known and all(side is None or side <= MAX_SIDE for side in sides) and available()

    def encode(self, value: Image.Image) -> bytes:
        """Return the payload of a picture."""
        module = _imagecodecs()
        if module is None:
            raise ConfigError(
                f"{self.name} needs the package imagecodecs; install it with pip install sophon-loader[jxl]"
            )
        pixels = np.asarray(value)
        try:
            coded = _encoded(module, pixels, self.effort)
            is_right = not (self.effort == 1 and _may_have_palette(pixels)) or np.array_equal(
                module.jpegxl_decode(coded, numthreads=1), pixels
            )
        except _ERRORS as error:
            raise OpError(
                f"JPEG XL cannot hold this picture: {error}.", remedy="Use another codec at this cut."
            ) from error
        if not is_right:
            raise OpError("libjxl gives another picture than it was given.", remedy="Use another codec at this cut.")
        return coded

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the picture of a payload."""
        # libjxl allocates what a file asks for: all that can make it large is looked at first.
        height, width, channels = declared(bytes(payload[:64]))
        layout.check(Spec(Kind.IMAGE, (height, width, channels)), spec)
        module = _imagecodecs()
        if module is None:
            raise PayloadError("JPEG XL, which needs the package imagecodecs; it is not installed here")
        pixels = np.empty((height, width) if channels == 1 else (height, width, channels), np.uint8)
        try:
            module.jpegxl_decode(payload, numthreads=1, out=pixels)
        except _ERRORS as error:
            raise PayloadError(f"damaged JPEG XL: {error}") from error
        return Image.frombytes(_MODES[channels], (width, height), pixels)
