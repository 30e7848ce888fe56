"""Resizes to a random size, or to a size derived from the picture's; the size of the result is not fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.picture import INTERPOLATIONS, ImageOp, check_pixels, interpolations, scaled
from sophon.pipeline.ops.resize import Resize
from sophon.pipeline.part import Box, Part
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Objects, Spec, image, spec_of


@dataclass(frozen=True)
class _Rescale(ImageOp):
    def output(self, spec: Spec) -> Spec:
        """Return an image of unknown size."""
        return image(None, None, self._input(spec).channels)

    def made(self, spec: Spec, params: Params) -> Spec:
        """Return an image of the size that was drawn."""
        return self._resize(spec, params).output(spec)

    def placed(self, spec: Spec, params: Params) -> Objects | None:
        """Return the objects, scaled to the new size."""
        return scaled(spec, self.made(spec, params))

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:
        """Return the box of the input that the filter reads."""
        return self._resize(spec, params).box_before(box, spec, None)

    def apply(self, value: Image.Image | Part, params: Params = None) -> Image.Image | Part:
        """Return the resized picture; given a part, only the area that the part determines."""
        if not isinstance(value, Part):
            value = self._picture(value)
        return self._resize(spec_of(value), params).apply(value)

    def _resize(self, spec: Spec, params: Params) -> Resize:
        """Return the `Resize` that does the work of this op."""
        raise NotImplementedError

    def _to(self, spec: Spec, height: int, width: int, interpolation: str) -> Resize:
        if not (1 <= height <= checks.MAX_SIDE and 1 <= width <= checks.MAX_SIDE):
            raise OpError(
                f"{spec.width}×{spec.height} pixels would become {width}×{height}, "
                f"expected sides of 1 … {checks.MAX_SIDE}.",
                remedy="Choose another size or range of scales, or leave the picture out.",
            )
        check_pixels(self.name(), height, width)
        return Resize((height, width), interpolation)

    def _choice(self, name: str) -> str:
        return checks.choice(self._where("interpolation"), name, list(INTERPOLATIONS))


@dataclass(frozen=True)
class ScaleJitter(_Rescale):
    """Fit a picture into a target size times a random factor, keeping its shape (Ghiasi et al., 2020).

    Args:
        target_size: (width, height): torchvision divides the first number by the picture's width.
        scale_range: Smallest and largest factor.
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
    """

    version: ClassVar[int] = 2

    target_size: tuple[int, int]
    scale_range: tuple[float, float] = (0.1, 2.0)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        width, height = checks.sequence(self._where("target_size"), self.target_size, (2,))
        self._set(
            target_size=checks.size(self._where("target_size"), (width, height)),
            scale_range=checks.interval(self._where("scale_range"), self.scale_range, 0.0, 1e6),
            interpolation=self._choice(self.interpolation),
        )

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int]:
        """Return (height, width) of the result."""
        fit = min(self.target_size[1] / spec.height, self.target_size[0] / spec.width)
        # In float32, as in torchvision's tensors: 0.7 of 100 pixels are 69 in one and 70 in the other.
        scale = np.float32(fit) * np.float32(rng.uniform(*self.scale_range))
        return int(np.float32(spec.height) * scale), int(np.float32(spec.width) * scale)

    def _resize(self, spec: Spec, params: tuple[int, int]) -> Resize:
        return self._to(spec, *params, self.interpolation)


@dataclass(frozen=True)
class RandomShortestSize(_Rescale):
    """Resize a picture so that its shorter edge has one of several lengths, keeping its shape.

    Args:
        min_size: Lengths of the shorter edge to draw from; one integer for a fixed length.
        max_size: Bound on the longer edge, or None.
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
    """

    min_size: int | tuple[int, ...]
    max_size: int | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        where = self._where("min_size")
        sizes = (self.min_size,) if isinstance(self.min_size, int) else self.min_size
        sizes = checks.sequence(where, sizes, range(1, 1001))
        if self.max_size is not None:
            checks.integer(self._where("max_size"), self.max_size, 1, checks.MAX_SIDE)
        self._set(
            min_size=tuple(checks.integer(where, size, 1, checks.MAX_SIDE) for size in sizes),
            interpolation=self._choice(self.interpolation),
        )

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int]:
        """Return (height, width) of the result."""
        assert isinstance(self.min_size, tuple)
        size = self.min_size[rng.below(len(self.min_size))]
        scale = size / min(spec.height, spec.width)
        if self.max_size is not None:
            scale = min(scale, self.max_size / max(spec.height, spec.width))
        return int(spec.height * scale), int(spec.width * scale)

    def _resize(self, spec: Spec, params: tuple[int, int]) -> Resize:
        return self._to(spec, *params, self.interpolation)


@dataclass(frozen=True)
class RandomResize(_Rescale):
    """Resize a picture so that its shorter edge has a random length, keeping its shape.

    Args:
        min_size: Smallest length of the shorter edge.
        max_size: One more than the largest length, as in torchvision.
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos".
    """

    min_size: int
    max_size: int
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        smallest = checks.integer(self._where("min_size"), self.min_size, 1, checks.MAX_SIDE)
        self._set(
            min_size=smallest,
            max_size=checks.integer(self._where("max_size"), self.max_size, smallest + 1, checks.MAX_SIDE + 1),
            interpolation=self._choice(self.interpolation),
        )

    def draw(self, rng: Rng, spec: Spec) -> int:  # noqa: ARG002 - part of the contract
        """Return the length of the shorter edge."""
        return self.min_size + rng.below(self.max_size - self.min_size)

    def _resize(self, spec: Spec, params: int) -> Resize:  # noqa: ARG002 - the others need it
        return Resize(params, self.interpolation)


@dataclass(frozen=True)
class ResizeKeepRatio(_Rescale):
    """Resize a picture to a target size, keeping its shape, with optional jitter, as timm's namesake does.

    Args:
        size: Target: an integer for a square, or (height, width).
        longest: 0 to cover the target, 1 to fit into it, or a mixture of the two.
        interpolation: A name as in `Resize`, or several to draw from.
        random_scale_prob: Probability of a random factor.
        random_scale_range: Smallest and largest factor.
        random_scale_area: Whether the factor applies to the visible area rather than to the edges.
        random_aspect_prob: Probability of a different aspect ratio.
        random_aspect_range: Smallest and largest change of width / height.
    """

    size: int | tuple[int, int]
    longest: float = 0.0
    interpolation: str | tuple[str, ...] = "bilinear"
    random_scale_prob: float = 0.0
    random_scale_range: tuple[float, float] = (0.85, 1.05)
    random_scale_area: bool = False
    random_aspect_prob: float = 0.0
    random_aspect_range: tuple[float, float] = (0.9, 1.11)

    def __post_init__(self) -> None:
        self._set(
            size=checks.size(self._where("size"), self.size),
            longest=checks.probability(self._where("longest"), self.longest),
            interpolation=interpolations(self._where("interpolation"), self.interpolation),
            random_scale_prob=checks.probability(self._where("random_scale_prob"), self.random_scale_prob),
            random_scale_range=checks.interval(self._where("random_scale_range"), self.random_scale_range, 1e-6, 1e6),
            random_scale_area=checks.flag(self._where("random_scale_area"), self.random_scale_area),
            random_aspect_prob=checks.probability(self._where("random_aspect_prob"), self.random_aspect_prob),
            random_aspect_range=checks.interval(
                self._where("random_aspect_range"), self.random_aspect_range, 1e-6, 1e6
            ),
        )

    @property
    def random(self) -> bool:
        """Whether there is anything to draw."""
        return self.random_scale_prob > 0.0 or self.random_aspect_prob > 0.0 or len(self.interpolation) > 1

    def output(self, spec: Spec) -> Spec:
        """Return an image whose size is known if nothing is random and the size of the input is known."""
        height, width, channels = self._input(spec).shape
        if height is None or width is None or self.random_scale_prob or self.random_aspect_prob:
            return image(None, None, channels)
        return image(*self._target(height, width, 1.0, 1.0), channels)

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int, str]:
        """Return (height, width) of the result and the interpolation."""
        factor_y = factor_x = 1.0
        if rng.chance(self.random_scale_prob):
            factor = rng.uniform(*self.random_scale_range)
            factor_y = factor_x = 1.0 / math.sqrt(factor) if self.random_scale_area else factor
        if rng.chance(self.random_aspect_prob):
            aspect = math.sqrt(rng.log_uniform(*self.random_aspect_range))
            factor_y, factor_x = factor_y / aspect, factor_x * aspect
        name = self.interpolation[rng.below(len(self.interpolation))]
        return *self._target(spec.height, spec.width, factor_y, factor_x), name

    def _resize(self, spec: Spec, params: tuple[int, int, str] | None) -> Resize:
        if params is None:
            params = *self._target(spec.height, spec.width, 1.0, 1.0), self.interpolation[0]
        return self._to(spec, *params)

    def _target(self, height: int, width: int, factor_y: float, factor_x: float) -> tuple[int, int]:
        assert isinstance(self.size, tuple)
        ratio_y, ratio_x = height / self.size[0], width / self.size[1]
        ratio = max(ratio_y, ratio_x) * self.longest + min(ratio_y, ratio_x) * (1.0 - self.longest)
        return round(height * factor_y / ratio), round(width * factor_x / ratio)
