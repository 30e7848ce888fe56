"""Crops: of the centre, at a random place, or of random size at a random place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.pad import PADDING_MODES, check_border, pad
from sophon.pipeline.ops.picture import (
    INTERPOLATIONS,
    ImageOp,
    check_size,
    interpolations,
    moved,
    not_a_picture,
    scaled,
)
from sophon.pipeline.part import Box, Part, missing
from sophon.pipeline.pixels import PillowBox, crop_and_resize
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import OTHER_MODES, Objects, Spec, image
from sophon.pipeline.streams import Boxes, Numbers, Sizes, Streams, where, whole

_TOO_SMALL = "Use pad_if_needed=True, put a Resize before it, or use a smaller crop."
_TRIES = 10  # torchvision's number of attempts at a box that fits


def crop(picture: Image.Image | Part, box: Box) -> Image.Image:
    """Return the part of the picture inside the box."""
    picture, pillow_box = located(picture, box)
    return picture if pillow_box == (0, 0, *picture.size) else picture.crop(pillow_box)


def located(picture: Image.Image | Part, box: Box) -> tuple[Image.Image, PillowBox]:
    """Return the picture or part that contains a box, and the position of the box in it."""
    top, left, height, width = box
    if not isinstance(picture, Image.Image | Part):
        raise not_a_picture("a crop", picture)
    if isinstance(picture, Part):
        if not picture.holds(box):
            raise missing(box)
        top, left, picture = top - picture.top, left - picture.left, picture.picture
    return picture, (left, top, left + width, top + height)


@dataclass(frozen=True)
class SizedCrop(ImageOp):
    """A crop whose result has a fixed size."""

    size: int | tuple[int, int]
    modes: ClassVar[tuple[str, ...]] = OTHER_MODES

    def __post_init__(self) -> None:
        self._set(size=checks.size(self._where("size"), self.size))
        check_size(self._where("size"), self._size)

    @property
    def _size(self) -> tuple[int, int]:
        assert isinstance(self.size, tuple)
        return self.size

    def output(self, spec: Spec) -> Spec:
        """Return an image of the given size."""
        spec = self._input(spec)
        return image(*self._size, spec.channels, spec.mode)

    def _places(self, tops: Numbers, lefts: Numbers, sizes: Sizes) -> Boxes:
        """Return boxes of the given size at these places, or the whole picture where it is smaller than the box."""
        (height, width), (heights, widths) = self._size, sizes
        boxes = tops, lefts, np.full_like(heights, height), np.full_like(widths, width)
        return where((heights >= height) & (widths >= width), boxes, whole(sizes))

    def _drawn_places(self, streams: Streams, sizes: Sizes) -> Boxes:
        """Return boxes of the given size at random places, or the whole picture where it is smaller than the box."""
        room_y, room_x = (np.maximum(side - mine, 0) + 1 for side, mine in zip(sizes, self._size, strict=True))
        return self._places(streams.below(0, room_y), streams.below(1, room_x), sizes)


@dataclass(frozen=True)
class CentralCrop(SizedCrop):
    """A crop of the centre; a picture smaller than the crop gets a border first."""

    def box_needed(self, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the central box, if the picture is large enough."""
        height, width = self._size
        return self._box(spec.height, spec.width) if height <= spec.height and width <= spec.width else None

    def apply(self, value: Image.Image | Part, params: Params = None) -> Image.Image:  # noqa: ARG002
        """Return the centre of the picture."""
        if not isinstance(value, Part):
            value = self._picture(value)
            height, width = self._size
            missing_x, missing_y = max(0, width - value.width), max(0, height - value.height)
            sides = (missing_x // 2, missing_y // 2, (missing_x + 1) // 2, (missing_y + 1) // 2)
            if any(sides):
                value = pad(value, sides, *self._fill_and_mode())
        return crop(value, self._box(value.height, value.width))

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:  # noqa: ARG002 - part of the contract
        """Return the central boxes of pictures that are large enough."""
        spare = (side - mine for side, mine in zip(sizes, self._size, strict=True))
        tops, lefts = (np.rint(room / 2.0).astype(np.int64) for room in spare)
        return self._places(tops, lefts, sizes)

    def _fill_and_mode(self) -> tuple[checks.Fill, str]:
        return 0.0, "constant"

    def _box(self, height: int, width: int) -> Box:
        crop_height, crop_width = self._size
        return round((height - crop_height) / 2.0), round((width - crop_width) / 2.0), crop_height, crop_width


@dataclass(frozen=True)
class CenterCrop(CentralCrop):
    """Cut the centre out of a picture; a smaller picture is padded with black first.

    Args:
        size: An integer for a square, or (height, width).
    """


@dataclass(frozen=True)
class RandomCrop(SizedCrop):
    """Cut a piece of fixed size out of a picture at a random place.

    Args:
        size: An integer for a square, or (height, width).
        padding: Border added first, as in `Pad`; None for no border.
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

    def output(self, spec: Spec) -> Spec:
        """Return an image of the given size; a picture known to be too small is rejected."""
        height, width, _ = self._input(spec).shape
        check_border(self.name(), self.padding_mode, spec)
        if height is not None and width is not None and min(spare := self._spare(height, width)) < 0:
            raise ConfigError(f"{self.name()}: {self._too_small(spare)} {_TOO_SMALL}")
        return super().output(spec)

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int]:
        """Return (top, left) within the padded picture."""
        spare = self._spare(spec.height, spec.width)
        if min(spare) < 0:
            raise OpError(self._too_small(spare), remedy=_TOO_SMALL)
        return rng.below(spare[0] + 1), rng.below(spare[1] + 1)

    def _spare(self, height: int, width: int) -> tuple[int, int]:
        """Return by how much a picture's height and width, including its borders, exceed the crop."""
        height, width = self._padded(height, width)
        return height - self._size[0], width - self._size[1]

    def _too_small(self, spare: tuple[int, int]) -> str:
        height, width = self._size
        return f"a crop of {width}×{height} does not fit a picture of {width + spare[1]}×{height + spare[0]}."

    def box_needed(self, spec: Spec, params: tuple[int, int]) -> Box | None:
        """Return the box at the drawn place, if no padding is needed."""
        return None if self._borders(spec.height, spec.width) else (*params, *self._size)

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the boxes at the drawn places of pictures that need no padding."""
        return whole(sizes) if self.padding is not None else self._drawn_places(streams, sizes)

    def apply(self, value: Image.Image | Part, params: tuple[int, int]) -> Image.Image:
        """Return the part of the picture at the drawn place."""
        if not isinstance(value, Part):
            value = self._picture(value)
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
class _ResizedCrop(SizedCrop):
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            scale=checks.interval(self._where("scale"), self.scale, 0.0),
            ratio=checks.interval(self._where("ratio"), self.ratio, 1e-6, 1e6),
        )
        if self.scale[1] <= 0.0:
            raise ConfigError(f"{self._where('scale')}: expected a largest share above 0, got {self.scale!r}")

    def _draw_box(self, rng: Rng, spec: Spec) -> Box:
        """Return the box to cut out; after ten failed attempts, the largest central box of an allowed shape."""
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

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the boxes that `_draw_box` gives."""
        boxes, open_ = self._central(sizes), np.arange(len(sizes[0]))
        for attempt in range(_TRIES):
            if len(open_) == 0:
                break
            height, width = sizes[0][open_], sizes[1][open_]
            area = height * width * streams.uniform(2 * attempt, *self.scale)
            ratio = streams.log_uniform(2 * attempt + 1, *self.ratio)
            w = np.rint(np.sqrt(area * ratio)).astype(np.int64)
            h = np.rint(np.sqrt(area / ratio)).astype(np.int64)
            fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
            found, chosen = streams.of(fits), open_[fits]
            h, w = h[fits], w[fits]
            top = found.below(2 * attempt + 2, height[fits] - h + 1)
            left = found.below(2 * attempt + 3, width[fits] - w + 1)
            for numbers, drawn in zip(boxes, (top, left, h, w), strict=True):
                numbers[chosen] = drawn
            streams, open_ = streams.of(~fits), open_[~fits]
        return boxes

    def _central(self, sizes: Sizes) -> Boxes:
        """Return the largest central boxes of an allowed shape."""
        height, width = sizes
        shape = width / height
        narrow, wide = shape < self.ratio[0], shape > self.ratio[1]
        h = np.where(narrow, np.rint(width / self.ratio[0]), height).astype(np.int64)
        w = np.where(wide, np.rint(height * self.ratio[1]), width).astype(np.int64)
        return (height - h) // 2, (width - w) // 2, h, w

    @property
    def resized_to(self) -> tuple[int, int]:
        """Height and width of the result."""
        return self._size

    def _resized(self, value: Image.Image | Part, box: Box, interpolation: str) -> Image.Image:
        """Return the part inside the box, resized.

        Pillow's ``resize(box=…)`` would save a copy, but its filter reads pixels outside the box and gives different
        bits.
        """
        height, width = self._size
        if interpolation == "bilinear":
            return crop_and_resize(*located(value, box), (width, height))
        return crop(value, box).resize((width, height), INTERPOLATIONS[interpolation])


@dataclass(frozen=True)
class RandomResizedCrop(_ResizedCrop):
    """Crop a picture to a box of random area, aspect ratio and position, and resize the crop.

    Args:
        size: Size of the result: an integer for a square, or (height, width).
        scale: Smallest and largest share of the picture's area.
        ratio: Smallest and largest width / height.
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
    """

    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(interpolation=checks.choice(self._where("interpolation"), self.interpolation, list(INTERPOLATIONS)))

    def draw(self, rng: Rng, spec: Spec) -> Box:
        """Return the box to cut out."""
        return self._draw_box(rng, spec)

    def box_needed(self, spec: Spec, params: Box) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box to cut out."""
        return params

    def placed(self, spec: Spec, params: Box) -> Objects | None:
        """Return the objects as they lie in the resized crop."""
        top, left, height, width = params
        part = image(height, width, spec.channels).with_objects(moved(spec, left, top, width, height))
        return scaled(part, self.made(spec, params))

    def apply(self, value: Image.Image | Part, params: Box) -> Image.Image:
        """Return the part inside the box, resized."""
        return self._resized(value, params, self.interpolation)


@dataclass(frozen=True)
class RandomResizedCropAndInterpolation(_ResizedCrop):
    """Crop and resize like `RandomResizedCrop`, with a randomly drawn interpolation, as timm's namesake does.

    Args:
        size: Size of the result: an integer for a square, or (height, width).
        scale: Smallest and largest share of the picture's area.
        ratio: Smallest and largest width / height.
        interpolation: Names to draw from; see `RandomResizedCrop`.
    """

    interpolation: tuple[str, ...] = ("bilinear", "bicubic")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(interpolation=interpolations(self._where("interpolation"), self.interpolation))

    def draw(self, rng: Rng, spec: Spec) -> tuple[Box, str]:
        """Return the box to cut out and the interpolation."""
        return self._draw_box(rng, spec), self.interpolation[rng.below(len(self.interpolation))]

    def box_needed(self, spec: Spec, params: tuple[Box, str]) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box to cut out."""
        return params[0]

    def apply(self, value: Image.Image | Part, params: tuple[Box, str]) -> Image.Image:
        """Return the part inside the box, resized."""
        return self._resized(value, *params)
