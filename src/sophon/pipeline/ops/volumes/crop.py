"""Random crops of volumes, which may favour the foreground; and random flips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sophon.pipeline import checks
from sophon.pipeline.ops.volumes.file import AXES, Voxels
from sophon.pipeline.ops.volumes.op import VolumeOp, sides
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec

Starts = tuple[int, int, int]


@dataclass(frozen=True)
class RandomBalancedCrop(VolumeOp):
    """Crop a random box; with a given probability, one that contains foreground, as in MLPerf's 3D U-Net.

    For a crop with foreground, a class and one of its pieces are drawn, then a position at which the crop holds as much
    of the piece as possible without crossing the border. Without a foreground index (`DecodeVolume.foreground`), or if
    a label has no foreground, crops are drawn uniformly. Along an axis on which the volume is smaller than the crop,
    the volume is centred and padded with `fill`, or with 0 for the label.

    Args:
        size: Voxels along each axis: one number for all axes, or three.
        oversampling: Probability of a crop with foreground.
        fill: Value of voxels around a volume that is too small.
    """

    size: tuple[int, int, int] = (128, 128, 128)
    oversampling: float = 0.4
    fill: float = 0.0

    def __post_init__(self) -> None:
        self._set(
            size=sides(self._where("size"), self.size),
            oversampling=checks.probability(self._where("oversampling"), self.oversampling),
            fill=float(checks.number(self._where("fill"), self.fill)),
        )

    def output(self, spec: Spec) -> Spec:
        """Return the spec of a volume of the crop's size."""
        self._check_kind(spec)
        return replace(spec.resized(self.size), objects=None)

    def draw(self, rng: Rng, spec: Spec) -> Starts:
        """Return the start of the crop; negative on an axis where the volume is too small."""
        sizes = [spec.known(size) for size in spec.sizes]
        boxes = spec.objects
        if boxes is None or not len(boxes) or not rng.chance(self.oversampling):
            return self._starts(sizes, [rng.below(max(n - c, 0) + 1) for n, c in zip(sizes, self.size, strict=True)])
        classes = sorted(set(boxes[:, 0].tolist()))
        pieces = boxes[boxes[:, 0] == classes[rng.below(len(classes))]]
        piece = pieces[rng.below(len(pieces))]
        found = []
        for axis, (size, side) in enumerate(zip(sizes, self.size, strict=True)):
            low, high = int(piece[1 + axis]), int(piece[1 + AXES + axis])
            # The crop starts between two positions: with the piece at the crop's end, and with the piece at its start.
            first, last = min(low, high - side), max(low, high - side)
            first, last = max(first, 0), min(last, max(size - side, 0))
            found.append(min(first, last) + rng.below(max(last - first, 0) + 1))
        return self._starts(sizes, found)

    def _starts(self, sizes: list[int], found: list[int]) -> Starts:
        x, y, z = (
            at if size >= side else -((side - size) // 2)
            for at, size, side in zip(found, sizes, self.size, strict=True)
        )
        return x, y, z

    def box_needed(self, spec: Spec, params: Starts) -> Box | None:
        """Return the part of the crop's box that lies inside the volume."""
        return self._inside(params, tuple(spec.known(size) for size in spec.sizes))

    def _inside(self, params: Starts, sizes: tuple[int, ...]) -> Box:
        starts = [max(at, 0) for at in params]
        stops = [min(at + side, size) for at, side, size in zip(params, self.size, sizes, strict=True)]
        return (*starts, *(stop - start for start, stop in zip(starts, stops, strict=True)))

    def apply(self, value: Signal, params: Starts) -> Signal:
        """Return the crop."""
        box = self._inside(params, value.whole_sizes)
        piece = value.piece(box)
        label = None if value.label is None else value.beside(value.label, box)
        if box[AXES:] != self.size:
            piece = self._padded(piece, params, self.fill)
            label = None if label is None else self._padded(label, params, 0)
        label = None if label is None else np.ascontiguousarray(label)
        return Signal(np.ascontiguousarray(piece), value.kind, value.scale, label=label)

    def _padded(self, piece: Voxels, params: Starts, fill: float) -> Voxels:
        whole = np.full((piece.shape[0], *self.size), fill, piece.dtype)
        at = [slice(max(-start, 0), max(-start, 0) + n) for start, n in zip(params, piece.shape[1:], strict=True)]
        whole[(slice(None), *at)] = piece
        return whole


@dataclass(frozen=True)
class RandomFlipVolume(VolumeOp):
    """Flip a volume along each axis at random, independently.

    Args:
        p: Probability for each axis.
    """

    p: float = 1 / 3

    def __post_init__(self) -> None:
        self._set(p=checks.probability(self._where("p"), self.p))

    def draw(self, rng: Rng, spec: Spec) -> tuple[bool, bool, bool]:  # noqa: ARG002 - part of the contract
        """Return which axes are mirrored."""
        return rng.chance(self.p), rng.chance(self.p), rng.chance(self.p)

    def placed(self, spec: Spec, params: tuple[bool, bool, bool]) -> Any:
        """Return the mirrored boxes of the foreground."""
        return None if spec.objects is None else _mirrored(spec.objects, spec.sizes, params)

    def box_before(self, box: Box, spec: Spec, params: tuple[bool, bool, bool]) -> Box | None:
        """Return the mirrored box."""
        return _mirrored_box(box, tuple(spec.known(size) for size in spec.sizes), params)

    def apply(self, value: Signal, params: tuple[bool, bool, bool]) -> Signal:
        """Return the volume, mirrored or not."""
        axes = tuple(1 + axis for axis, is_flipped in enumerate(params) if is_flipped)
        if not axes:
            return value
        starts = value.starts and _mirrored_box(value.box, value.whole_sizes, params)[:AXES]
        label = None if value.label is None else np.ascontiguousarray(np.flip(value.label, axes))
        objects = None if value.objects is None else _mirrored(value.objects, value.whole_sizes, params)
        return replace(
            value, array=np.ascontiguousarray(np.flip(value.array, axes)), starts=starts, label=label, objects=objects
        )


def _mirrored_box(box: Box, sizes: tuple[int, ...], params: tuple[bool, ...]) -> Box:
    starts = [size - box[axis] - box[AXES + axis] if params[axis] else box[axis] for axis, size in enumerate(sizes)]
    return (*starts, *box[AXES:])


def _mirrored(boxes: Any, sizes: Any, params: tuple[bool, ...]) -> Any:
    moved = boxes.copy()
    for axis, size in enumerate(sizes):
        if params[axis]:
            moved[:, 1 + axis], moved[:, 1 + AXES + axis] = size - boxes[:, 1 + AXES + axis], size - boxes[:, 1 + axis]
    return moved
