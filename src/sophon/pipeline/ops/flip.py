"""Flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from sophon.pipeline import checks
from sophon.pipeline.ops.picture import ImageOp
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec


@dataclass(frozen=True)
class _RandomFlip(ImageOp):
    p: float = 0.5
    _transpose: ClassVar[Image.Transpose]

    def __post_init__(self) -> None:
        self._set(p=checks.probability(self._where("p"), self.p))

    def draw(self, rng: Rng, spec: Spec) -> bool:  # noqa: ARG002 - part of the contract
        """Return whether to flip."""
        return rng.chance(self.p)

    def apply(self, value: Image.Image, params: bool) -> Image.Image:
        """Return the picture, flipped or not."""
        return value.transpose(self._transpose) if params else value


@dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror left and right with probability p."""

    _transpose: ClassVar[Image.Transpose] = Image.Transpose.FLIP_LEFT_RIGHT


@dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirror top and bottom with probability p."""

    _transpose: ClassVar[Image.Transpose] = Image.Transpose.FLIP_TOP_BOTTOM
