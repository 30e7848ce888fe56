"""Colour distortions: factors with separate probabilities, and channels in random order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from PIL import Image

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.ops.color import ADJUST
from sophon.pipeline.ops.picture import ImageOp, merged
from sophon.pipeline.part import Box, Part, missing
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec, spec_of

Order: TypeAlias = tuple[int, ...]  # which channel of the picture becomes each channel of the result
Distortion: TypeAlias = tuple[tuple[tuple[int, float], ...], Order | None]

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)  # positions in ADJUST


def permuted(picture: Image.Image, order: Order) -> Image.Image:
    """Return the picture with its channels in a given order."""
    bands = picture.split()
    if len(bands) != len(order):
        raise OpError(f"an order of {len(order)} channels does not fit a picture with {len(bands)} channels.")
    return merged(picture.mode, [bands[channel] for channel in order])


def _draw_order(rng: Rng, spec: Spec) -> Order:
    if spec.channels is None:
        raise OpError("the number of channels is not known yet.", remedy="Put Grayscale or RGB before this op.")
    return rng.permutation(spec.channels)


@dataclass(frozen=True)
class RandomChannelPermutation(ImageOp):
    """Put a picture's channels in random order."""

    still: ClassVar[bool] = True

    def draw(self, rng: Rng, spec: Spec) -> Order:
        """Return the order of the channels."""
        return _draw_order(rng, spec)

    def apply(self, value: Image.Image, params: Order) -> Image.Image:
        """Return the picture with its channels in the drawn order."""
        return permuted(self._picture(value), params)


@dataclass(frozen=True)
class RandomPhotometricDistort(ImageOp):
    """Change brightness, contrast, saturation, hue and the order of the channels, each with probability p.

    Contrast comes before or after saturation and hue with equal probability (Liu et al., 2015).

    Args:
        brightness: (smallest, largest) factor.
        contrast: As for brightness.
        saturation: As for brightness.
        hue: (smallest, largest) rotation, -0.5 … 0.5.
        p: Probability of each change.
    """

    version: ClassVar[int] = 2
    still: ClassVar[bool] = True

    brightness: tuple[float, float] = (0.875, 1.125)
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: tuple[float, float] = (-0.05, 0.05)
    p: float = 0.5

    def __post_init__(self) -> None:
        self._set(
            brightness=checks.interval(self._where("brightness"), self.brightness, 0.0),
            contrast=checks.interval(self._where("contrast"), self.contrast, 0.0),
            saturation=checks.interval(self._where("saturation"), self.saturation, 0.0),
            hue=checks.interval(self._where("hue"), self.hue, -0.5, 0.5),
            p=checks.probability(self._where("p"), self.p),
        )

    def draw(self, rng: Rng, spec: Spec) -> Distortion:
        """Return the adjustments to make as (which, factor), in order, and the order of the channels if it changes."""
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [rng.uniform32(*limits) if rng.chance(self.p) else None for limits in ranges]
        turns = (
            (_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE)
            if rng.chance(0.5)
            else (_BRIGHTNESS, _SATURATION, _HUE, _CONTRAST)
        )
        steps = tuple((which, factor) for which in turns if (factor := factors[which]) is not None)
        return steps, _draw_order(rng, spec) if rng.chance(self.p) else None

    def box_before(self, box: Box, spec: Spec, params: Distortion) -> Box | None:  # noqa: ARG002
        """Return the box itself, or None if contrast changes, since that depends on the mean of the whole picture."""
        return None if any(which == _CONTRAST for which, _ in params[0]) else box

    def apply(self, value: Image.Image | Part, params: Distortion) -> Image.Image | Part:
        """Return the distorted picture."""
        if isinstance(value, Part):
            if self.box_before(value.box, spec_of(value), params) is None:
                raise missing(None)
            return replace(value, picture=self._distorted(value.picture, *params))
        return self._distorted(self._picture(value), *params)

    def _distorted(self, value: Image.Image, steps: tuple[tuple[int, float], ...], order: Order | None) -> Image.Image:
        for which, factor in steps:
            value = ADJUST[which](value, factor)
        return value if order is None else permuted(value, order)
