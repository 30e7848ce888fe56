"""Flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from sophon.pipeline.ops.picture import ChanceOp
from sophon.pipeline.part import Box, Part
from sophon.pipeline.spec import OTHER_MODES, Objects, Spec
from sophon.pipeline.streams import Boxes, Sizes, Streams, where


@dataclass(frozen=True)
class _RandomFlip(ChanceOp):
    _transpose: ClassVar[Image.Transpose]
    modes: ClassVar[tuple[str, ...]] = OTHER_MODES

    def box_before(self, box: Box, spec: Spec, params: bool) -> Box | None:
        """Return the mirrored box."""
        mirrored: Box = self._mirrored(box, spec.height, spec.width)
        return mirrored if params else box

    def boxes_before(self, boxes: Boxes, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the boxes, mirrored where the flip was drawn."""
        return where(streams.uniform(0) < self.p, self._mirrored(boxes, *sizes), boxes)

    def sizes_made(self, sizes: Sizes) -> Sizes | None:
        """Return the sizes unchanged."""
        return sizes

    def placed(self, spec: Spec, params: bool) -> Objects | None:
        """Return the mirrored objects."""
        if spec.objects is None or not params:
            return spec.objects
        left, top, right, bottom = spec.objects.T
        top, left, height, width = self._mirrored((top, left, bottom - top, right - left), spec.height, spec.width)
        return np.stack([left, top, left + width, top + height], axis=1)

    def apply(self, value: Image.Image | Part, params: bool) -> Image.Image | Part:
        """Return the picture, flipped or not."""
        if not params:
            return value
        if isinstance(value, Part):
            top, left, _, _ = self._mirrored(value.box, value.height, value.width)
            return Part(value.picture.transpose(self._transpose), top, left, value.height, value.width)
        return self._picture(value).transpose(self._transpose)

    def _mirrored(self, box: Any, height: Any, width: Any) -> Any:
        """Return one mirrored box (integers) or many (arrays)."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror the picture horizontally (left to right) with probability p."""

    _transpose: ClassVar[Image.Transpose] = Image.Transpose.FLIP_LEFT_RIGHT

    def _mirrored(self, box: Any, height: Any, width: Any) -> Any:  # noqa: ARG002 - the other flip needs it
        top, left, box_height, box_width = box
        return top, width - left - box_width, box_height, box_width


@dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirror the picture vertically (top to bottom) with probability p."""

    _transpose: ClassVar[Image.Transpose] = Image.Transpose.FLIP_TOP_BOTTOM

    def _mirrored(self, box: Any, height: Any, width: Any) -> Any:  # noqa: ARG002 - the other flip needs it
        top, left, box_height, box_width = box
        return height - top - box_height, left, box_height, box_width
