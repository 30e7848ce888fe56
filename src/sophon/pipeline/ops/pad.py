"""Pad: a border around the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image, ImageOps

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.picture import ImageOp, check_pixels, moved
from sophon.pipeline.spec import OTHER_MODES, Objects, Spec, image, spec_of

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True)
class Pad(ImageOp):
    """Pad a picture on all sides.

    Args:
        padding: One integer for all sides, (left and right, top and bottom) or (left, top, right, bottom).
        fill: Colour of a constant border: one number or one per channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".
    """

    padding: int | tuple[int, ...]
    fill: checks.Fill = 0.0
    padding_mode: str = "constant"
    modes: ClassVar[tuple[str, ...]] = OTHER_MODES

    def __post_init__(self) -> None:
        self._set(
            padding=checks.padding(self._where("padding"), self.padding),
            fill=checks.fill(self._where("fill"), self.fill),
            padding_mode=checks.choice(self._where("padding_mode"), self.padding_mode, PADDING_MODES),
        )

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """The padding as (left, top, right, bottom)."""
        assert isinstance(self.padding, tuple)
        left, top, right, bottom = self.padding
        return left, top, right, bottom

    def output(self, spec: Spec) -> Spec:
        """Return an image grown by the padding."""
        spec = self._input(spec)
        check_border(self.name(), self.padding_mode, spec)
        height, width, channels = spec.shape
        left, top, right, bottom = self.sides
        return image(
            None if height is None else height + top + bottom,
            None if width is None else width + left + right,
            channels,
            spec.mode,
        )

    def placed(self, spec: Spec, params: Params) -> Objects | None:
        """Return the objects, shifted by the border."""
        left, top, _, _ = self.sides
        made = self.made(spec, params)
        return moved(spec, -left, -top, made.width, made.height)

    def apply(self, value: Image.Image, params: Params = None) -> Image.Image:  # noqa: ARG002 - part of the contract
        """Return the padded picture."""
        return pad(self._picture(value), self.sides, self.fill, self.padding_mode)


def pad(picture: Image.Image, sides: tuple[int, int, int, int], fill: checks.Fill, mode: str) -> Image.Image:
    """Return the picture with a border of (left, top, right, bottom) pixels."""
    left, top, right, bottom = sides
    check_pixels("Pad", picture.height + top + bottom, picture.width + left + right)
    if mode == "constant":
        expanded = ImageOps.expand(picture, sides, colour(fill, picture))
        if picture.mode == "P":
            expanded.putpalette(*palette_of(picture))  # ImageOps drops unused colours
        return expanded
    check_border("Pad", mode, spec_of(picture))
    around = ((top, bottom), (left, right), (0, 0))[: 3 if picture.mode == "RGB" else 2]
    return Image.fromarray(np.pad(np.asarray(picture), around, mode=mode))  # type: ignore[call-overload]


def check_border(name: str, padding_mode: str, spec: Spec) -> None:
    """Reject a border made of the picture's own pixels in modes for which torchvision gives a different result."""
    if spec.mode and padding_mode != "constant":
        raise ConfigError(f"{name}: in mode {spec.mode} a border can only be constant, got {padding_mode!r}")


def palette_of(picture: Image.Image) -> tuple[bytes, str]:
    """Return the palette of a picture in mode P, and the mode of its entries: RGB or RGBA."""
    assert picture.palette is not None
    raw_mode, data = picture.palette.getdata()
    return bytes(data), raw_mode


def colour(fill: checks.Fill, picture: Image.Image) -> int | tuple[int, ...]:
    """Return a fill colour in the form that Pillow expects for this picture."""
    bands = len(picture.getbands())
    values = (fill,) * bands if isinstance(fill, float) else fill
    if len(values) != bands:
        raise OpError(
            f"a fill of {len(values)} numbers does not fit a picture with {bands} channel(s).",
            remedy="Give one number, or one per channel.",
        )
    whole = tuple(int(v) for v in values)
    return whole if bands > 1 else whole[0]
