"""A volume file in any format: sizes, data type, spacing, and any box of the voxels.

Axes are those of the file, x, y and z for NIfTI; channels come first. Files are untrusted: every number in a header is
checked before anything is allocated, and every problem raises `OpError`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.errors import OpError
from sophon.pipeline.part import Box

Voxels = np.ndarray[Any, np.dtype[Any]]

AXES = 3
MAX_VOXELS = 1 << 28  # over all channels: 512 × 512 × 1,024, a gigabyte of float32
_VOXEL_BYTES = 4  # a voxel of eight bytes counts as two, so the limit also bounds the bytes
_MOST_CHANNELS = 1 << 16
NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
REMEDY = "Check that the file is complete and opens elsewhere, replace it, or leave it out."


@dataclass(frozen=True)
class Header:
    """The header of a file.

    Args:
        channels: Number of values per voxel.
        sizes: Number of voxels along each axis.
        dtype: Type of the numbers in the file, with its byte order.
        spacing: Distance between voxels along each axis, in mm.
        slope: Factor for stored numbers; 1 to leave them unchanged.
        inter: Offset added after that; 0 to leave them unchanged.
    """

    channels: int
    sizes: tuple[int, int, int]
    dtype: np.dtype[Any]
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    slope: float = 1.0
    inter: float = 0.0

    @property
    def voxels(self) -> int:
        """Number of values in the file."""
        return self.channels * math.prod(self.sizes)

    @property
    def whole(self) -> Box:
        """The box of all voxels."""
        return (0, 0, 0, *self.sizes)

    def checked(self, max_voxels: int) -> Header:
        """Return the header itself, if it is valid.

        Raises:
            OpError: The header declares too many voxels, no voxels, or impossible numbers.
        """
        if min(self.sizes) < 1 or not 1 <= self.channels <= _MOST_CHANNELS:
            raise OpError(f"the volume has {self} voxels.", remedy=REMEDY)
        most = max_voxels * _VOXEL_BYTES // max(self.dtype.itemsize, _VOXEL_BYTES)
        if self.voxels > most:
            raise OpError(
                f"the volume has {self} voxels of {self.dtype.itemsize} bytes, more than the {most:,} allowed.",
                remedy="Raise DecodeVolume(max_voxels=…) if the file is correct.",
            )
        if self.dtype.name not in NUMBERS:
            raise OpError(
                f"the voxels have type {self.dtype.name}.", remedy=f"Save it with one of {', '.join(NUMBERS)}."
            )
        if not all(math.isfinite(step) and 0 < step < 1e6 for step in self.spacing):
            raise OpError(f"the volume has a spacing of {self.spacing} mm.", remedy=REMEDY)
        if not (math.isfinite(self.slope) and math.isfinite(self.inter)):
            raise OpError(f"the volume has a slope of {self.slope} and an intercept of {self.inter}.", remedy=REMEDY)
        return self

    def __str__(self) -> str:
        sizes = "×".join(map(str, self.sizes))
        return sizes if self.channels == 1 else f"{self.channels}×{sizes}"


class VolumeFile(ABC):
    """A volume file with a parsed header.

    Attributes:
        header: The header of the file.
    """

    header: Header

    @abstractmethod
    def read(self, box: Box) -> Voxels:
        """Return the stored values of a box of the whole volume as (channels, x, y, z).

        Raises:
            OpError: The file is damaged in that box.
        """


def as_image(stored: Voxels, header: Header) -> Voxels:
    """Convert stored values to the float32 values they represent."""
    if (header.slope, header.inter) == (1.0, 0.0):
        return np.ascontiguousarray(stored, np.float32)
    scaled = stored.astype(np.float64)
    scaled *= header.slope
    scaled += header.inter
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(scaled, np.float32)


def as_label(stored: Voxels, header: Header) -> Voxels:
    """Convert stored values to uint8 classes.

    Raises:
        OpError: The values are not whole numbers in 0 … 255.
    """
    if stored.dtype == np.uint8 and (header.slope, header.inter) == (1.0, 0.0):
        return np.ascontiguousarray(stored)
    numbers = stored if (header.slope, header.inter) == (1.0, 0.0) else as_image(stored, header)
    with np.errstate(invalid="ignore"):
        classes = numbers.astype(np.uint8)
    if not np.array_equal(classes, numbers):
        raise OpError(
            f"the label has values {numbers.min()} … {numbers.max()}, expected whole numbers in 0 … 255.",
            remedy="Save class numbers, or leave the label out.",
        )
    return np.ascontiguousarray(classes)


def slices(box: Box) -> tuple[slice, ...]:
    """Return the slices of a box, with all channels."""
    starts, lengths = box[:AXES], box[AXES:]
    return (slice(None), *(slice(start, start + length) for start, length in zip(starts, lengths, strict=True)))
