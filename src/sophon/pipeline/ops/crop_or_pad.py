"""timm's crops that add a border where the picture is smaller than the crop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from sophon.pipeline import checks
from sophon.pipeline.ops.crop import CentralCrop, SizedCrop, crop
from sophon.pipeline.ops.pad import PADDING_MODES, pad
from sophon.pipeline.part import Box, Part
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec
from sophon.pipeline.streams import Boxes, Sizes, Streams


@dataclass(frozen=True)
class _Bordered(SizedCrop):
    """A crop that adds a border to a picture that is too small."""

    fill: checks.Fill = 0.0
    padding_mode: str = "constant"
    modes: ClassVar[tuple[str, ...]] = ()  # timm's borders are only for colour pictures

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            fill=checks.fill(self._where("fill"), self.fill),
            padding_mode=checks.choice(self._where("padding_mode"), self.padding_mode, PADDING_MODES),
        )


@dataclass(frozen=True)
class CenterCropOrPad(_Bordered, CentralCrop):
    """Cut the centre out of a picture; a smaller picture gets a border first.

    Args:
        size: An integer for a square, or (height, width).
        fill: Colour of a constant border: one number or one per channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".
    """

    def _fill_and_mode(self) -> tuple[checks.Fill, str]:
        return self.fill, self.padding_mode


@dataclass(frozen=True)
class RandomCropOrPad(_Bordered):
    """Cut a piece out of a picture at a random place; a smaller picture is placed at random between borders.

    Args:
        size: An integer for a square, or (height, width).
        fill: Colour of a constant border: one number or one per channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".
    """

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int]:
        """Return (top, left) of the crop within the picture; negative if there is a border above or to the left."""
        spare_y, spare_x = spec.height - self._size[0], spec.width - self._size[1]
        top, left = rng.below(abs(spare_y) + 1), rng.below(abs(spare_x) + 1)
        return top if spare_y >= 0 else -top, left if spare_x >= 0 else -left

    def box_needed(self, spec: Spec, params: tuple[int, int]) -> Box | None:
        """Return the box at the drawn place, if no padding is needed."""
        return None if any(self._sides(spec.height, spec.width, params)) else (*params, *self._size)

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the boxes at the drawn places of pictures that need no padding."""
        return self._drawn_places(streams, sizes)

    def apply(self, value: Image.Image | Part, params: tuple[int, int]) -> Image.Image:
        """Return the part of the picture at the drawn place."""
        if not isinstance(value, Part):
            value = self._picture(value)
            sides = self._sides(value.height, value.width, params)
            if any(sides):
                value = pad(value, sides, self.fill, self.padding_mode)
        top, left = params
        return crop(value, (max(top, 0), max(left, 0), *self._size))

    def _sides(self, height: int, width: int, place: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return the border as (left, top, right, bottom)."""
        (top, left), (crop_height, crop_width) = place, self._size
        return max(-left, 0), max(-top, 0), max(left + crop_width - width, 0), max(top + crop_height - height, 0)
