"""The payload of a sample whose fields belong together: picture, masks, boxes.

The picture is cut as usual. Its payload comes with the other fields and with the picture's size before the first op,
which the trainer needs to repeat the draws of ops that ran elsewhere. If the crop has been made, or its window is sent,
only the part of a mask that the first crop needs is sent; everything else is small and sent unchanged.

Layout: a bundle (`bundle`) of the picture's payload, height and width as two uint32, 0 if unknown,
and each further field. A mask is one of::

    0 | the file
    1 | top, left: uint32 | a PNG of that part

Samples that are sent raw are bundles of their files, as the store gives them.
"""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import numpy as np
from PIL import Image

from sophon.bundle import pack, unpack
from sophon.codec.codec import Payload
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Box, Key, Pipeline, Rng
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.decode import Decode, open_picture
from sophon.pipeline.ops.picture import MAX_PIXELS
from sophon.pipeline.spec import Spec, image
from sophon.store.fields import MASK

Mask = np.ndarray[Any, np.dtype[Any]]
Size = tuple[int, int]  # height, width

_SIZE = struct.Struct("<II")
_PLACE = struct.Struct("<BII")
_WHOLE, _PART = 0, 1
_MODES = ("1", "L", "P", "I;16", "I")
_WORTHWHILE_SHARE = 0.8  # share of the area: re-encoding more of a mask saves almost nothing
_MARGIN = 2  # pixels: nearest neighbours of a mask and filters of a picture round differently


def packed(pipeline: Pipeline, parts: list[memoryview], made: Payload, size: Size, box: Box | None) -> bytes:
    """Return the payload of a sample, given the payload of its picture.

    Args:
        pipeline: The pipeline of the sample.
        parts: Further fields of the sample, unchanged.
        made: The payload of the picture.
        size: Size of the picture; (0, 0) if unknown.
        box: The part of masks that is needed; None for the whole mask.
    """
    fields = [
        _sent_mask(part, size, box) if kind == MASK else part
        for (_, kind), part in zip(pipeline.fields, parts, strict=True)
    ]
    return pack([bytes(made), _SIZE.pack(*size), *fields])


def taken_apart(pipeline: Pipeline, payload: Payload, is_raw: bool) -> tuple[memoryview, Size, list[memoryview]]:
    """Return the picture's payload, the picture's size if it is known, and the further fields."""
    fields = len(pipeline.fields)
    if is_raw:
        first, *others = unpack(payload, 1 + fields)
        return first, (0, 0), others
    first, size, *others = unpack(payload, 2 + fields)
    if len(size) != _SIZE.size:
        raise PayloadError(f"expected the size of a picture, got {len(size)} bytes")
    height, width = _SIZE.unpack(size)
    decode = pipeline.ops[0]
    if isinstance(decode, Decode) and height * width > decode.max_pixels:  # since masks of that size would be allocated
        raise PayloadError(
            f"the picture has {height:,} × {width:,} pixels, more than the limit of {decode.max_pixels:,}"
        )
    return first, (height, width), others


def mask_box(pipeline: Pipeline, key: Key, size: Size, stop: int | None) -> Box | None:
    """Return the part of masks that the first crop among ops[:stop] needs; None for the whole mask."""
    spec = image(*size, 3).with_objects(None if key.sight is None else key.sight.objects)
    passed: list[tuple[Op, Spec, Params]] = []
    reach = 0.0  # source pixels per result pixel, for the only resize that is allowed
    for position, op in enumerate(pipeline.ops[1:stop], start=1):
        params = op.draw(Rng(key, position), spec) if op.random else None
        box = op.box_needed(spec, params)
        if box is not None:
            for earlier, its_spec, its_params in reversed(passed):
                box = earlier.box_before(box, its_spec, its_params)
                if box is None:
                    return None
            return _wider(box, _MARGIN + math.ceil(reach), size)
        if not op.passes:
            return None
        made = op.passed(spec, params)
        if made.shape != spec.shape:
            if reach:
                return None  # a second resize would multiply the rounding of the first
            reach = max(spec.height / made.height, spec.width / made.width, 1.0)
        passed.append((op, spec, params))
        spec = made
    return None


def _wider(box: Box, margin: int, size: Size) -> Box:
    top, left = max(0, box[0] - margin), max(0, box[1] - margin)
    bottom, right = min(size[0], box[0] + box[2] + margin), min(size[1], box[1] + box[3] + margin)
    return top, left, bottom - top, right - left


def _sent_mask(data: memoryview, size: Size, box: Box | None) -> bytes:
    """Return the form in which a mask is sent: a part of it, if that is smaller than the file."""
    whole = bytes([_WHOLE]) + data
    if box is None or box[2] * box[3] > _WORTHWHILE_SHARE * size[0] * size[1]:
        return whole
    mask = read_mask(data, size)
    if mask.dtype == np.int32:
        return whole
    top, left, height, width = box
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mask[top : top + height, left : left + width])).save(file, "PNG")
    part = _PLACE.pack(_PART, top, left) + file.getvalue()
    return part if len(part) < len(whole) else whole


def received_mask(data: memoryview, size: Size, is_raw: bool) -> Mask:
    """Return a mask of the picture's size; if only a part was sent, it is surrounded by zeros.

    Raises:
        OpError: The data is not a mask of this picture.
        PayloadError: The data does not have the form that a node sends.
    """
    if is_raw:
        return read_mask(data, size)
    if len(data) < 1:
        raise PayloadError("the mask has no bytes")
    if data[0] == _WHOLE:
        return read_mask(data[1:], size)
    if data[0] != _PART or len(data) < _PLACE.size:
        raise PayloadError(f"expected a mask or a part of one, got {bytes(data[:4])!r}")
    _, top, left = _PLACE.unpack_from(data)
    part = _part(data[_PLACE.size :], (size[0] - top, size[1] - left))
    height, width = part.shape
    mask = np.zeros(size, part.dtype)
    mask[top : top + height, left : left + width] = part
    return mask


def _part(data: memoryview, room: Size) -> Mask:
    """Return the part of a mask that a node has sent as PNG, if it fits into so many rows and columns."""
    try:
        with open_picture(data, _most_pixels(room), formats=("PNG",)) as picture:
            if picture.height <= room[0] and picture.width <= room[1]:
                return _array(picture)
            found = f"{picture.width}×{picture.height}"
    except Exception as error:  # whatever Pillow raises, the node has sent it
        raise PayloadError(f"the part of the mask is damaged: {error}") from error
    raise PayloadError(f"a {found} part lies beyond the border of the mask, which leaves {room[1]}×{room[0]} pixels")


def read_mask(data: Payload, size: Size) -> Mask:
    """Return a mask's value for every pixel, as uint8, uint16 or int32 depending on its file.

    Raises:
        OpError: The mask cannot be decoded, has several channels, or has a size other than the picture's.
    """
    try:
        picture = open_picture(data, _most_pixels(size))
    except OpError as error:
        raise OpError(f"the mask cannot be decoded: {error.problem}", remedy=error.remedy) from error
    try:
        with picture:
            # Checked before decoding: a picture of the wrong size may be very large.
            if (picture.height, picture.width) != size:
                found, expected = (f"{width}×{height}" for height, width in ((picture.height, picture.width), size))
                raise OpError(f"the mask has {found} pixels, but its picture has {expected}.")
            return _array(picture)
    except OpError:
        raise
    except Exception as error:
        raise OpError(f"the mask cannot be decoded: {error}.") from error


def _most_pixels(size: Size) -> int:
    """Return the bound for opening a mask; its exact size is compared afterwards, which gives a better message."""
    return max(MAX_PIXELS, size[0] * size[1])


def _array(picture: Image.Image) -> Mask:
    if picture.mode not in _MODES:
        raise OpError(
            f"the mask has mode {picture.mode}, expected one channel ({', '.join(_MODES)}).",
            remedy="Save it with class numbers instead of colours.",
        )
    array = np.array(picture)
    return array.astype(np.uint8) if array.dtype == bool else array
