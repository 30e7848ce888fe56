"""Part and Canvas: as much of a picture as the next ops need.

An op that crops needs only a box of its input, and which one is known from the picture's size and the op's parameters,
before anything is decoded. `region.needed_box` follows that through the ops between Decode and the crop; a decoder that
decodes only that box passes a `Part` to the pipeline, which continues with the same bits.

An op that resizes, or that works on tensors whose bits may depend on their memory layout, needs a value of the full
size. It gets a `Canvas`: the part in its place, surrounded by meaningless pixels. Both know which box is valid, and
refuse access to anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import Image

from sophon.errors import OpError

Box: TypeAlias = tuple[int, int, int, int]  # top, left, height, width, in torchvision's order


def holds(outer: Box, inner: Box) -> bool:
    """Return whether one box lies inside another."""
    return (
        outer[0] <= inner[0]
        and outer[1] <= inner[1]
        and inner[0] + inner[2] <= outer[0] + outer[2]
        and inner[1] + inner[3] <= outer[1] + outer[3]
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a picture, and where it lies in the whole.

    Args:
        picture: The piece.
        top: Row of the whole at which it begins.
        left: Column of the whole at which it begins.
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
        """Where the piece lies."""
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
        box: The box in which it has the values of the whole picture.
    """

    value: Any
    box: Box

    def require(self, box: Box | None) -> None:
        """Raise unless a box is valid; None stands for the whole picture."""
        if box is None or not holds(self.box, box):
            raise missing(box)


def missing(box: Box | None) -> OpError:
    """Return the error for a box that was not decoded."""
    if box is None:
        return OpError("the whole picture is needed, but only a part of it was decoded.")
    top, left, height, width = box
    return OpError(f"a box of {width}×{height} at ({left}, {top}) is not in the part that was decoded.")
