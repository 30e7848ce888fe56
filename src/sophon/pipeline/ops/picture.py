"""What all ops on pictures share: the base class, interpolation names and the limit on pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Op
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Kind, Objects, Spec, Value, image, spec_of

# Twice Pillow's warning level, the point at which Pillow itself raises: 178,956,970 pixels are 0.7 GB once decoded.
MAX_PIXELS = 178_956_970

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}
# Affine transforms interpolate between neighbours; Pillow has no area filters for them.
AFFINE_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


@dataclass(frozen=True)
class ImageOp(Op):
    """An op from picture to picture; keeps the size unless a subclass overrides that."""

    takes: ClassVar[Kind] = Kind.IMAGE

    def output(self, spec: Spec) -> Spec:
        """Return the spec of the result."""
        return self._input(spec)

    def _input(self, spec: Spec) -> Spec:
        self._check_kind(spec)
        return spec if spec.kind is Kind.IMAGE else image(None, None, None)

    def _picture(self, value: Value) -> Image.Image:
        """Return the value if it is a picture; raise for anything else, which must never pass through unchanged."""
        if not isinstance(value, Image.Image):
            raise not_a_picture(self.name(), value)
        return value


@dataclass(frozen=True)
class ChanceOp(ImageOp):
    """An op that changes the picture with probability p and otherwise leaves it unchanged."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self._set(p=checks.probability(self._where("p"), self.p))

    def draw(self, rng: Rng, spec: Spec) -> bool:  # noqa: ARG002 - part of the contract
        """Return whether to change the picture."""
        return rng.chance(self.p)

    def apply(self, value: Value, params: bool) -> Value:
        """Return the picture, changed or not."""
        return self._changed(self._picture(value)) if params else value

    def _changed(self, picture: Image.Image) -> Image.Image:
        raise NotImplementedError


def scaled(spec: Spec, made: Spec) -> Objects | None:
    """Return where the objects of a picture lie after resizing."""
    if spec.objects is None:
        return None
    across, down = made.width / spec.width, made.height / spec.height
    placed: Objects = np.multiply(spec.objects, np.array([across, down, across, down]))
    return placed


def moved(spec: Spec, left: int, top: int, width: int, height: int) -> Objects | None:
    """Return where the objects of a picture lie in a crop or larger picture, given its size and its corner's position.

    Objects are clipped to the new picture, as in torchvision's crops and borders.
    """
    if spec.objects is None:
        return None
    placed: Objects = spec.objects - np.array([left, top, left, top], np.float64)
    return np.minimum(np.maximum(placed, 0.0), np.array([width, height, width, height], np.float64))


def interpolations(where: str, value: Any) -> tuple[str, ...]:
    """Check the names of interpolations to draw from: one name or several."""
    names = (value,) if isinstance(value, str) else checks.sequence(where, value, range(1, len(INTERPOLATIONS) + 1))
    return tuple(checks.choice(where, name, list(INTERPOLATIONS)) for name in names)


def merged(mode: str, bands: Sequence[Image.Image]) -> Image.Image:
    """Return a picture made of these bands, without metadata: torchvision builds such a picture from an array."""
    picture = Image.merge(mode, bands)
    picture.info = {}
    return picture


def not_a_picture(name: str, value: Value) -> OpError:
    """Return the error for a value that an op on pictures cannot take."""
    return OpError(
        f"{name} takes a picture, got {spec_of(value)} ({type(value).__name__}).",
        remedy="Put it before the step that turns the picture into something else.",
    )


def check_pixels(where: str, height: int, width: int) -> None:
    """Reject a result that would not fit in memory, before it is allocated."""
    if height * width > MAX_PIXELS:
        raise OpError(
            f"{where} would make a picture of {width}×{height} pixels, more than {MAX_PIXELS:,}.",
            remedy="Ask for a smaller size.",
        )


def check_size(where: str, size: tuple[int, int]) -> None:
    """Reject a fixed output size that would not fit in memory."""
    if size[0] * size[1] > MAX_PIXELS:
        raise ConfigError(f"{where}: expected at most {MAX_PIXELS:,} pixels, got {size[1]}×{size[0]}")
