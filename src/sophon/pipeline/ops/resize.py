"""Resize: the whole picture to another size."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from sophon.errors import ConfigError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.picture import INTERPOLATIONS, ImageOp, check_pixels, check_size
from sophon.pipeline.pixels import crop_and_resize
from sophon.pipeline.spec import Spec, image


@dataclass(frozen=True)
class Resize(ImageOp):
    """Resize a picture.

    Args:
        size: An integer (or one-element sequence) for the shorter edge, or (height, width).
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
        max_size: Bound on the longer edge, only with an integer size.
    """

    size: int | tuple[int, int]
    interpolation: str = "bilinear"
    max_size: int | None = None

    def __post_init__(self) -> None:
        size: int | tuple[int, int]
        if isinstance(self.size, int) or (isinstance(self.size, list | tuple) and len(self.size) == 1):
            edge = self.size if isinstance(self.size, int) else self.size[0]
            size = checks.integer(self._where("size"), edge, 1, checks.MAX_SIDE)
        else:
            size = checks.size(self._where("size"), self.size)
            check_size(self._where("size"), size)
        if self.max_size is not None:
            checks.integer(self._where("max_size"), self.max_size, 1, checks.MAX_SIDE)
            if not isinstance(size, int) or self.max_size <= size:
                raise ConfigError(
                    f"{self._where('max_size')}: expected more than the shorter edge given as an integer size, "
                    f"got max_size={self.max_size!r} with size={self.size!r}"
                )
        self._set(
            size=size,
            interpolation=checks.choice(self._where("interpolation"), self.interpolation, list(INTERPOLATIONS)),
        )

    def output(self, spec: Spec) -> Spec:
        """Return an image of the new size."""
        spec = self._input(spec)
        height, width, channels = spec.shape
        if isinstance(self.size, tuple):
            return image(*self.size, channels)
        if height is None or width is None:
            return image(None, None, channels)
        return image(*self._target(height, width), channels)

    def apply(self, value: Image.Image, params: Params = None) -> Image.Image:  # noqa: ARG002 - part of the contract
        """Return the resized picture."""
        height, width = self._target(value.height, value.width)
        if (width, height) == value.size:
            return value
        check_pixels(self.name(), height, width)
        if self.interpolation == "bilinear":
            return crop_and_resize(value, (0, 0, *value.size), (width, height))
        return value.resize((width, height), INTERPOLATIONS[self.interpolation])

    def _target(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width); the longer edge is truncated, as torchvision does."""
        if isinstance(self.size, tuple):
            return self.size
        short, long = min(height, width), max(height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)
