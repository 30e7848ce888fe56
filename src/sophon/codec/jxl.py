"""jxl1, jxl3: lossless compression of pictures with JPEG XL, at two effort levels.

Measured on 224 × 224 crops of photos: effort 1 gives about as many bytes as `webp` in a third of its encoding time, and
effort 3 about 15 % fewer bytes in four times the encoding time.

Effort 1 of libjxl 0.11 is not lossless: where a picture has at most 512 colours it writes a palette, looks colours up
by a 16-bit hash, and misses a collision of two colours that occur only within eight pixels of each other, so one of
them is replaced by the other. Therefore the result for a picture with few colours is decoded and compared, and the
picture is encoded at effort 3 if it differs.

Concurrency: libjxl runs only in the calling thread and releases the GIL; the only state is what is cached here.
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
from sophon.version import install_command

_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
)  # what imagecodecs raises; the errors that it defines are RuntimeErrors
_MODES = {1: "L", 3: "RGB"}
_FEW_COLOURS = 1024  # twice the colours for which libjxl writes a palette
_LOOKED_AT = 2048  # pixels: enough for a photo to show many colours


@cache
def _imagecodecs() -> Any:
    """Return the module `imagecodecs` if it is installed and passes a round trip; otherwise None."""
    try:
        import imagecodecs  # heavy, and an optional extra
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


def _has_many_colours(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Return whether some of the pixels already have more colours than a palette; the whole picture may have more."""
    if pixels.ndim != 3:
        return False
    some = pixels.reshape(-1, 3)
    some = some[:: max(1, len(some) // _LOOKED_AT)].astype(np.uint16)
    # Colours with the same number count as one, so the true count is never lower.
    seen = np.zeros(1 << 16, np.bool_)
    seen[(some[:, 0] << 8 | some[:, 1]) ^ (some[:, 2] << 4)] = True
    return int(np.count_nonzero(seen)) > _FEW_COLOURS


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
                f"{self.name} needs the package imagecodecs, which is not installed; run: {install_command('jxl')}"
            )
        pixels = np.asarray(value)
        try:
            coded = _encoded(module, pixels, self.effort)
            if self.effort > 1 or _has_many_colours(pixels):
                return coded
            is_same = np.array_equal(module.jpegxl_decode(coded, numthreads=1), pixels)
            return coded if is_same else _encoded(module, pixels, 3)
        except _ERRORS as error:
            raise OpError(
                f"JPEG XL cannot hold this picture: {error}.", remedy="Use another codec at this cut."
            ) from error

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the picture in a payload."""
        # libjxl allocates whatever a file asks for, so everything that can make it large is checked first.
        height, width, channels = declared(bytes(payload[:64]))
        layout.check(Spec(Kind.IMAGE, (height, width, channels)), spec)
        module = _imagecodecs()
        if module is None:
            raise PayloadError("the payload is JPEG XL, which needs the package imagecodecs; it is not installed here")
        pixels = np.empty((height, width) if channels == 1 else (height, width, channels), np.uint8)
        try:
            module.jpegxl_decode(payload, numthreads=1, out=pixels)
        except _ERRORS as error:
            raise PayloadError(f"the JPEG XL payload is damaged: {error}") from error
        return Image.frombytes(_MODES[channels], (width, height), pixels)
