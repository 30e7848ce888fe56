"""Augmentation for detectors: crops that keep objects, and borders that make them smaller (Liu et al., 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from PIL import Image

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.ops.crop import crop
from sophon.pipeline.ops.pad import pad
from sophon.pipeline.ops.picture import ImageOp, moved
from sophon.pipeline.part import Box, Part, missing
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Objects, Spec, image

Sides: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom

_OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_AS_IT_IS = 1.0  # an overlap that means no crop
_ROUNDS = 200  # torchvision would try forever; if 8,000 crops keep no object, no crop will
_AT_ONCE = 64  # crops tried in one pass over all objects
_MOST_TRIALS = 1000
_MOST_OVERLAPS = 64
_LARGEST_SIDE = 100.0  # as a multiple of the picture's side


@dataclass(frozen=True)
class RandomIoUCrop(ImageOp):
    """Cut out a random part that overlaps an object by at least a randomly drawn amount, or leave the picture whole.

    Args:
        min_scale: Smallest share of the picture's width and of its height.
        max_scale: Largest share of the picture's width and of its height.
        min_aspect_ratio: Smallest width / height of the part.
        max_aspect_ratio: Largest width / height of the part.
        sampler_options: Minimum overlaps (intersection over union of the part and the best object) to draw from; 1 or
            more means the whole picture.
        trials: How many parts are tried before a new overlap is drawn.
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: tuple[float, ...] = _OVERLAPS
    trials: int = 40

    def __post_init__(self) -> None:
        where = self._where("sampler_options")
        overlaps = checks.sequence(where, self.sampler_options, range(1, _MOST_OVERLAPS + 1))
        low, high = checks.interval(self._where("min_scale"), (self.min_scale, self.max_scale), 0.0, 1.0)
        narrow, wide = checks.interval(
            self._where("min_aspect_ratio"), (self.min_aspect_ratio, self.max_aspect_ratio), 0.0, 1e6
        )
        self._set(
            min_scale=low,
            max_scale=high,
            min_aspect_ratio=narrow,
            max_aspect_ratio=wide,
            sampler_options=tuple(checks.number(where, overlap, 0.0, 1e6) for overlap in overlaps),
            trials=checks.integer(self._where("trials"), self.trials, 1, _MOST_TRIALS),
        )

    @property
    def looks(self) -> bool:
        """Always true: the draws depend on the boxes of objects."""
        return True

    def output(self, spec: Spec) -> Spec:
        """Return an image of unknown size."""
        spec = self._input(spec)
        return image(None, None, spec.channels)

    def made(self, spec: Spec, params: Box | None) -> Spec:
        """Return an image of the size that was drawn."""
        return spec if params is None else image(params[2], params[3], spec.channels)

    def draw(self, rng: Rng, spec: Spec) -> Box | None:
        """Return the box to cut out; None to leave the picture as it is."""
        if spec.objects is None:
            raise OpError(
                "it needs the sample's boxes, but there are none here.",
                remedy='Use it in sophon.Joint over samples with one field of boxes, ("image", {"boxes": "boxes", …}).',
            )
        for _ in range(_ROUNDS if len(spec.objects) else 0):
            overlap = self.sampler_options[rng.below(len(self.sampler_options))]
            if overlap >= _AS_IT_IS:
                return None
            for first in range(0, self.trials, _AT_ONCE):
                chances = rng.uniforms(4 * min(_AT_ONCE, self.trials - first)).reshape(-1, 4)
                found = self._first_fit(chances, spec, spec.objects, overlap)
                if found is not None:
                    return found
        if max(self.sampler_options) >= _AS_IT_IS:
            return None
        raise OpError(
            f"no crop was found that keeps one of {len(spec.objects)} boxes.",
            remedy="Add 1.0 to sampler_options, which leaves such pictures unchanged.",
        )

    def _first_fit(
        self, chances: np.ndarray[tuple[int, int], np.dtype[np.float64]], spec: Spec, objects: Objects, overlap: float
    ) -> Box | None:
        """Return the first candidate box that torchvision would accept; None if there is none."""
        height, width = spec.height, spec.width
        # In float32, as in torchvision's tensors.
        shares = (self.min_scale + (self.max_scale - self.min_scale) * chances[:, :2]).astype(np.float32)
        w, h = (shares * np.array([width, height], np.float32)).astype(np.int64).T
        left, top = ((width - w) * chances[:, 2]).astype(np.int64), ((height - h) * chances[:, 3]).astype(np.int64)
        ratio = w / np.maximum(h, 1)
        fits = (w > 0) & (h > 0) & (self.min_aspect_ratio <= ratio) & (ratio <= self.max_aspect_ratio)
        parts = np.stack([left, top, left + w, top + h], axis=1).astype(np.float64)
        kept = _are_inside(objects, parts)
        fits &= (kept & (_overlaps(objects, parts) >= overlap)).any(axis=1)
        if not fits.any():
            return None
        at = int(np.argmax(fits))
        return int(top[at]), int(left[at]), int(h[at]), int(w[at])

    def placed(self, spec: Spec, params: Box | None) -> Objects | None:
        """Return the objects in the part; those with centres outside it are marked as empty, as in torchvision."""
        if params is None or spec.objects is None:
            return spec.objects
        top, left, height, width = params
        part = np.array([[left, top, left + width, top + height]], np.float64)
        found = moved(spec, left, top, width, height)
        return None if found is None else found * _are_inside(spec.objects, part)[0][:, None]

    def box_needed(self, spec: Spec, params: Box | None) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box to cut out."""
        return params

    def apply(self, value: Image.Image | Part, params: Box | None) -> Image.Image:
        """Return the part inside the box, or the whole picture if there is no box."""
        if params is not None:
            return crop(value, params)
        if isinstance(value, Part):
            raise missing(None)
        return self._picture(value)


@dataclass(frozen=True)
class RandomZoomOut(ImageOp):
    """Place a picture at random in a larger one of random size, with probability p.

    Args:
        fill: Colour around the picture: one number or one per channel.
        side_range: Smallest and largest ratio of the larger picture's sides to the picture's own, not below 1.
        p: Probability.
    """

    fill: checks.Fill = 0.0
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        self._set(
            fill=checks.fill(self._where("fill"), self.fill),
            side_range=checks.interval(self._where("side_range"), self.side_range, 1.0, _LARGEST_SIDE),
            p=checks.probability(self._where("p"), self.p),
        )

    def output(self, spec: Spec) -> Spec:
        """Return an image of unknown size."""
        return image(None, None, self._input(spec).channels)

    def made(self, spec: Spec, params: Sides | None) -> Spec:
        """Return an image of the size that was drawn."""
        if params is None:
            return spec
        left, top, right, bottom = params
        return image(spec.height + top + bottom, spec.width + left + right, spec.channels)

    def draw(self, rng: Rng, spec: Spec) -> Sides | None:
        """Return the border on each side; None for no border."""
        if not rng.chance(self.p):
            return None
        factor = np.float32(rng.uniform(*self.side_range))  # in float32, as in torchvision's tensors
        across, down = (int(np.float32(side) * factor) - side for side in (spec.width, spec.height))
        left, top = int(across * rng.uniform()), int(down * rng.uniform())
        return left, top, across - left, down - top

    def placed(self, spec: Spec, params: Sides | None) -> Objects | None:
        """Return the objects, shifted with the picture."""
        if params is None:
            return spec.objects
        made = self.made(spec, params)
        return moved(spec, -params[0], -params[1], made.width, made.height)

    def box_before(self, box: Box, spec: Spec, params: Sides | None) -> Box | None:
        """Return the part of the box that lies inside the picture; None if no part does."""
        if params is None:
            return box
        top, left = box[0] - params[1], box[1] - params[0]
        bottom, right = min(top + box[2], spec.height), min(left + box[3], spec.width)
        top, left = max(top, 0), max(left, 0)
        return (top, left, bottom - top, right - left) if bottom > top and right > left else None

    def apply(self, value: Image.Image | Part, params: Sides | None) -> Image.Image | Part:
        """Return the larger picture; given a part, only that part, with borders where it reaches the edge."""
        if not isinstance(value, Part):
            picture = self._picture(value)
            return picture if params is None else pad(picture, params, self.fill, "constant")
        if params is None:
            return value
        left, top, right, bottom = params
        ends_right, ends_bottom = value.left + value.picture.width, value.top + value.picture.height
        sides = (
            left if value.left == 0 else 0,
            top if value.top == 0 else 0,
            right if ends_right == value.width else 0,
            bottom if ends_bottom == value.height else 0,
        )
        return Part(
            pad(value.picture, sides, self.fill, "constant"),
            value.top + top - sides[1],
            value.left + left - sides[0],
            value.height + top + bottom,
            value.width + left + right,
        )


def _are_inside(objects: Objects, parts: Objects) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return for each part and object whether the object's centre lies inside the part, not on its edge."""
    x, y = (objects[:, 0] + objects[:, 2]) * 0.5, (objects[:, 1] + objects[:, 3]) * 0.5
    left, top, right, bottom = parts.T[:, :, None]
    are: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = (left < x) & (x < right) & (top < y) & (y < bottom)
    return are


def _overlaps(objects: Objects, parts: Objects) -> Objects:
    """Return the intersection over union of each part and each object."""
    left, top, right, bottom = parts.T[:, :, None]
    width = np.minimum(right, objects[:, 2]) - np.maximum(left, objects[:, 0])
    height = np.minimum(bottom, objects[:, 3]) - np.maximum(top, objects[:, 1])
    common = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    sizes = (objects[:, 2] - objects[:, 0]) * (objects[:, 3] - objects[:, 1])
    union = (right - left) * (bottom - top) + sizes - common
    shares: Objects = np.divide(common, union, out=np.zeros_like(common), where=union > 0.0)
    return shares
