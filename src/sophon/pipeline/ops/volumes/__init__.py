"""Volumes: CT and MR scans with labels, from NIfTI files and chunked arrays."""

from sophon.pipeline.ops.volumes.crop import RandomBalancedCrop, RandomFlipVolume
from sophon.pipeline.ops.volumes.decode import DecodeVolume
from sophon.pipeline.ops.volumes.intensity import (
    CastVolume,
    NormalizeVolume,
    RandomBrightnessVolume,
    RandomNoiseVolume,
)
from sophon.pipeline.ops.volumes.resample import ResampleVolume

__all__ = [
    "CastVolume",
    "DecodeVolume",
    "NormalizeVolume",
    "RandomBalancedCrop",
    "RandomBrightnessVolume",
    "RandomFlipVolume",
    "RandomNoiseVolume",
    "ResampleVolume",
]
