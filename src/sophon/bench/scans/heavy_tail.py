"""Volumes of very different sizes: most take a few milliseconds, some take hundreds, as in SpeedyLoader's study.

The volumes are NIfTI files in one Parquet file. Their recipe uses the ops for volumes, plus `Pause`, whose cost is
known in advance.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sophon.pipeline import Key, Pipeline
from sophon.pipeline.ops.volumes import DecodeVolume, RandomBalancedCrop, RandomBrightnessVolume, RandomNoiseVolume
from sophon.pipeline.ops.volumes.op import VolumeOp
from sophon.pipeline.ops.volumes.written import nifti
from sophon.pipeline.part import Signal

_SIDE = 16  # side of the crop, and therefore of the smallest volume


@dataclass(frozen=True)
class Pause(VolumeOp):
    """Wait for a number of seconds per voxel, like an op that calls another machine.

    Its cost is known, and is the same even on a busy machine.
    """

    s_per_voxel: float = 7e-7  # 3 ms for the smallest volume that the crop fits into

    def apply(self, value: Signal, params: Any = None) -> Signal:  # noqa: ARG002 - part of the contract
        """Return the volume after a pause."""
        time.sleep(self.s_per_voxel * value.array.size)
        return value


_CROP = RandomBalancedCrop((_SIDE,) * 3, 0.0)
RECIPE = Pipeline([DecodeVolume(), RandomNoiseVolume(p=1.0), _CROP, RandomBrightnessVolume(p=1.0)])
WAITING = Pipeline([DecodeVolume(), Pause(), _CROP])


def encode(side: int, seed: int) -> bytes:
    """Return a synthetic cubic volume as a file: a few soft balls."""
    random = np.random.default_rng(seed)
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    volume = np.zeros((side, side, side), np.float32)
    for _ in range(3):
        z, y, x = ((axis - random.uniform(-0.5, 0.5)) ** 2 for _ in range(3))
        volume = np.maximum(volume, 1 - 2 * (z[:, None, None] + y[:, None] + x))
    return nifti((np.clip(volume, 0, 1) * 255).astype(np.uint8))


def side_for(seconds: float, s_per_voxel: float) -> int:
    """Return the side of a volume that takes about this long to process."""
    side: int = round((seconds / s_per_voxel) ** (1 / 3))
    return max(side, _SIDE)


def seconds_per_voxel(tries: int = 5) -> float:
    """Return the CPU seconds per voxel of the recipe on this machine, measured on medium-sized volumes."""
    data = encode(64, 0)
    spent = []
    for _ in range(tries):
        start_s = time.thread_time()
        RECIPE.run(data, Key(0, 0, 0))
        spent.append(time.thread_time() - start_s)
    return min(spent) / 64**3


def write_volumes(path: Path, seconds: list[float], s_per_voxel: float) -> None:
    """Write a Parquet file of volumes, one for each given number of seconds that finishing it should take."""
    schema = pa.schema([("image", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for number, wanted_s in enumerate(seconds):
            data = encode(side_for(wanted_s, s_per_voxel), number)
            writer.write_table(pa.table({"image": [data]}, schema=schema))  # one row group per volume
