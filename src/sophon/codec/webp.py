"""webp: lossless compression of pictures."""

from __future__ import annotations

import io

from PIL import Image

from sophon.codec import layout
from sophon.codec.codec import Codec, Payload
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Kind, Spec, Value
from sophon.pipeline.ops.decode import open_picture

_MAX_SIDE = 16_383  # pixels; the format's own limit
_HEADER_BYTES = 25
_CHANNELS = {1: "L", 3: "RGB"}


class Webp(Codec):
    """A picture as lossless WebP, at the encoder's fastest setting.

    Byte layout: one byte with the number of channels (1 or 3), then a WebP file in the simple lossless format (RIFF,
    WEBP, VP8L). A gray picture is stored as three equal channels, which adds no bytes.
    """

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "webp"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""
        sides = spec.shape[:2]
        return spec.kind is Kind.IMAGE and not spec.mode and all(side is None or side <= _MAX_SIDE for side in sides)

    def encode(self, value: Image.Image) -> bytes:
        """Return the payload of a picture."""
        if max(value.size) > _MAX_SIDE:
            raise OpError(
                f"a picture of {value.width}×{value.height} is too large for WebP, whose limit is {_MAX_SIDE}.",
                remedy="Use another codec at this cut.",
            )
        out = io.BytesIO()
        out.write(bytes([len(value.getbands())]))
        # A fresh picture: save() would copy a decoded file's ICC profile and EXIF data into the payload.
        bare = layout.bare(value if value.mode == "RGB" else value.convert("RGB"))
        # For lossless WebP "quality" is effort; 20 is as fast as any, and more gains nothing at method 0.
        bare.save(out, "WEBP", lossless=True, quality=20, method=0)
        return out.getvalue()

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the picture in a payload."""
        view = memoryview(payload)
        found = _declared(view)
        layout.check(found, spec)
        try:
            picture = open_picture(view[1:], formats=("WEBP",))
            picture.load()
        except (OpError, OSError, ValueError, SyntaxError) as error:
            raise PayloadError(f"the WebP payload is damaged: {error}") from error
        if picture.mode != "RGB" or picture.size != (found.width, found.height):
            raise PayloadError(f"expected an RGB picture of {found}, got {picture.mode} {picture.size}")
        return layout.bare(picture if found.channels == 3 else picture.getchannel(0))


def _declared(view: memoryview) -> Spec:
    """Return the spec that a payload declares, from its first bytes: WebP's decoder allocates before it checks."""
    head = bytes(view[:_HEADER_BYTES])
    simple = len(head) == _HEADER_BYTES and head[1:5] == b"RIFF" and head[9:17] == b"WEBPVP8L" and head[21] == 0x2F
    if not simple or head[0] not in _CHANNELS:
        raise PayloadError(
            f"expected lossless WebP with 1 or 3 channels, got bytes that start with {head[:17].hex(' ')}"
        )
    bits = int.from_bytes(head[22:25], "little") | (view[25] << 24 if len(view) > 25 else 0)
    width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return Spec(Kind.IMAGE, (height, width, head[0]))
