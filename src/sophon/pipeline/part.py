"""Part: as much of a decoded picture as the next ops need.

An op that crops needs only a box of its input, and which one is known from the picture's size and the op's parameters,
before anything is decoded. `needed_box` follows that through the ops between Decode and the crop; whoever decodes only
that box hands a `Part` to the pipeline, which goes on from there with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from PIL import Image

Box: TypeAlias = tuple[int, int, int, int]  # top, left, height, width, in torchvision's order


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a picture, and where it lies in the whole.

    Args:
        picture: The piece.
        top: Row of the whole at which it begins.
        left: Column of the whole at which it begins.
        height: Of the whole.
        width: Of the whole.
    """

    picture: Image.Image
    top: int
    left: int
    height: int
    width: int

    def holds(self, box: Box) -> bool:
        """Return whether a box of the whole lies inside this piece."""
        top, left, height, width = box
        return (
            self.top <= top
            and self.left <= left
            and top + height <= self.top + self.picture.height
            and left + width <= self.left + self.picture.width
        )
