"""window: the part of a JPEG file that the next crop needs, as a JPEG file.

Projection pushdown in the compressed domain: no pixel is decoded near storage, and the trainer decodes only the part.
"""

from __future__ import annotations

import struct

from sophon.codec.codec import AheadCodec, Payload
from sophon.codec.window.header import NotWindowable, parse
from sophon.codec.window.jpeg import Window, available, cut
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Key, Kind, Part, Pipeline, Spec, can_crop_early, needed_box
from sophon.pipeline.ops.decode import Decode

_PLACE = struct.Struct("<4I")  # top, left, height and width of the whole picture

# Walking the Huffman codes costs about a quarter of decoding them all, so that cutting a picture down before decoding
# it pays only where enough is left out: measured, both ways cost the same at 40 % of the area of ImageNet photos and at
# 50 % of the larger ones of OpenImages.
_WORTHWHILE_SHARE = 0.45


class WindowCodec(AheadCodec):
    """A baseline JPEG made of just those MCUs that the next ops need.

    Byte layout: four uint32, little-endian: row and column of the whole picture at which the window begins, height and
    width of the whole; then a JPEG file.
    """

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "window"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded: files, where the extension was built."""
        return spec.kind is Kind.ENCODED and available()

    def looks_ahead(self, pipeline: Pipeline) -> bool:
        """Return whether the ops crop before they look at all of a picture."""
        return can_crop_early(pipeline)

    def encode_ahead(self, data: Payload, pipeline: Pipeline, key: Key) -> bytes:
        """Return the window that one pass of a sample needs."""
        window = _cut(data, pipeline, key, 1.0)
        if window is None:
            raise OpError("this pass needs all of the picture.", remedy="Send the whole file.")
        return _PLACE.pack(window.top, window.left, window.full_height, window.full_width) + window.jpeg

    def decode_ahead(self, payload: Payload, pipeline: Pipeline) -> Part:
        """Return the part of the picture that a window holds."""
        view = memoryview(payload)
        decode = pipeline.ops[0]
        if len(view) < _PLACE.size or not isinstance(decode, Decode):
            raise PayloadError(f"expected a window for a pipeline that decodes, got {len(view)} bytes")
        top, left, height, width = _PLACE.unpack_from(view)
        try:
            piece = decode.apply(bytes(view[_PLACE.size :]))
        except OpError as error:
            raise PayloadError(f"a damaged window: {error}") from error
        if top + piece.height > height or left + piece.width > width:
            raise PayloadError(f"a window of {piece.width}×{piece.height} beyond the border of {width}×{height} pixels")
        return Part(piece, top, left, height, width)


def cut_down(data: Payload, pipeline: Pipeline, key: Key) -> Part | None:
    """Decode only the part of a file that one pass needs, where that is cheaper; None to decode all of it."""
    decode = pipeline.ops[0]
    if not (available() and isinstance(decode, Decode) and can_crop_early(pipeline)):
        return None
    try:
        window = _cut(data, pipeline, key, _WORTHWHILE_SHARE)
        if window is None:
            return None
        return Part(decode.apply(window.jpeg), window.top, window.left, window.full_height, window.full_width)
    except OpError:
        return None  # whatever it is, decoding the whole file meets it and has the better words for it


def _cut(data: Payload, pipeline: Pipeline, key: Key, largest_share: float) -> Window | None:
    """Return the window that a pass needs, or None if it is more than that share of the picture."""
    decode = pipeline.ops[0]
    try:
        header = parse(data)
        if isinstance(decode, Decode) and header.width * header.height > decode.max_pixels:
            raise OpError(f"{header.width}×{header.height} pixels are more than the limit.")
        box = needed_box(pipeline, key, header.height, header.width)
        if box is None:
            return None
        top, left, height, width = box
        if height * width > largest_share * header.height * header.width:
            return None
        return cut(data, (left, top, left + width, top + height), header=header)
    except NotWindowable as reason:
        raise OpError(f"{reason}.") from reason
