"""Colour: gray, brightness, contrast, saturation, hue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from PIL import Image, ImageEnhance

from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.picture import ChanceOp, ImageOp, merged
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec, image

Range: TypeAlias = float | tuple[float, float]


def gray(picture: Image.Image, channels: int) -> Image.Image:
    """Return the picture in gray, as one channel or three equal channels."""
    single = picture.convert("L")
    return single if channels == 1 else merged("RGB", (single, single, single))


def brightness(picture: Image.Image, factor: float) -> Image.Image:
    """Blend with black; a factor of 1 leaves the picture unchanged."""
    return ImageEnhance.Brightness(picture).enhance(factor)


def contrast(picture: Image.Image, factor: float) -> Image.Image:
    """Blend with the picture's mean gray."""
    return ImageEnhance.Contrast(picture).enhance(factor)


def saturation(picture: Image.Image, factor: float) -> Image.Image:
    """Blend with the picture in gray."""
    return ImageEnhance.Color(picture).enhance(factor)


def hue(picture: Image.Image, turn: float) -> Image.Image:
    """Rotate the colour circle by a fraction of -0.5 … 0.5; a gray picture is not changed."""
    if picture.mode == "L":
        return picture
    h, s, v = picture.convert("HSV").split()
    step = int(turn * 255) & 0xFF  # 256 hues: the sum wraps around, as it should
    h = h.point([(value + step) & 0xFF for value in range(256)])
    return merged("HSV", (h, s, v)).convert("RGB")


ADJUST = (brightness, contrast, saturation, hue)


@dataclass(frozen=True)
class Grayscale(ImageOp):
    """Turn a picture gray.

    Args:
        num_output_channels: 1, or 3 for three equal channels.
    """

    still: ClassVar[bool] = True
    num_output_channels: int = 1

    def __post_init__(self) -> None:
        channels = checks.integer(self._where("num_output_channels"), self.num_output_channels, 1, 3)
        if channels == 2:
            raise checks.fail(self._where("num_output_channels"), channels, "1 or 3")
        self._set(num_output_channels=channels)

    def output(self, spec: Spec) -> Spec:
        """Return an image with the given number of channels."""
        height, width, _ = self._input(spec).shape
        return image(height, width, self.num_output_channels)

    def apply(self, value: Image.Image, params: Params = None) -> Image.Image:  # noqa: ARG002 - part of the contract
        """Return the gray picture."""
        return gray(self._picture(value), self.num_output_channels)


@dataclass(frozen=True)
class RandomGrayscale(ChanceOp):
    """Turn a picture gray with probability p; the number of channels stays."""

    still: ClassVar[bool] = True
    p: float = 0.1

    def _changed(self, picture: Image.Image) -> Image.Image:
        return gray(picture, len(picture.getbands()))


@dataclass(frozen=True)
class RGB(ImageOp):
    """Turn a gray picture into one with three equal channels; a colour picture is not changed."""

    still: ClassVar[bool] = True

    def output(self, spec: Spec) -> Spec:
        """Return an image with three channels."""
        height, width, _ = self._input(spec).shape
        return image(height, width, 3)

    def apply(self, value: Image.Image, params: Params = None) -> Image.Image:  # noqa: ARG002 - part of the contract
        """Return the picture in mode RGB."""
        value = self._picture(value)
        return value if value.mode == "RGB" else value.convert("RGB")


@dataclass(frozen=True)
class ColorJitter(ImageOp):
    """Change brightness, contrast, saturation and hue at random, in random order.

    Args:
        brightness: x for factors in 1 - x … 1 + x (not below 0), or (smallest, largest) factor.
        contrast: As for brightness.
        saturation: As for brightness.
        hue: x ≤ 0.5 for a rotation in -x … x, or (smallest, largest) rotation.
    """

    version: ClassVar[int] = 2
    still: ClassVar[bool] = True

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            self._set(**{name: self._factors(name, getattr(self, name), 1.0, 0.0, float("inf"))})
        self._set(hue=self._factors("hue", self.hue, 0.0, -0.5, 0.5))

    def _factors(self, name: str, value: Any, centre: float, low: float, high: float) -> tuple[float, float]:
        where = self._where(name)
        if isinstance(value, list | tuple):
            return checks.interval(where, value, low, high)
        spread = checks.number(where, value, 0.0, high)
        return max(centre - spread, low), min(centre + spread, high)

    def draw(self, rng: Rng, spec: Spec) -> tuple[tuple[int, float], ...]:  # noqa: ARG002 - part of the contract
        """Return the adjustments to make as (which, factor), in order; those that change nothing are left out."""
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        order = rng.permutation(4)
        factors = [rng.uniform32(*limits) for limits in ranges if isinstance(limits, tuple)]
        neutral = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
        return tuple((which, factors[which]) for which in order if ranges[which] != neutral[which])

    def apply(self, value: Image.Image, params: tuple[tuple[int, float], ...]) -> Image.Image:
        """Return the adjusted picture."""
        value = self._picture(value)
        for which, factor in params:
            value = ADJUST[which](value, factor)
        return value
