"""Part, Canvas and Signal: the part of a value that the next ops need.

A *box* is an interval on each axis of a value: the starts of all intervals, then their lengths. A picture has two axes:
its boxes are (top, left, height, width). Sound has one: (start, length). A volume has three. Channels are not an axis.

An op that crops needs only a box of its input, and which one is known from the picture's size and the op's parameters,
before anything is decoded. `region.needed_box` traces that box back through the ops between Decode and the crop; a
decoder that decodes only that box passes a `Part` to the pipeline, which continues with the same bits.

An op that resizes, or that works on tensors whose bits may depend on their memory layout, needs a value of the full
size. It gets a `Canvas`: the part in its place, with meaningless values around it. A `Part` and a `Canvas` know which
box is valid, and refuse to give anything else.

Sound and volumes are arrays in either case, so one class, `Signal`, serves as both the whole and a part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from sophon.errors import OpError

Box: TypeAlias = tuple[int, ...]  # starts of all axes, then lengths; of a picture top, left, height and width


def holds(outer: Box, inner: Box) -> bool:
    """Return whether one box lies inside another."""
    axes = len(outer) // 2
    return all(
        outer[axis] <= inner[axis] and inner[axis] + inner[axes + axis] <= outer[axis] + outer[axes + axis]
        for axis in range(axes)
    )


def count_of(box: Box) -> int:
    """Return how many pixels, or other elements, a box has."""
    return math.prod(box[len(box) // 2 :])


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a picture, and its position in the whole.

    Args:
        picture: The piece.
        top: Row of the whole at which the piece begins.
        left: Column of the whole at which the piece begins.
        height: Height of the whole.
        width: Width of the whole.
    """

    picture: Image.Image
    top: int
    left: int
    height: int
    width: int

    @property
    def box(self) -> Box:
        """The box of the piece in the whole."""
        return self.top, self.left, self.picture.height, self.picture.width

    def holds(self, box: Box) -> bool:
        """Return whether a box of the whole lies inside this piece."""
        return holds(self.box, box)

    def canvas(self) -> Canvas:
        """Return a picture of the full size that is black around the piece."""
        whole = Image.new(self.picture.mode, (self.width, self.height))
        whole.paste(self.picture, (self.left, self.top))
        return Canvas(whole, self.box)


@dataclass(frozen=True, slots=True)
class Canvas:
    """A picture or tensor of the full size, of which only a box is valid.

    Args:
        value: Picture or tensor of the full size.
        box: The box in which the values are those of the whole picture.
    """

    value: Any
    box: Box

    def require(self, box: Box | None) -> None:
        """Raise unless a box is valid; None stands for the whole picture."""
        if box is None or not holds(self.box, box):
            raise missing(box)


@dataclass(frozen=True, slots=True)
class Signal:
    """Sound or a volume, as numbers along axes, with channels: the whole, or a piece and its position in the whole.

    Args:
        array: The numbers: (channels, …), then one dimension for each axis.
        kind: Value of a `spec.Kind`, "audio" or "volume".
        scale: Scale of each axis: samples per second for sound, spacing in mm for a volume.
        starts: Where the piece begins in the whole, by axis.
        sizes: Size of the whole, by axis; empty if the array is the whole.
        label: Class of each voxel of a volume, as (1, …), for the same piece; None if there is no label.
        objects: Objects that guide random draws, in the coordinates of the whole (`spec.Spec.objects`).
    """

    array: np.ndarray[Any, np.dtype[Any]]
    kind: str
    scale: tuple[float, ...] = ()
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    label: np.ndarray[Any, np.dtype[Any]] | None = None
    objects: np.ndarray[Any, np.dtype[np.float64]] | None = None

    @property
    def whole_sizes(self) -> tuple[int, ...]:
        """Size of the whole, by axis."""
        return self.sizes or self.array.shape[1:]

    @property
    def box(self) -> Box:
        """The box of the piece in the whole."""
        return (*(self.starts or (0,) * (self.array.ndim - 1)), *self.array.shape[1:])

    @property
    def nbytes(self) -> int:
        """Size of the array and the label in bytes."""
        return int(self.array.nbytes) + (0 if self.label is None else int(self.label.nbytes))

    def piece(self, box: Box) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a view of a box of the whole, which must lie inside this piece."""
        return self.beside(self.array, box)

    def beside(self, array: np.ndarray[Any, np.dtype[Any]], box: Box) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the same box of another array at this position, such as the label."""
        if not holds(self.box, box):
            raise missing(box)
        axes = len(box) // 2
        starts = self.starts or (0,) * axes
        bounds = zip(starts, box[:axes], box[axes:], strict=True)
        return array[(slice(None), *(slice(at - start, at - start + length) for start, at, length in bounds))]

    def require_whole(self) -> None:
        """Raise unless this is the whole."""
        if self.array.shape[1:] != self.whole_sizes:
            raise missing(None)


def missing(box: Box | None) -> OpError:
    """Return the error for a box that was not decoded."""
    if box is None:
        return OpError("the whole value is needed, but only a part of it was decoded.")
    axes = len(box) // 2
    sides = "×".join(map(str, reversed(box[axes:])))
    start = ", ".join(map(str, reversed(box[:axes])))
    return OpError(f"a box of {sides} at ({start}) is not in the part that was decoded.")
