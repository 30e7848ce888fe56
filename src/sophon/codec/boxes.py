"""Reads a sample's boxes and other numeric values from fields and columns, and prepares those that draws depend on.

The node and the trainer read boxes with the same code, so an op whose random draws depend on boxes (`RandomIoUCrop`)
makes the same draws on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sophon.codec.codec import Payload
from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.spec import Objects, image
from sophon.store.fields import BOXES

Numbers = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Size = tuple[int, int]  # height, width

_MOST_BOXES = 100_000  # in one picture; more means a damaged file, or a node that tries to keep a trainer busy


def with_sight(pipeline: Pipeline, key: Key, data: Payload, size: Size, boxes: tuple[str, str, Any] | None) -> Key:
    """Return a key with the size and boxes that a pipeline's ops may use in their draws.

    Args:
        pipeline: The pipeline of the sample.
        key: Key of the sample.
        data: The picture file, used if the size is not known yet.
        size: Size of the picture; (0, 0) if unknown.
        boxes: Name, kind and value of the sample's boxes; None if it has none.

    Raises:
        OpError: The boxes are damaged; the message names the field.
    """
    if boxes is None or not pipeline.looks:
        return key
    if 0 in size:
        decode = pipeline.ops[0]
        assert isinstance(decode, Decode)
        try:
            picture = decode.open(bytes(data))
        except OpError:
            return key  # decoding gives a better message
        size = picture.height, picture.width
    name, kind, found = boxes
    try:
        read, form = read_boxes(kind.partition(":")[2], found, size)
    except OpError as error:
        raise of_field(name, error, key) from error
    return replace(key, sight=image(*size, 3).with_objects(corners(read, form)))


def boxes_among(fields: Sequence[tuple[str, str]], values: Sequence[Any]) -> tuple[str, str, Any] | None:
    """Return the name, kind and value of the first field that holds boxes."""
    for (name, kind), value in zip(fields, values, strict=True):
        if kind.partition(":")[0] == BOXES:
            return name, kind, value
    return None


def of_field(name: str, error: OpError, key: Key) -> OpError:
    """Return an error with the field and sample filled in."""
    return OpError(f"field {name!r}: {error.problem}", remedy=error.remedy, sample=int(key.sample))


def read_boxes(form: str, found: Any, size: Size) -> tuple[Floats, str]:
    """Return boxes in pixels, and their format.

    Args:
        form: Format of the boxes; relative boxes become centre-and-size boxes in pixels.
        found: Bytes, or the value of a column.
        size: Size of the picture.

    Raises:
        OpError: The value does not hold boxes of this picture.
    """
    boxes = read_numbers(found, "f4", 4).reshape(-1, 4)
    if len(boxes) > _MOST_BOXES:
        raise OpError(
            f"the picture has {len(boxes):,} boxes, more than the limit of {_MOST_BOXES:,}.", remedy="Check the file."
        )
    if form == "relative":
        height, width = size
        boxes = (boxes.astype(np.float64) * (width, height, width, height)).astype(np.float32)
        form = "cxcywh"
    _check_inside(boxes, form, size)
    return boxes, form


def corners(boxes: Floats, form: str) -> Objects:
    """Return left, top, right and bottom of boxes."""
    a, b, c, d = boxes.astype(np.float64).T
    sides = {
        "xyxy": (a, b, c, d),
        "xywh": (a, b, a + c, b + d),
        "cxcywh": (a - c / 2, b - d / 2, a + c / 2, b + d / 2),
    }[form]
    return np.stack(sides, axis=1)


def _check_inside(boxes: Floats, form: str, size: Size) -> None:
    """Raise if a box lies entirely outside the picture; clamping those that cross the border is up to the recipe."""
    if not len(boxes):
        return
    left, top, right, bottom = corners(boxes, form).T
    outside = (left > size[1]) | (top > size[0]) | (right < 0) | (bottom < 0)
    if outside.any():
        which = int(np.flatnonzero(outside)[0])
        numbers = ", ".join(f"{number:g}" for number in boxes[which])
        raise OpError(
            f"box {which} ({form}: {numbers}) lies outside the picture of {size[1]}×{size[0]} pixels.",
            remedy="Correct it, or give the format of the boxes.",
        )


def read_numbers(found: Any, dtype: str, each: int) -> Numbers:
    """Return numbers from bytes or a column value; their count must be a multiple of a given number."""
    if isinstance(found, bytes | memoryview):
        if len(found) % np.dtype(dtype).itemsize:
            raise OpError(f"expected a multiple of {np.dtype(dtype).itemsize} bytes, got {len(found)}.")
        array = np.frombuffer(found, f"<{dtype}").astype(dtype)
    else:
        try:
            array = np.asarray([] if found is None else found, np.float64 if dtype == "f4" else np.int64)
            array = array.astype(dtype).reshape(-1)
        except (TypeError, ValueError, OverflowError) as error:
            raise OpError(f"expected numbers, got {found!r:.60}.") from error
    if len(array) % each:
        raise OpError(f"expected {each} numbers for each object, got {len(array)} in total.")
    if dtype == "f4" and not np.isfinite(array).all():
        raise OpError("expected finite numbers, got NaN or infinity.")
    return array
