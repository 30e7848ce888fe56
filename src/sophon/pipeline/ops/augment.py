"""RandAugment and TrivialAugment: a few adjustments picked at random from one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from sophon.pipeline import checks
from sophon.pipeline.bell import linspace
from sophon.pipeline.ops import color, tone
from sophon.pipeline.ops.affine import AffineMap, affine, rotate
from sophon.pipeline.ops.picture import AFFINE_INTERPOLATIONS, ImageOp
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec

Step: TypeAlias = tuple[str, float]  # name of an adjustment and its magnitude


@dataclass(frozen=True)
class _Style:
    """How affine adjustments pick pixels."""

    interpolation: str
    fill: checks.Fill

    def shear(self, picture: Image.Image, x: float, y: float) -> Image.Image:
        # The published magnitude is the matrix entry; torchvision passes it on as an angle about the corner.
        angles = (math.degrees(math.atan(x)), math.degrees(math.atan(y)))
        return affine(picture, AffineMap(shear=angles), self.interpolation, self.fill, centre=(0, 0))

    def shift(self, picture: Image.Image, x: float, y: float) -> Image.Image:
        return affine(picture, AffineMap(translate=(int(x), int(y))), self.interpolation, self.fill)

    def turn(self, picture: Image.Image, angle: float) -> Image.Image:
        return rotate(picture, angle, self.interpolation, self.fill)


ADJUSTMENTS: dict[str, Callable[[Image.Image, float, _Style], Image.Image]] = {
    "Identity": lambda picture, _, __: picture,
    "ShearX": lambda picture, size, style: style.shear(picture, size, 0.0),
    "ShearY": lambda picture, size, style: style.shear(picture, 0.0, size),
    "TranslateX": lambda picture, size, style: style.shift(picture, size, 0.0),
    "TranslateY": lambda picture, size, style: style.shift(picture, 0.0, size),
    "Rotate": lambda picture, size, style: style.turn(picture, size),
    "Brightness": lambda picture, size, _: color.brightness(picture, 1.0 + size),
    "Color": lambda picture, size, _: color.saturation(picture, 1.0 + size),
    "Contrast": lambda picture, size, _: color.contrast(picture, 1.0 + size),
    "Sharpness": lambda picture, size, _: tone.sharpness(picture, 1.0 + size),
    "Posterize": lambda picture, size, _: tone.posterize(picture, int(size)),
    "Solarize": lambda picture, size, _: tone.solarize(picture, size),
    "AutoContrast": lambda picture, _, __: tone.autocontrast(picture),
    "Equalize": lambda picture, _, __: tone.equalize(picture),
    "Invert": lambda picture, _, __: tone.invert(picture),
}
_NAMES = tuple(ADJUSTMENTS)[:14]  # all except Invert, which only AutoAugment has; the draws depend on this order
SIGNED = frozenset(_NAMES[1:10])  # all from ShearX to Sharpness are signed
APIS = ("v1", "v2")  # torchvision's two sets of transforms, whose solarize thresholds differ in the last bit


@dataclass(frozen=True, slots=True)
class Ends:
    """The upper end of each adjustment's magnitude range.

    Args:
        shear: Largest matrix entry.
        translate: Largest shift in pixels (right, down).
        rotate: Largest angle in degrees.
        blend: Largest change of a factor: Brightness, Color, Contrast, Sharpness.
        bits: Most bits that Posterize keeps, and how many fewer it keeps at the strong end of its range.
    """

    shear: float
    translate: tuple[float, float]
    rotate: float
    blend: float
    bits: tuple[int, int]

    def magnitude(self, name: str, bin_index: int, bins: int, api: str) -> float:
        """Return the unsigned magnitude of an adjustment for one of its bins."""
        if name == "Posterize":
            most, span = self.bits
            return float(most - round(float(np.float32(bin_index) / np.float32((bins - 1) / span))))
        if name == "Solarize":
            # v2 scales a fraction of 1, which ends up slightly above v1's whole number, so one value is not inverted.
            return linspace(255.0, 0.0, bins, bin_index) if api == "v1" else 255.0 * linspace(1.0, 0.0, bins, bin_index)
        return linspace(0.0, self._end(name), bins, bin_index) if name in SIGNED else 0.0

    def _end(self, name: str) -> float:
        across, down = self.translate
        ends = {"ShearX": self.shear, "ShearY": self.shear, "TranslateX": across, "TranslateY": down}
        return {**ends, "Rotate": self.rotate}.get(name, self.blend)


@dataclass(frozen=True)
class Augment(ImageOp):
    """An op that draws some adjustments and applies them one after the other."""

    def apply(self, value: Image.Image, params: tuple[Step, ...]) -> Image.Image:
        """Return the picture after the drawn adjustments."""
        value = self._picture(value)
        style = _Style(self._field("interpolation"), self._field("fill"))
        for name, magnitude in params:
            value = ADJUSTMENTS[name](value, magnitude, style)
        return value

    def _field(self, name: str) -> Any:
        return getattr(self, name)

    def _check_style(self) -> None:
        self._set(
            interpolation=checks.choice(
                self._where("interpolation"), self._field("interpolation"), AFFINE_INTERPOLATIONS
            ),
            fill=checks.fill(self._where("fill"), self._field("fill")),
            api=checks.choice(self._where("api"), self._field("api"), APIS),
        )


@dataclass(frozen=True)
class RandAugment(Augment):
    """Apply a few random adjustments, all at one magnitude (Cubuk et al., 2019).

    Args:
        num_ops: How many adjustments, one after the other.
        magnitude: Index of the bin, 0 … num_magnitude_bins - 1.
        num_magnitude_bins: How many bins each range is divided into.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: Colour outside the picture: one number or one per channel.
        api: Which bits to reproduce: torchvision's "v1" or "v2" transform.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: checks.Fill = 0.0
    api: str = "v1"

    def __post_init__(self) -> None:
        bins = checks.integer(self._where("num_magnitude_bins"), self.num_magnitude_bins, 2, 1000)
        self._set(
            num_ops=checks.integer(self._where("num_ops"), self.num_ops, 0, 100),
            magnitude=checks.integer(self._where("magnitude"), self.magnitude, 0, bins - 1),
        )
        self._check_style()

    def draw(self, rng: Rng, spec: Spec) -> tuple[Step, ...]:
        """Return the adjustments to make."""
        steps = []
        for _ in range(self.num_ops):
            name = _NAMES[rng.below(len(_NAMES))]
            magnitude = self.magnitude_of(name, spec.height, spec.width)
            steps.append((name, -magnitude if name in SIGNED and rng.chance(0.5) else magnitude))
        return tuple(steps)

    def magnitude_of(self, name: str, height: int, width: int) -> float:
        """Return the unsigned magnitude of an adjustment."""
        ends = Ends(0.3, (150.0 / 331.0 * width, 150.0 / 331.0 * height), 30.0, 0.9, (8, 4))
        return ends.magnitude(name, self.magnitude, self.num_magnitude_bins, self.api)


@dataclass(frozen=True)
class TrivialAugmentWide(Augment):
    """Apply one random adjustment at a random magnitude (Müller and Hutter, 2021).

    Args:
        num_magnitude_bins: How many bins each range is divided into.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: Colour outside the picture: one number or one per channel.
        api: Which bits to reproduce: torchvision's "v1" or "v2" transform.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: checks.Fill = 0.0
    api: str = "v1"

    def __post_init__(self) -> None:
        self._set(
            num_magnitude_bins=checks.integer(self._where("num_magnitude_bins"), self.num_magnitude_bins, 2, 1000)
        )
        self._check_style()

    def draw(self, rng: Rng, spec: Spec) -> tuple[Step, ...]:  # noqa: ARG002 - part of the contract
        """Return the adjustment to make."""
        name = _NAMES[rng.below(len(_NAMES))]
        magnitude = self.magnitude_of(name, rng.below(self.num_magnitude_bins))
        return ((name, -magnitude if name in SIGNED and rng.chance(0.5) else magnitude),)

    def magnitude_of(self, name: str, bin_index: int) -> float:
        """Return the unsigned magnitude of an adjustment."""
        ends = Ends(0.99, (32.0, 32.0), 135.0, 0.99, (8, 6))
        return ends.magnitude(name, bin_index, self.num_magnitude_bins, self.api)
