"""Resize: scales the whole picture to a different size.

A pixel of the result is a weighted sum of the input pixels around its position, so a box of the result depends only on
a box of the input, and the op can work on a part. The weights reach as far as the support of the filter, times the
scale where the picture becomes smaller; this holds for Pillow, and for torch with and without antialiasing (without
antialiasing they reach less far). Pillow and torch compute positions in floating point, so one pixel is added on either
side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from sophon.errors import ConfigError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.picture import INTERPOLATIONS, ImageOp, check_pixels, check_size, scaled
from sophon.pipeline.part import Box, Part
from sophon.pipeline.pixels import crop_and_resize
from sophon.pipeline.spec import OTHER_MODES, Objects, Spec, image, spec_of
from sophon.pipeline.streams import Boxes, Numbers, Sizes, Streams

# Support of Pillow's filters, in pixels of the result. Torch's bicubic filter without antialiasing takes four pixels
# too.
_SUPPORT = {"nearest": 0.5, "bilinear": 1.0, "bicubic": 2.0, "box": 0.5, "hamming": 1.0, "lanczos": 3.0}


@dataclass(frozen=True)
class Resize(ImageOp):
    """Resize a picture.

    Args:
        size: An integer (or one-element sequence) for the shorter edge, or (height, width).
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
        max_size: Bound on the longer edge, only with an integer size.
    """

    size: int | tuple[int, int]
    interpolation: str = "bilinear"
    max_size: int | None = None
    modes: ClassVar[tuple[str, ...]] = OTHER_MODES

    def __post_init__(self) -> None:
        size: int | tuple[int, int]
        if isinstance(self.size, int) or (isinstance(self.size, list | tuple) and len(self.size) == 1):
            edge = self.size if isinstance(self.size, int) else self.size[0]
            size = checks.integer(self._where("size"), edge, 1, checks.MAX_SIDE)
        else:
            size = checks.size(self._where("size"), self.size)
            check_size(self._where("size"), size)
        if self.max_size is not None:
            checks.integer(self._where("max_size"), self.max_size, 1, checks.MAX_SIDE)
            if not isinstance(size, int) or self.max_size <= size:
                raise ConfigError(
                    f"{self._where('max_size')}: expected more than the shorter edge given as an integer size, "
                    f"got max_size={self.max_size!r} with size={self.size!r}"
                )
        self._set(
            size=size,
            interpolation=checks.choice(self._where("interpolation"), self.interpolation, list(INTERPOLATIONS)),
        )

    def output(self, spec: Spec) -> Spec:
        """Return an image of the new size."""
        spec = self._input(spec)
        height, width, channels = spec.shape
        if isinstance(self.size, tuple):
            return image(*self.size, channels, spec.mode)
        if height is None or width is None:
            return image(None, None, channels, spec.mode)
        return image(*self._target(height, width), channels, spec.mode)

    def placed(self, spec: Spec, params: Params) -> Objects | None:
        """Return the objects, scaled to the new size."""
        return scaled(spec, self.made(spec, params))

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box of the input that the filter reads."""
        height, width = self._target(spec.height, spec.width)
        top, bottom = self._read(box[0], box[0] + box[2], spec.height, height)
        left, right = self._read(box[1], box[1] + box[3], spec.width, width)
        return top, left, bottom - top, right - left

    def boxes_before(self, boxes: Boxes, streams: Streams, sizes: Sizes) -> Boxes | None:  # noqa: ARG002
        """Return the boxes of the inputs that the filter reads."""
        tops, lefts, box_heights, box_widths = boxes
        (heights, widths), (new_heights, new_widths) = sizes, self.sizes_made(sizes)
        tops, bottoms = self._reads(tops, tops + box_heights, heights, new_heights)
        lefts, rights = self._reads(lefts, lefts + box_widths, widths, new_widths)
        return tops, lefts, bottoms - tops, rights - lefts

    def sizes_made(self, sizes: Sizes) -> Sizes:
        """Return `_target` for many sizes."""
        heights, widths = sizes
        if isinstance(self.size, tuple):
            return np.full_like(heights, self.size[0]), np.full_like(widths, self.size[1])
        short, long = np.minimum(heights, widths), np.maximum(heights, widths)
        new_short, new_long = np.full_like(short, self.size), (self.size * long / short).astype(np.int64)
        if self.max_size is not None:
            above = new_long > self.max_size
            new_short = np.where(above, (self.max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(above, self.max_size, new_long)
        new_short, new_long = np.maximum(new_short, 1), np.maximum(new_long, 1)  # an empty picture needs no box
        upright = widths <= heights
        return np.where(upright, new_long, new_short), np.where(upright, new_short, new_long)

    def _reads(self, first: Numbers, end: Numbers, before: Numbers, after: Numbers) -> tuple[Numbers, Numbers]:
        """Return `_read` for many pictures."""
        scale = before / after
        reach = _SUPPORT[self.interpolation] * np.maximum(scale, 1.0) + 1.0
        low, high = np.floor((first + 0.5) * scale - reach), np.ceil((end - 0.5) * scale + reach)
        return np.maximum(low, 0).astype(np.int64), np.minimum(high, before).astype(np.int64)

    def box_after(self, box: Box, spec: Spec) -> Box:
        """Return the box of the result for which the filter reads nothing outside a box of the input."""
        height, width = self._target(spec.height, spec.width)
        top, bottom = self._made(box[0], box[0] + box[2], spec.height, height)
        left, right = self._made(box[1], box[1] + box[3], spec.width, width)
        return top, left, bottom - top, right - left

    def _read(self, first: int, end: int, before: int, after: int) -> tuple[int, int]:
        """Return which pixels of `before` are read for pixels `first` to `end` of `after`, in one direction."""
        scale = before / after
        reach = _SUPPORT[self.interpolation] * max(scale, 1.0) + 1.0
        low, high = math.floor((first + 0.5) * scale - reach), math.ceil((end - 0.5) * scale + reach)
        return max(low, 0), min(high, before)

    def _made(self, first: int, end: int, before: int, after: int) -> tuple[int, int]:
        """Return which pixels of `after` are made only from pixels `first` to `end` of `before`."""
        # An estimate, corrected with `_read`: the two must agree, however values are rounded.
        low, high = max(first * after // before - 1, 0), min(end * after // before + 1, after)
        while low < high and self._read(low, low + 1, before, after)[0] < first:
            low += 1
        while low < high and self._read(high - 1, high, before, after)[1] > end:
            high -= 1
        return (low, high) if low < high else (0, 0)

    def apply(
        self,
        value: Image.Image | Part,
        params: Params = None,  # noqa: ARG002 - part of the contract
    ) -> Image.Image | Part:
        """Return the resized picture; given a part, only the area that the part determines."""
        if isinstance(value, Part):
            top, left, height, width = self.box_after(value.box, spec_of(value))
            whole = self._resized(value.canvas().value)
            return Part(whole.crop((left, top, left + width, top + height)), top, left, whole.height, whole.width)
        return self._resized(self._picture(value))

    def _resized(self, value: Image.Image) -> Image.Image:
        height, width = self._target(value.height, value.width)
        if (width, height) == value.size:
            return value
        check_pixels(self.name(), height, width)
        if self.interpolation == "bilinear":
            return crop_and_resize(value, (0, 0, *value.size), (width, height))
        return value.resize((width, height), INTERPOLATIONS[self.interpolation])

    def _target(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width); the longer edge is truncated, as torchvision does."""
        if isinstance(self.size, tuple):
            return self.size
        short, long = min(height, width), max(height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)
