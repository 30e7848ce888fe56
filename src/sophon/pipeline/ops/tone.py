"""Tone curves applied to the whole picture with probability p: invert, posterize, solarize, sharpen, stretch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image, ImageEnhance, ImageOps

from sophon.pipeline import checks
from sophon.pipeline.ops.picture import ChanceOp

invert: Callable[[Image.Image], Image.Image] = ImageOps.invert
posterize: Callable[[Image.Image, int], Image.Image] = ImageOps.posterize
autocontrast: Callable[[Image.Image], Image.Image] = ImageOps.autocontrast
equalize: Callable[[Image.Image], Image.Image] = ImageOps.equalize


def solarize(picture: Image.Image, threshold: float) -> Image.Image:
    """Invert every value at or above the threshold."""
    return ImageOps.solarize(picture, threshold)  # type: ignore[arg-type]  # a float threshold works too


def sharpness(picture: Image.Image, factor: float) -> Image.Image:
    """Blend with a smoothed picture; a factor of 1 changes nothing."""
    return ImageEnhance.Sharpness(picture).enhance(factor)


@dataclass(frozen=True)
class RandomInvert(ChanceOp):
    """Invert all values with probability p."""

    still: ClassVar[bool] = True

    def _changed(self, picture: Image.Image) -> Image.Image:
        return invert(picture)


@dataclass(frozen=True)
class RandomAutocontrast(ChanceOp):
    """Stretch every channel to 0 … 255 with probability p."""

    still: ClassVar[bool] = True

    def _changed(self, picture: Image.Image) -> Image.Image:
        return autocontrast(picture)


@dataclass(frozen=True)
class RandomEqualize(ChanceOp):
    """Equalize the histogram with probability p."""

    still: ClassVar[bool] = True

    def _changed(self, picture: Image.Image) -> Image.Image:
        return equalize(picture)


@dataclass(frozen=True)
class RandomPosterize(ChanceOp):
    """Keep the highest bits of every value with probability p.

    Args:
        p: Probability.
        bits: Number of bits kept, 1 … 8.
    """

    still: ClassVar[bool] = True
    bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(bits=checks.integer(self._where("bits"), self.bits, 1, 8))

    def _changed(self, picture: Image.Image) -> Image.Image:
        return posterize(picture, self.bits)


@dataclass(frozen=True)
class RandomSolarize(ChanceOp):
    """Invert values at or above a threshold with probability p.

    Args:
        p: Probability.
        threshold: 0 … 256.
    """

    still: ClassVar[bool] = True
    threshold: float = 128.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(threshold=checks.number(self._where("threshold"), self.threshold, 0.0, 256.0))

    def _changed(self, picture: Image.Image) -> Image.Image:
        return solarize(picture, self.threshold)


@dataclass(frozen=True)
class RandomAdjustSharpness(ChanceOp):
    """Blur or sharpen with probability p.

    Args:
        p: Probability.
        sharpness_factor: 0 blurs, 1 changes nothing, 2 sharpens.
    """

    still: ClassVar[bool] = True
    sharpness_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            sharpness_factor=checks.number(self._where("sharpness_factor"), self.sharpness_factor, 0.0, float("inf"))
        )

    def _changed(self, picture: Image.Image) -> Image.Image:
        return sharpness(picture, self.sharpness_factor)
