"""Flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from sophon.pipeline.ops.picture import ChanceOp
from sophon.pipeline.part import Box, Part
from sophon.pipeline.spec import Spec


@dataclass(frozen=True)
class _RandomFlip(ChanceOp):
    _transpose: ClassVar[Image.Transpose]

    def box_before(self, box: Box, spec: Spec, params: bool) -> Box | None:
        """Return the mirrored box."""
        return self._mirrored(box, spec.height, spec.width) if params else box

    def apply(self, value: Image.Image | Part, params: bool) -> Image.Image | Part:
        """Return the picture, flipped or not."""
        if params and isinstance(value, Part):
            piece = value.picture
            box = (value.top, value.left, piece.height, piece.width)
            top, left, _, _ = self._mirrored(box, value.height, value.width)
            return Part(piece.transpose(self._transpose), top, left, value.height, value.width)
        return value.transpose(self._transpose) if params and isinstance(value, Image.Image) else value

    def _mirrored(self, box: Box, height: int, width: int) -> Box:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror left and right with probability p."""

    _transpose: ClassVar[Image.Transpose] = Image.Transpose.FLIP_LEFT_RIGHT

    def _mirrored(self, box: Box, height: int, width: int) -> Box:  # noqa: ARG002 - the other flip needs it
        top, left, box_height, box_width = box
        return top, width - left - box_width, box_height, box_width


@dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirror top and bottom with probability p."""

    _transpose: ClassVar[Image.Transpose] = Image.Transpose.FLIP_TOP_BOTTOM

    def _mirrored(self, box: Box, height: int, width: int) -> Box:  # noqa: ARG002 - the other flip needs it
        top, left, box_height, box_width = box
        return height - top - box_height, left, box_height, box_width
