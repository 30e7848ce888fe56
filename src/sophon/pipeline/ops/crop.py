"""Crops: the centre, a random place, a random place and size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.pad import PADDING_MODES, pad
from sophon.pipeline.ops.picture import INTERPOLATIONS, ImageOp, check_size
from sophon.pipeline.part import Box, Part
from sophon.pipeline.pixels import PillowBox, crop_and_resize
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec, image

_TRIES = 10  # torchvision's number of attempts at a box that fits


def crop(picture: Image.Image | Part, box: Box) -> Image.Image:
    """Return the part of the picture inside the box."""
    picture, pillow_box = _located(picture, box)
    return picture if pillow_box == (0, 0, *picture.size) else picture.crop(pillow_box)


def _located(picture: Image.Image | Part, box: Box) -> tuple[Image.Image, PillowBox]:
    """Return the picture that holds a box, and where in it the box lies."""
    top, left, height, width = box
    if isinstance(picture, Part):
        if not picture.holds(box):
            raise OpError(f"a box of {width}×{height} at ({left}, {top}) is not in the part that was decoded.")
        top, left, picture = top - picture.top, left - picture.left, picture.picture
    return picture, (left, top, left + width, top + height)


@dataclass(frozen=True)
class _SizedCrop(ImageOp):
    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        self._set(size=checks.size(self._where("size"), self.size))
        check_size(self._where("size"), self._size)

    @property
    def _size(self) -> tuple[int, int]:
        assert isinstance(self.size, tuple)
        return self.size

    def output(self, spec: Spec) -> Spec:
        """Return an image of the given size."""
        return image(*self._size, self._input(spec).channels)


@dataclass(frozen=True)
class CenterCrop(_SizedCrop):
    """Cut the centre out of a picture; a smaller picture is padded with black first.

    Args:
        size: An integer for a square, or (height, width).
    """

    def box_needed(self, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box in the middle, if the picture is large enough."""
        height, width = self._size
        return self._box(spec.height, spec.width) if height <= spec.height and width <= spec.width else None

    def apply(self, value: Image.Image | Part, params: Params = None) -> Image.Image:  # noqa: ARG002
        """Return the centre of the picture."""
        if isinstance(value, Image.Image):
            height, width = self._size
            missing_x, missing_y = max(0, width - value.width), max(0, height - value.height)
            sides = (missing_x // 2, missing_y // 2, (missing_x + 1) // 2, (missing_y + 1) // 2)
            value = pad(value, sides, 0.0, "constant")
        return crop(value, self._box(value.height, value.width))

    def _box(self, height: int, width: int) -> Box:
        crop_height, crop_width = self._size
        return round((height - crop_height) / 2.0), round((width - crop_width) / 2.0), crop_height, crop_width


@dataclass(frozen=True)
class RandomCrop(_SizedCrop):
    """Cut a random place out of a picture.

    Args:
        size: An integer for a square, or (height, width).
        padding: Border added first, as in `Pad`; None for none.
        pad_if_needed: Pad a picture that is smaller than the crop instead of failing.
        fill: Colour of a constant border: one number or one per channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".
    """

    padding: int | tuple[int, ...] | None = None
    pad_if_needed: bool = False
    fill: checks.Fill = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            padding=None if self.padding is None else checks.padding(self._where("padding"), self.padding),
            pad_if_needed=checks.flag(self._where("pad_if_needed"), self.pad_if_needed),
            fill=checks.fill(self._where("fill"), self.fill),
            padding_mode=checks.choice(self._where("padding_mode"), self.padding_mode, PADDING_MODES),
        )

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int]:
        """Return (top, left) within the padded picture."""
        height, width = self._padded(spec.height, spec.width)
        spare_y, spare_x = height - self._size[0], width - self._size[1]
        if spare_y < 0 or spare_x < 0:
            raise OpError(
                f"a crop of {self._size[1]}×{self._size[0]} does not fit a picture of {width}×{height}.",
                remedy="Use pad_if_needed=True, a Resize before it, or a smaller crop.",
            )
        return rng.below(spare_y + 1), rng.below(spare_x + 1)

    def box_needed(self, spec: Spec, params: tuple[int, int]) -> Box | None:
        """Return the box at the drawn place, if nothing is to be padded."""
        return None if self._borders(spec.height, spec.width) else (*params, *self._size)

    def apply(self, value: Image.Image | Part, params: tuple[int, int]) -> Image.Image:
        """Return the part of the picture at the drawn place."""
        if isinstance(value, Image.Image):
            for sides in self._borders(value.height, value.width):
                value = pad(value, sides, self.fill, self.padding_mode)
        return crop(value, (*params, *self._size))

    def _padded(self, height: int, width: int) -> tuple[int, int]:
        for left, top, right, bottom in self._borders(height, width):
            height, width = height + top + bottom, width + left + right
        return height, width

    def _borders(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """Return the borders to add, one after the other, since reflections depend on that order."""
        borders = []
        if isinstance(self.padding, tuple):
            left, top, right, bottom = self.padding
            borders.append((left, top, right, bottom))
            height, width = height + top + bottom, width + left + right
        missing_y, missing_x = max(0, self._size[0] - height), max(0, self._size[1] - width)
        if self.pad_if_needed and missing_x:
            borders.append((missing_x, 0, missing_x, 0))
        if self.pad_if_needed and missing_y:
            borders.append((0, missing_y, 0, missing_y))
        return borders


@dataclass(frozen=True)
class RandomResizedCrop(_SizedCrop):
    """Cut a part of random area, shape and place out of a picture and resize it.

    Args:
        size: Size of the result: an integer for a square, or (height, width).
        scale: Smallest and largest share of the picture's area.
        ratio: Smallest and largest width / height.
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            scale=checks.interval(self._where("scale"), self.scale, 0.0),
            ratio=checks.interval(self._where("ratio"), self.ratio, 1e-6, 1e6),
            interpolation=checks.choice(self._where("interpolation"), self.interpolation, list(INTERPOLATIONS)),
        )
        if self.scale[1] <= 0.0:
            raise ConfigError(f"{self._where('scale')}: expected a largest share above 0, got {self.scale!r}")

    def draw(self, rng: Rng, spec: Spec) -> Box:
        """Return the box to cut out; after ten misses the largest central one of a legal shape."""
        height, width = spec.height, spec.width
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            ratio = rng.log_uniform(*self.ratio)
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return rng.below(height - h + 1), rng.below(width - w + 1), h, w
        h, w = height, width
        if width / height < self.ratio[0]:
            h = round(width / self.ratio[0])
        elif width / height > self.ratio[1]:
            w = round(height * self.ratio[1])
        return (height - h) // 2, (width - w) // 2, h, w

    def box_needed(self, spec: Spec, params: Box) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box to cut out."""
        return params

    def apply(self, value: Image.Image | Part, params: Box) -> Image.Image:
        """Return the part inside the box, resized.

        Pillow's ``resize(box=…)`` would save a copy, but its filter reads pixels outside the box: other bits.
        """
        height, width = self._size
        if self.interpolation == "bilinear":
            return crop_and_resize(*_located(value, params), (width, height))
        return crop(value, params).resize((width, height), INTERPOLATIONS[self.interpolation])
