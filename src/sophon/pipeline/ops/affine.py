"""Rotation and affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image

from sophon.pipeline import checks
from sophon.pipeline.ops.pad import colour
from sophon.pipeline.ops.picture import AFFINE_INTERPOLATIONS, INTERPOLATIONS, ImageOp
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec, image


@dataclass(frozen=True, slots=True)
class AffineMap:
    """A rotation, shift, scaling and shear about a point.

    Args:
        angle: Degrees, clockwise.
        translate: Shift in pixels (right, down).
        scale: Factor.
        shear: Degrees along x and y.
    """

    angle: float = 0.0
    translate: tuple[float, float] = (0.0, 0.0)
    scale: float = 1.0
    shear: tuple[float, float] = (0.0, 0.0)

    def inverse(self, centre: Sequence[float], api: str = "v1") -> tuple[float, ...]:
        """Return the six coefficients that map a point of the result back to a point of the picture.

        The order of the operations is torchvision's: a different order rounds differently and picks different pixels.
        torchvision's v1 and v2 have different orders.
        """
        turn, shear_x, shear_y = (math.radians(x) for x in (self.angle, *self.shear))
        (cx, cy), (tx, ty) = centre, self.translate
        if api == "v2":
            a, c = math.cos(turn - shear_y) / math.cos(shear_y), math.sin(turn - shear_y) / math.cos(shear_y)
            b, d = -(a * math.tan(shear_x) + math.sin(turn)), math.cos(turn) - c * math.tan(shear_x)
            m = [x / self.scale for x in (d, -b, 0.0, -c, a, 0.0)]
            m[2] += cx - m[0] * (cx + tx) - m[1] * (cy + ty)
            m[5] += cy - m[3] * (cx + tx) - m[4] * (cy + ty)
            return tuple(m)
        a = math.cos(turn - shear_y) / math.cos(shear_y)
        b = -math.cos(turn - shear_y) * math.tan(shear_x) / math.cos(shear_y) - math.sin(turn)
        c = math.sin(turn - shear_y) / math.cos(shear_y)
        d = -math.sin(turn - shear_y) * math.tan(shear_x) / math.cos(shear_y) + math.cos(turn)
        m = [x / self.scale for x in (d, -b, 0.0, -c, a, 0.0)]
        m[2] += m[0] * (-cx - tx) + m[1] * (-cy - ty)
        m[5] += m[3] * (-cx - tx) + m[4] * (-cy - ty)
        m[2] += cx
        m[5] += cy
        return tuple(m)


def affine(
    picture: Image.Image,
    mapping: AffineMap,
    interpolation: str,
    fill: checks.Fill,
    centre: Sequence[float] | None = None,
    api: str = "v1",
) -> Image.Image:
    """Return the picture transformed by an affine map about a point, by default its centre."""
    if centre is None:
        centre = (picture.width * 0.5, picture.height * 0.5)
    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        mapping.inverse(centre, api),
        INTERPOLATIONS[interpolation],
        fillcolor=colour(fill, picture),
    )


def rotate(
    picture: Image.Image,
    angle: float,
    interpolation: str,
    fill: checks.Fill,
    *,
    expand: bool = False,
    centre: tuple[float, float] | None = None,
) -> Image.Image:
    """Return the picture rotated counter-clockwise by an angle in degrees."""
    return picture.rotate(
        angle, INTERPOLATIONS[interpolation], expand=expand, center=centre, fillcolor=colour(fill, picture)
    )


def _angles(where: str, value: Any) -> tuple[float, float]:
    if isinstance(value, list | tuple):
        return checks.interval(where, value)
    limit = checks.number(where, value, 0.0, math.inf)
    return -limit, limit


def _centre(where: str, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    x, y = checks.sequence(where, value, (2,))
    return checks.number(where, x), checks.number(where, y)


@dataclass(frozen=True)
class RandomRotation(ImageOp):
    """Rotate a picture by a random angle.

    Args:
        degrees: x for -x … x, or (smallest, largest) angle, counter-clockwise.
        interpolation: "nearest", "bilinear" or "bicubic".
        expand: Enlarge the result so that the whole picture fits.
        center: (x, y) to rotate about; by default the centre.
        fill: Colour outside the picture: one number or one per channel.
    """

    version: ClassVar[int] = 2

    degrees: float | tuple[float, float]
    interpolation: str = "nearest"
    expand: bool = False
    center: tuple[float, float] | None = None
    fill: checks.Fill = 0.0

    def __post_init__(self) -> None:
        self._set(
            degrees=_angles(self._where("degrees"), self.degrees),
            interpolation=checks.choice(self._where("interpolation"), self.interpolation, AFFINE_INTERPOLATIONS),
            expand=checks.flag(self._where("expand"), self.expand),
            center=_centre(self._where("center"), self.center),
            fill=checks.fill(self._where("fill"), self.fill),
        )

    def output(self, spec: Spec) -> Spec:
        """Return an image of the same size, or of unknown size when it may grow."""
        spec = self._input(spec)
        return image(None, None, spec.channels) if self.expand else spec

    def made(self, spec: Spec, params: float) -> Spec:
        """Return an image of the size that this angle gives."""
        if not self.expand:
            return self.output(spec)
        # Pillow has its own rounding; asking it costs less than an interpolation.
        turned = Image.new("L", (spec.width, spec.height)).rotate(params, expand=True, center=self.center)
        return image(turned.height, turned.width, spec.channels)

    def draw(self, rng: Rng, spec: Spec) -> float:  # noqa: ARG002 - part of the contract
        """Return the angle in degrees."""
        assert isinstance(self.degrees, tuple)
        return rng.uniform32(*self.degrees)

    def apply(self, value: Image.Image, params: float) -> Image.Image:
        """Return the rotated picture."""
        return rotate(
            self._picture(value), params, self.interpolation, self.fill, expand=self.expand, centre=self.center
        )


@dataclass(frozen=True)
class RandomAffine(ImageOp):
    """Rotate, shift, scale and shear a picture at random, keeping its size.

    Args:
        degrees: x for -x … x, or (smallest, largest) angle.
        translate: Largest shift as a share of (width, height), or None.
        scale: (smallest, largest) factor, or None.
        shear: x for -x … x along x; (smallest, largest) along x; or four numbers for x and y; or None.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: Colour outside the picture: one number or one per channel.
        center: (x, y) to rotate about; by default the centre.
        api: "v1" or "v2" of torchvision, which round the coefficients differently.
    """

    version: ClassVar[int] = 3

    degrees: float | tuple[float, float]
    translate: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    shear: float | tuple[float, ...] | None = None
    interpolation: str = "nearest"
    fill: checks.Fill = 0.0
    center: tuple[float, float] | None = None
    api: str = "v1"

    def __post_init__(self) -> None:
        translate, shear = self.translate, self.shear
        if translate is not None:
            x, y = checks.sequence(self._where("translate"), translate, (2,))
            translate = (
                checks.probability(self._where("translate"), x),
                checks.probability(self._where("translate"), y),
            )
        if isinstance(shear, list | tuple):
            parts = checks.sequence(self._where("shear"), shear, (2, 4))
            shear = checks.interval(self._where("shear"), parts[:2])
            if len(parts) == 4:
                shear += checks.interval(self._where("shear"), parts[2:])
        elif shear is not None:
            shear = _angles(self._where("shear"), shear)
        self._set(
            degrees=_angles(self._where("degrees"), self.degrees),
            translate=translate,
            scale=None if self.scale is None else checks.interval(self._where("scale"), self.scale, 1e-6, 1e6),
            shear=shear,
            interpolation=checks.choice(self._where("interpolation"), self.interpolation, AFFINE_INTERPOLATIONS),
            fill=checks.fill(self._where("fill"), self.fill),
            center=_centre(self._where("center"), self.center),
            api=checks.choice(self._where("api"), self.api, ("v1", "v2")),
        )

    def draw(self, rng: Rng, spec: Spec) -> AffineMap:
        """Return the affine map to apply."""
        assert isinstance(self.degrees, tuple)
        angle = rng.uniform32(*self.degrees)
        shift = (0.0, 0.0)
        if self.translate is not None:
            reach_x, reach_y = self.translate[0] * spec.width, self.translate[1] * spec.height
            shift = (
                float(round(rng.uniform(-reach_x, reach_x))),
                float(round(rng.uniform(-reach_y, reach_y))),
            )
        scale = 1.0 if self.scale is None else rng.uniform32(*self.scale)
        shear = (0.0, 0.0)
        if isinstance(self.shear, tuple):
            limits = (*self.shear, 0.0, 0.0)
            shear = (rng.uniform32(*limits[:2]), rng.uniform32(*limits[2:4]))
        return AffineMap(angle, shift, scale, shear)

    def apply(self, value: Image.Image, params: AffineMap) -> Image.Image:
        """Return the transformed picture."""
        return affine(self._picture(value), params, self.interpolation, self.fill, self.center, self.api)
