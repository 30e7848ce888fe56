"""Picture windows: the part of a JPEG file that the next crop needs, as a JPEG file.

Projection pushdown in the compressed domain: no pixel is decoded near storage, and the trainer decodes only that part.
"""

from __future__ import annotations

import struct
from contextlib import suppress

from PIL import Image

from sophon.codec.codec import AheadCodec, Payload
from sophon.codec.window.header import Header, parse
from sophon.codec.window.indexes import INDEXES, Indexes
from sophon.codec.window.jpeg import Index, Window, available, check_metadata, cut
from sophon.codec.window.refusal import NotWindowable, WholeNeeded
from sophon.errors import ArtifactError, OpError, PayloadError
from sophon.pipeline import Box, Key, Kind, Part, Pipeline, Spec, Trace, can_crop_early, needed_box
from sophon.pipeline.jpeg import libjpeg
from sophon.pipeline.ops.decode import Decode, check_jpeg, is_upright, kept_metadata

_MARKER = 0xFF
_FRAMES = (0xC0, 0xC1)
_BEFORE_FRAME = (0xE0, 0xEE, 0xDB)  # segments that a window has before the frame: JFIF, Adobe, quantisation tables
_FRAME = struct.Struct(">HHB")  # height, width, components
_COLOURS = 3
_PLACE = struct.Struct("<4I")  # top, left, height and width of the whole picture

# Cutting a picture down before decoding it pays off only if enough is left out. Measured on photos of ImageNet and
# OpenImages, both ways cost the same at these shares of the area: without an index the walk along the Huffman codes
# costs about a quarter of decoding them all, with one almost nothing. In a progressive file all scans are read down to
# the bottom of the window; only the inverse transform of the rest is saved.
_WORTHWHILE_SHARE = 0.45
_WORTHWHILE_SHARE_INDEXED = 0.8
_WORTHWHILE_SHARE_PROGRESSIVE = 0.65


class JpegWindow(AheadCodec):
    """A baseline JPEG with only the MCUs that the next ops need.

    Byte layout: four uint32, little-endian: the row and column of the whole picture at which the window starts, and the
    height and width of the whole picture; then a JPEG file.

    Args:
        indexes: The indexes to use; by default those of this process.
    """

    def __init__(self, indexes: Indexes | None = None) -> None:
        self._indexes = indexes

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "window"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded: files, where the extension was built."""
        return spec.kind is Kind.ENCODED and available()

    def looks_ahead(self, pipeline: Pipeline) -> bool:
        """Return whether the ops crop before any of them needs the whole picture."""
        return can_crop_early(pipeline)

    def encode_ahead(self, data: Payload, pipeline: Pipeline, key: Key, trace: Trace | None = None) -> bytes:
        """Return the window that one pass of a sample needs."""
        indexes = INDEXES if self._indexes is None else self._indexes
        index = indexes.find(data)
        if index is None:  # a file with the same bytes was checked before it was indexed
            check_jpeg(data)
        try:
            header = parse(data)
            if trace is not None:
                trace.size = header.height, header.width
            _check_metadata(data, pipeline)
            box = box_of(pipeline, key, header)
            if box is None:
                raise WholeNeeded("this pass needs the whole picture.")
            window = _cut(data, header, box, indexes, None if header.scans else index)
        except NotWindowable as reason:  # the whole file is sent instead
            raise OpError(f"{reason}.") from reason
        return payload_of(window)

    def decode_ahead(self, payload: Payload, pipeline: Pipeline) -> Part:
        """Return the part of the picture that a window holds."""
        view = memoryview(payload)
        decode = pipeline.ops[0]
        if len(view) < _PLACE.size or not isinstance(decode, Decode):
            raise PayloadError(f"expected a window for a pipeline that decodes, got {len(view)} bytes")
        top, left, height, width = _PLACE.unpack_from(view)
        try:
            check_jpeg(view[_PLACE.size :])
            piece = _decoded(view[_PLACE.size :], decode)
        except OpError as error:
            raise PayloadError(f"the window is damaged: {error}") from error
        if top + piece.height > height or left + piece.width > width:
            raise PayloadError(
                f"a {piece.width}×{piece.height} window lies beyond the border of a {width}×{height} picture"
            )
        return Part(piece, top, left, height, width)

    def cut_down(
        self, data: Payload, pipeline: Pipeline, key: Key, stop: int | None = None, trace: Trace | None = None
    ) -> Part | None:
        """Decode only the part of a file that ops[:stop] need in one pass."""
        return cut_down(data, pipeline, key, stop, trace)


def cut_down(
    data: Payload, pipeline: Pipeline, key: Key, stop: int | None = None, trace: Trace | None = None
) -> Part | None:
    """Decode only the part of a file that ops[:stop] need in one pass; None if that is impossible or does not pay off.

    The trace records whether part of the file can be decoded on its own.
    """
    decode = pipeline.ops[0]
    if not (available() and isinstance(decode, Decode) and can_crop_early(pipeline, stop)):
        return None
    try:
        if trace is not None:
            trace.windowable = False
        index = INDEXES.find(data)
        if index is None:  # a file with the same bytes was checked before it was indexed
            check_jpeg(data)
        header = parse(data)
        if trace is not None:
            trace.windowable = True
        _check_metadata(data, pipeline)
        box = box_of(pipeline, key, header, stop)
        if box is None:
            return None
        if box[2] * box[3] > _worthwhile_share(header, index) * header.width * header.height:
            return _whole(data, header, decode)
        window = _cut(data, header, box, INDEXES, index)
        picture = _own_decoded(window, header, decode)
        return Part(picture, window.top, window.left, window.full_height, window.full_width)
    except (NotWindowable, OpError):
        return None  # decoding the whole file runs into the same problem and gives a better message


def _whole(data: Payload, header: Header, decode: Decode) -> Part | None:
    """Return the whole picture if Pillow is certain to decode its file in the same way."""
    check_metadata(data, header)
    if decode.mode != "RGB" or decode.metadata or header.scans or len(header.components) != _COLOURS:
        return None
    picture = libjpeg.decoded(data, (header.width, header.height))
    return None if picture is None else Part(picture, 0, 0, header.height, header.width)


def _worthwhile_share(header: Header, index: Index | None) -> float:
    """Return the share of the area up to which it pays off to cut a picture down before decoding."""
    if header.scans:
        return _WORTHWHILE_SHARE_PROGRESSIVE
    return _WORTHWHILE_SHARE if index is None else _WORTHWHILE_SHARE_INDEXED


def _own_decoded(window: Window, header: Header, decode: Decode) -> Image.Image:
    """Return the picture in a window that was cut here, from a file with this header."""
    if decode.mode == "RGB" and len(header.components) == _COLOURS:
        picture = libjpeg.decoded(window.jpeg, (window.width, window.height))
        if picture is not None:
            return picture
    return _decoded(window.jpeg, decode)


def _decoded(jpeg: Payload, decode: Decode) -> Image.Image:
    """Return the picture in a window: the result of `decode`, without Pillow's search for metadata."""
    size = _colour_size(jpeg)
    if decode.mode == "RGB" and size is not None and size[0] * size[1] <= decode.max_pixels:
        picture = libjpeg.decoded(jpeg, size)
        if picture is not None:
            return picture
        # If libjpeg rejects it, Decode, below, gives a better message.
        with suppress(OSError, ValueError):
            return Image.frombytes("RGB", size, jpeg, "jpeg", "RGB", "")
    return decode.apply(bytes(jpeg))


def _colour_size(jpeg: Payload) -> tuple[int, int] | None:
    """Return (width, height) of a baseline JPEG with three components, or None if it is anything else.

    Pillow's decoder fills the buffer it is given, and trusts that the file has this size. So the size is read from the
    first frame that libjpeg will find, with nothing between segments that the two could interpret differently.
    """
    at, end = 2, len(jpeg) - 10
    while at < end and jpeg[at] == _MARKER:
        marker = jpeg[at + 1]
        if marker in _FRAMES:
            height, width, components = _FRAME.unpack_from(jpeg, at + 5)
            return (width, height) if components == _COLOURS and height and width else None
        if marker not in _BEFORE_FRAME:
            return None
        at += 2 + (jpeg[at + 2] << 8 | jpeg[at + 3])
    return None


def _check_metadata(data: Payload, pipeline: Pipeline) -> None:
    """Raise for a file whose metadata Decode or a later step may use: a window has none."""
    decode = pipeline.ops[0]
    if isinstance(decode, Decode) and decode.upright and not is_upright(decode.open(bytes(data)).info):
        raise NotWindowable("it has to be rotated according to its EXIF orientation")
    if isinstance(decode, Decode) and decode.metadata and kept_metadata(decode.open(bytes(data))) is not None:
        raise NotWindowable("a later step may use its EXIF orientation or colour profile")


def payload_of(window: Window) -> bytes:
    """Return the payload of a window."""
    return _PLACE.pack(window.top, window.left, window.full_height, window.full_width) + window.jpeg


def box_of(pipeline: Pipeline, key: Key, header: Header, stop: int | None = None) -> Box | None:
    """Return the box of a picture that one pass needs; None if it needs the whole picture.

    Raises:
        NotWindowable: The picture has more pixels than the limit.
    """
    decode = pipeline.ops[0]
    if isinstance(decode, Decode) and header.width * header.height > decode.max_pixels:
        raise NotWindowable("it has more pixels than the limit")
    box = needed_box(pipeline, key, header.height, header.width, stop)
    return None if box is None or 0 in box[2:] else box  # the op itself reports an empty box


def _cut(data: Payload, header: Header, box: Box, indexes: Indexes, index: Index | None) -> Window:
    """Cut a window; a file that is seen for the first time is indexed, which takes as long as walking it would.

    Progressive files have no index: their scans are read every time.
    """
    top, left, height, width = box
    if index is None and not header.scans:
        index = indexes.build(data, header)
    pillow_box = (left, top, left + width, top + height)
    try:
        # The index was made from these bytes, or found by their name: no need to hash them again.
        return cut(data, pillow_box, index, header, trusted=True)
    except (ArtifactError, NotWindowable):
        if index is None:
            raise
        return cut(data, pillow_box, None, header)  # the index is wrong; a walk works without one
