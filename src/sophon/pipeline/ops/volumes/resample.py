"""ResampleVolume: change the spacing of voxels.

Portable: positions take one multiplication and one division of whole numbers, and voxels one subtraction, one
multiplication and one addition of float32 per axis. All are basic IEEE 754 operations, so the bits are the same on
every machine, and a part has the same bits as the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks
from sophon.pipeline.ops.volumes.file import AXES, MAX_VOXELS, REMEDY, Voxels
from sophon.pipeline.ops.volumes.op import VolumeOp
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.spec import Objects, Spec

Sizes = tuple[int, ...]
_MOST_SIZE = 1 << 16  # along one axis
_MOST_GROWTH = 2  # of a volume that is already larger than usual


@dataclass(frozen=True)
class ResampleVolume(VolumeOp):
    """Resample a volume to a new spacing: trilinear interpolation for the image, nearest voxel for the label.

    The outermost voxels stay where they are (``align_corners=True`` of torch's ``interpolate``). Along each axis, n
    voxels at a distance of a become ``floor(n * a / b + 0.5)`` voxels (at least one) at a distance of b.

    Args:
        spacing: Distance between voxels along each axis, in mm.
    """

    spacing: tuple[float, float, float] = (1.6, 1.2, 1.2)

    def __post_init__(self) -> None:
        where = self._where("spacing")
        told = (self.spacing,) * AXES if isinstance(self.spacing, int | float) else self.spacing
        steps = checks.sequence(where, told, (AXES,))
        self._set(spacing=tuple(float(checks.number(where, step, 1e-3, 1e3)) for step in steps))

    def output(self, spec: Spec) -> Spec:
        """Return the spec of the resampled volume; its size is known if the size and spacing of the input are."""
        self._check_kind(spec)
        if spec.dtype != "float32":
            raise ConfigError(f"ResampleVolume takes float32 volumes, but the op before it returns {spec}")
        before = spec.sizes
        sizes = [
            None if size is None or not spec.scale else self._made(size, spec.scale[axis], axis)
            for axis, size in enumerate(before)
        ]
        return replace(spec.resized(tuple(sizes)), scale=self.spacing, objects=None)

    def _made(self, size: int, step: float, axis: int) -> int:
        return min(max(math.floor(size * step / self.spacing[axis] + 0.5), 1), _MOST_SIZE)

    def placed(self, spec: Spec, params: Any) -> Objects | None:  # noqa: ARG002 - part of the contract
        """Return the boxes of the foreground, grown to whole voxels."""
        if spec.objects is None or None in spec.sizes:
            return None
        before = [size or 1 for size in spec.sizes]
        after = [self._made(size, spec.scale[axis], axis) for axis, size in enumerate(before)]
        return _moved(spec.objects, before, after)

    def box_before(self, box: Box, spec: Spec, params: Any) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box of input voxels that surround the output voxels of a box."""
        starts, lengths = [], []
        for axis, size in enumerate(spec.sizes):
            assert size is not None
            made = self._made(size, spec.scale[axis], axis)
            low, _ = _positions(size, made, box[axis], 1)
            high, _ = _positions(size, made, box[axis] + box[AXES + axis] - 1, 1)
            starts.append(int(low[0]))
            lengths.append(min(int(high[0]) + 2, size) - int(low[0]))
        return (*starts, *lengths)

    def apply(self, value: Signal, params: Any = None) -> Signal:  # noqa: ARG002 - part of the contract
        """Return the resampled volume; given a part, only the box that the part determines."""
        before = value.whole_sizes
        after = tuple(self._made(size, value.scale[axis], axis) for axis, size in enumerate(before))
        starts = value.starts or (0,) * AXES
        image, label = value.array, value.label
        ranges = [
            (starts[axis], image.shape[1 + axis])
            if before[axis] == after[axis]
            else _covered(before[axis], after[axis], starts[axis], image.shape[1 + axis])
            for axis in range(AXES)
        ]
        self._check(image, [count for _, count in ranges], value.scale)
        for axis, (first, count) in enumerate(ranges):
            if before[axis] == after[axis]:
                continue
            image = _interpolated(image, axis, before[axis], after[axis], starts[axis], first, count)
            if label is not None:
                label = _nearest(label, axis, before[axis], after[axis], starts[axis], first, count)
        objects = None if value.objects is None else _moved(value.objects, before, after)
        whole = image.shape[1:] == after
        begins = tuple(first for first, _ in ranges)
        return Signal(image, value.kind, self.spacing, () if whole else begins, () if whole else after, label, objects)

    def _check(self, image: Voxels, counts: Sequence[int], scale: Sequence[float]) -> None:
        """Raise if the result would be too large: its size depends on the file's spacing, which is untrusted."""
        voxels = len(image) * math.prod(counts)
        if voxels > max(MAX_VOXELS, _MOST_GROWTH * image.size):
            sizes = "×".join(map(str, counts))
            raise OpError(
                f"voxels {', '.join(f'{step:g}' for step in scale)} mm apart would become {sizes} voxels, more than "
                f"{MAX_VOXELS:,}.",
                remedy=f"{REMEDY} If its spacing is right, crop first.",
            )


def _positions(size: int, made: int, first: int, count: int) -> tuple[Any, Any]:
    """Return the lower input neighbour of each output voxel, and the voxel's distance from it in float64."""
    at = np.arange(first, first + count, dtype=np.int64)
    if made == 1:
        return np.zeros(count, np.int64), np.zeros(count)
    exact = (at * (size - 1)) / (made - 1)
    low = np.floor(exact)
    return low.astype(np.int64), exact - low


def _covered(size: int, made: int, start: int, length: int) -> tuple[int, int]:
    """Return the first output voxel that a range of the input determines, and how many there are."""
    low, share = _positions(size, made, 0, made)
    needed = np.minimum(low + (share > 0), size - 1)
    inside = np.flatnonzero((low >= start) & (needed < start + length))
    return (int(inside[0]), len(inside)) if len(inside) else (0, 0)


def _interpolated(image: Voxels, axis: int, size: int, made: int, start: int, first: int, count: int) -> Voxels:
    low, share = _positions(size, made, first, count)
    high = np.minimum(low + (share > 0), size - 1)
    below = np.take(image, low - start, axis=1 + axis)
    above: Voxels = np.take(image, high - start, axis=1 + axis)
    weights = share.astype(np.float32).reshape([-1 if a == 1 + axis else 1 for a in range(1 + AXES)])
    above -= below
    above *= weights
    above += below
    return above


def _nearest(label: Voxels, axis: int, size: int, made: int, start: int, first: int, count: int) -> Voxels:
    low, share = _positions(size, made, first, count)
    found: Voxels = np.take(label, low + (share >= 0.5) - start, axis=1 + axis)
    return found


def _moved(boxes: Objects, before: Sequence[int], after: Sequence[int]) -> Objects:
    """Return the boxes of the foreground after resampling, grown to whole voxels."""
    moved = boxes.copy()
    for axis, (size, made) in enumerate(zip(before, after, strict=True)):
        if size != made:
            low, high = 1 + axis, 1 + AXES + axis
            moved[:, low] = np.floor(boxes[:, low] * made / size)
            moved[:, high] = np.maximum(np.minimum(np.ceil(boxes[:, high] * made / size), made), moved[:, low] + 1)
    return moved
