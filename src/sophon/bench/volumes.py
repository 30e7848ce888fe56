"""Volumes of very different size, and ops on them, as in SpeedyLoader's study of 3-D segmentation.

Most volumes are small and take milliseconds; a few are large and take hundreds. The ops are plain NumPy, slab by slab,
so that temporary arrays stay small and Python's lock is free while one is worked on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sophon.pipeline import Key, Kind, Op, Pipeline, Rng, Spec, Tensor

_HEADER = np.dtype("<u2")  # three sides, then a byte per voxel
_SLAB = 1 << 19  # voxels: two megabytes of float32; a quarter of it, and threads meet at Python's lock 4 % of the time
_KERNEL = (0.06, 0.24, 0.4, 0.24, 0.06)  # a Gaussian of one voxel
_REACH = len(_KERNEL) // 2


@dataclass(frozen=True)
class DecodeVolume(Op):
    """Turn the bytes of a file into a volume."""

    takes: ClassVar[Kind] = Kind.ENCODED

    def output(self, spec: Spec) -> Spec:
        """Return a volume of any size."""
        self._check_kind(spec)
        return Spec(Kind.TENSOR, (None, None, None), "uint8")

    def apply(self, value: Any, params: Any = None) -> Tensor:  # noqa: ARG002 - part of the contract
        """Return the volume."""
        sides = tuple(int(side) for side in np.frombuffer(value, _HEADER, 3))
        return np.frombuffer(value, np.uint8, offset=3 * _HEADER.itemsize).reshape(sides)


@dataclass(frozen=True)
class _VolumeOp(Op):
    takes: ClassVar[Kind] = Kind.TENSOR

    def output(self, spec: Spec) -> Spec:
        """Return a volume of the same size."""
        self._check_kind(spec)
        return Spec(Kind.TENSOR, spec.shape, "float32")


@dataclass(frozen=True)
class Brightness(_VolumeOp):
    """Multiply by a random factor."""

    def draw(self, rng: Rng, spec: Spec) -> float:  # noqa: ARG002 - part of the contract
        """Return the factor."""
        return rng.uniform(0.7, 1.3)

    def apply(self, value: Tensor, params: float) -> Tensor:
        """Return the volume, brighter or darker."""
        bright = value * np.float32(params)
        return np.clip(bright, 0, 1, out=bright)


@dataclass(frozen=True)
class ScannerNoise(_VolumeOp):
    """Rician noise, as magnetic resonance has it, and the blur of a reconstruction."""

    sigma: float = 0.05

    def draw(self, rng: Rng, spec: Spec) -> int:  # noqa: ARG002 - part of the contract
        """Return a seed for the noise of all voxels."""
        return rng.word()

    def apply(self, value: Tensor, params: int) -> Tensor:
        """Return the volume, noisy and blurred."""
        random = np.random.Generator(np.random.Philox(params))
        out = np.empty(value.shape, np.float32)
        depth = min(max(_SLAB // max(value[0].size, 1), 1), len(value))
        blur = _Blur((depth, *value.shape[1:]))
        real, imaginary = np.empty_like(out[:depth]), np.empty_like(out[:depth])
        sigma = np.float32(self.sigma)
        for start in range(0, len(value), depth):
            slab = value[start : start + depth]
            size = len(slab)
            noisy = random.standard_normal(dtype=np.float32, out=real[:size])
            noisy *= sigma
            noisy += np.multiply(slab, np.float32(1 / 255), out=imaginary[:size])
            noisy *= noisy
            other = random.standard_normal(dtype=np.float32, out=imaginary[:size])
            other *= sigma
            other *= other
            noisy += other
            np.sqrt(noisy, out=noisy)
            for axis in range(3):
                blur(noisy, axis)
            out[start : start + depth] = noisy
        return out


class _Blur:
    """Blurs slabs in place with reused memory: mapping and unmapping pages holds up all threads of a process.

    Args:
        shape: Shape of the largest slab.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._part = np.empty(shape, np.float32)
        sides = [(*shape[:a], shape[a] + 2 * _REACH, *shape[a + 1 :]) for a in range(3)]
        self._padded = np.empty(max(int(np.prod(side)) for side in sides), np.float32)

    def __call__(self, slab: Tensor, axis: int) -> None:
        shape = list(slab.shape)
        shape[axis] += 2 * _REACH
        padded = np.moveaxis(self._padded[: int(np.prod(shape))].reshape(shape), axis, 0)
        rows, part = np.moveaxis(slab, axis, 0), np.moveaxis(self._part[: len(slab)], axis, 0)
        padded[:_REACH], padded[_REACH:-_REACH], padded[-_REACH:] = rows[0], rows, rows[-1]
        np.multiply(padded[: len(rows)], np.float32(_KERNEL[0]), out=rows)
        for offset, weight in enumerate(_KERNEL[1:], 1):
            rows += np.multiply(padded[offset : offset + len(rows)], np.float32(weight), out=part)


@dataclass(frozen=True)
class Pause(_VolumeOp):
    """Wait for so many seconds per voxel, as an op does that asks another machine.

    What it costs is known, and the same on a machine whose cores are busy with something else.
    """

    s_per_voxel: float = 7e-7  # 3 ms for the smallest volume that the crop fits into

    def apply(self, value: Tensor, params: Any = None) -> Tensor:  # noqa: ARG002 - part of the contract
        """Return the volume, later."""
        time.sleep(self.s_per_voxel * value.size)
        return value.astype(np.float32)


@dataclass(frozen=True)
class RandomCrop3D(_VolumeOp):
    """Cut a cube out of a volume, at a random place."""

    side: int = 16

    def output(self, spec: Spec) -> Spec:
        """Return a cube."""
        self._check_kind(spec)
        return Spec(Kind.TENSOR, (self.side,) * 3, "float32")

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, ...]:
        """Return where the cube begins."""
        return tuple(rng.below((side or 0) - self.side + 1) for side in spec.shape)

    def apply(self, value: Tensor, params: tuple[int, ...]) -> Tensor:
        """Return the cube."""
        return np.ascontiguousarray(value[tuple(slice(start, start + self.side) for start in params)])


RECIPE = Pipeline([DecodeVolume(), ScannerNoise(), RandomCrop3D(), Brightness()])
WAITING = Pipeline([DecodeVolume(), Pause(), RandomCrop3D()])


def encode(side: int, seed: int) -> bytes:
    """Return the file of a synthetic cubic volume: a few soft balls."""
    random = np.random.default_rng(seed)
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    volume = np.zeros((side, side, side), np.float32)
    for _ in range(3):
        z, y, x = ((axis - random.uniform(-0.5, 0.5)) ** 2 for _ in range(3))
        volume = np.maximum(volume, 1 - 2 * (z[:, None, None] + y[:, None] + x))
    sides = np.array([side] * 3, _HEADER).tobytes()
    return sides + (np.clip(volume, 0, 1) * 255).astype(np.uint8).tobytes()


def side_for(seconds: float, s_per_voxel: float) -> int:
    """Return the side of a volume that takes about so long."""
    side: int = round((seconds / s_per_voxel) ** (1 / 3))
    return max(side, RandomCrop3D.side)


def seconds_per_voxel(tries: int = 5) -> float:
    """Return the CPU seconds that the recipe takes for one voxel on this machine, from volumes of middling size."""
    data = encode(64, 0)
    spent = []
    for _ in range(tries):
        start_s = time.thread_time()
        RECIPE.run(data, Key(0, 0, 0))
        spent.append(time.thread_time() - start_s)
    return min(spent) / 64**3


def write_volumes(path: Path, seconds: list[float], s_per_voxel: float) -> None:
    """Write a Parquet file of volumes, one for each number of seconds that finishing it shall take."""
    schema = pa.schema([("image", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for number, wanted_s in enumerate(seconds):
            data = encode(side_for(wanted_s, s_per_voxel), number)
            writer.write_table(pa.table({"image": [data]}, schema=schema))  # a row group each: read by itself
