"""Index of a label's foreground: a few boxes per class, so that crops can be drawn without reading any voxels.

The boxes are made once (`sophon index`) from the connected components of each class, and are a field of the sample, so
both ends of a link draw the same crops. As in MLPerf's recipe for 3D U-Net, the two largest components of each class
are kept.

A file is JSON::

    {"format": 1, "sizes": [256, 256, 96], "label_bytes": 40213, "boxes": [[1, 30, 90, 12, 71, 133, 60], …]}

A box lists its class, its starts along x, y and z, and its ends. The size of the label file is stored so that the index
of a different label is not used by mistake.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from sophon.errors import ConfigError, OpError
from sophon.pipeline.ops.volumes.file import AXES, Voxels

Boxes = np.ndarray[Any, np.dtype[np.float64]]

_FORMAT = 1
_PIECES = 2  # components kept per class, as in MLPerf
MOST_BYTES = 1 << 16
_MOST_BOXES = 255 * _PIECES
_REMEDY = "Run `sophon index` on the data set again."


def found_in(label: Voxels) -> list[list[int]]:
    """Return the boxes of the largest components of each class, ordered by class and then by size.

    Args:
        label: Classes as (1, x, y, z) in uint8; 0 is the background.
    """
    try:
        from scipy import ndimage
    except ImportError as error:
        raise ConfigError("finding the foreground needs scipy: pip install 'sophon-loader[volumes]'") from error
    boxes = []
    for number in np.unique(label):
        if number == 0:
            continue
        pieces, _ = ndimage.label(label[0] == number)
        found = [piece for piece in ndimage.find_objects(pieces) if piece is not None]
        sizes = [math.prod(side.stop - side.start for side in piece) for piece in found]
        for which in np.argsort(sizes, kind="stable")[-_PIECES:]:
            sides = found[which]
            boxes.append([int(number), *(int(side.start) for side in sides), *(int(side.stop) for side in sides)])
    return boxes


def to_bytes(boxes: list[list[int]], sizes: tuple[int, ...], label_bytes: int) -> bytes:
    """Return an index as the contents of a file."""
    said = {"format": _FORMAT, "sizes": list(sizes), "label_bytes": label_bytes, "boxes": boxes}
    return json.dumps(said).encode()


def from_bytes(data: bytes | memoryview, sizes: tuple[int, ...], label_bytes: int | None) -> Boxes:
    """Return the boxes in a file, one per row: class, starts, stops.

    Args:
        data: The file.
        sizes: Sizes of the label.
        label_bytes: Size of the label file; None if only a part of the file is available.

    Raises:
        OpError: The index is damaged, or belongs to a different label.
    """
    if len(data) > MOST_BYTES:
        raise OpError(f"the foreground index has {len(data):,} bytes, which is too many.", remedy=_REMEDY)
    try:
        said = json.loads(bytes(data))
        if said["format"] != _FORMAT:
            raise ValueError(f"it has format {said['format']!r:.20}")
        rows = said["boxes"]
        whole = all(type(number) is int for row in rows for number in row)
        boxes = np.array(rows, np.float64).reshape(-1, 1 + 2 * AXES)
        if not whole or len(boxes) > _MOST_BOXES:
            raise ValueError("expected boxes of whole numbers")
        low, high = boxes[:, 1 : 1 + AXES], boxes[:, 1 + AXES :]
        told, its_bytes = tuple(said["sizes"]), said["label_bytes"]
        if (low < 0).any() or (low >= high).any() or (high > np.array(told, np.float64)).any():
            raise ValueError("a box lies beyond the border")
        if not ((boxes[:, 0] >= 1) & (boxes[:, 0] <= 255)).all():
            raise ValueError("a class is not in 1 … 255")
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise OpError(f"the foreground index is damaged: {error!s:.100}.", remedy=_REMEDY) from error
    if told != sizes or (label_bytes is not None and its_bytes != label_bytes):
        raise OpError(
            f"the foreground index is for a label of {told} voxels in {its_bytes} bytes, but this label has {sizes} "
            f"in {label_bytes}.",
            remedy=_REMEDY,
        )
    return boxes
