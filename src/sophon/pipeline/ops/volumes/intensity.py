"""Ops on the intensities of volumes: normalise, brighten, add noise, change the type.

Portable: only float32 additions, multiplications and divisions, and normal random numbers from `rng`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sophon.pipeline import checks
from sophon.pipeline.ops.volumes.file import Voxels
from sophon.pipeline.ops.volumes.op import IntensityOp, VolumeOp
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec

_IMAGE_TYPES = ("float32", "int16", "uint8")
_LABEL_TYPES = ("uint8", "int32")


@dataclass(frozen=True)
class NormalizeVolume(IntensityOp):
    """Clip intensities to a range, subtract a mean and divide by a deviation; the same numbers for all volumes.

    The defaults are those of MLPerf for KiTS19: the range of kidneys and tumours in Hounsfield units.

    Args:
        low: Smallest intensity.
        high: Largest intensity.
        mean: Mean to subtract.
        std: Standard deviation to divide by.
    """

    low: float = -79.0
    high: float = 304.0
    mean: float = 101.0
    std: float = 76.9

    def __post_init__(self) -> None:
        told = {name: float(checks.number(self._where(name), getattr(self, name))) for name in ("low", "high", "mean")}
        if told["low"] >= told["high"]:
            raise checks.fail(self._where("low"), self.low, f"a number below high ({self.high})")
        self._set(**told, std=float(checks.number(self._where("std"), self.std, 1e-12)))

    def changed(self, image: Voxels, params: Any) -> Voxels:  # noqa: ARG002 - part of the contract
        """Return the normalised image."""
        done: Voxels = np.clip(image, np.float32(self.low), np.float32(self.high), dtype=np.float32)
        done -= np.float32(self.mean)
        done /= np.float32(self.std)
        return done


@dataclass(frozen=True)
class RandomBrightnessVolume(IntensityOp):
    """Multiply the image by a random factor, with probability `p`.

    Args:
        factor: Factors are 1 - factor … 1 + factor.
        p: Probability.
    """

    factor: float = 0.3
    p: float = 0.1

    def __post_init__(self) -> None:
        self._set(
            factor=float(checks.number(self._where("factor"), self.factor, 0, 1)),
            p=checks.probability(self._where("p"), self.p),
        )

    def draw(self, rng: Rng, spec: Spec) -> float | None:  # noqa: ARG002 - part of the contract
        """Return the factor; None to leave the image unchanged."""
        if not rng.chance(self.p):
            return None
        return rng.uniform32(1.0 - self.factor, 1.0 + self.factor)

    def changed(self, image: Voxels, params: float | None) -> Voxels:
        """Return the image, brighter or darker."""
        return image if params is None else image * np.float32(params)


@dataclass(frozen=True)
class RandomNoiseVolume(VolumeOp):
    """Add Gaussian noise of random standard deviation to the image, with probability `p`.

    Args:
        mean: Mean of the noise.
        std: Largest standard deviation.
        p: Probability.
    """

    mean: float = 0.0
    std: float = 0.1
    p: float = 0.1

    def __post_init__(self) -> None:
        self._set(
            mean=float(checks.number(self._where("mean"), self.mean)),
            std=float(checks.number(self._where("std"), self.std, 0)),
            p=checks.probability(self._where("p"), self.p),
        )

    def draw(self, rng: Rng, spec: Spec) -> Voxels | None:
        """Return the noise to add; None for no noise."""
        if not rng.chance(self.p):
            return None
        deviation = np.float32(rng.uniform32(0.0, self.std))
        noise = rng.normals(tuple(spec.known(size) for size in spec.shape))
        noise *= deviation
        noise += np.float32(self.mean)
        return noise

    def apply(self, value: Signal, params: Voxels | None) -> Signal:
        """Return the volume with the noise added."""
        if params is None:
            return value
        value.require_whole()
        return replace(value, array=value.array + params)


@dataclass(frozen=True)
class CastVolume(VolumeOp):
    """Convert image and label to other data types, clipping values to the range of the type.

    Args:
        image: float32, int16 or uint8; intensities are rounded to integers.
        label: uint8 or int32.
    """

    image: str = "float32"
    label: str = "uint8"

    def __post_init__(self) -> None:
        checks.choice(self._where("image"), self.image, _IMAGE_TYPES)
        checks.choice(self._where("label"), self.label, _LABEL_TYPES)

    def output(self, spec: Spec) -> Spec:
        """Return the spec of a volume of these types."""
        self._check_kind(spec)
        views = tuple(replace(view, dtype=self.label) for view in spec.views)
        return replace(spec, dtype=self.image, views=views)

    def placed(self, spec: Spec, params: Any) -> Any:  # noqa: ARG002 - part of the contract
        """Return the same boxes."""
        return spec.objects

    def box_before(self, box: Box, spec: Spec, params: Any) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the same box."""
        return box

    def apply(self, value: Signal, params: Any = None) -> Signal:  # noqa: ARG002 - part of the contract
        """Return the volume in these types."""
        label = None if value.label is None else value.label.astype(self.label, copy=False)
        return replace(value, array=_cast(value.array, self.image), label=label)


def _cast(image: Voxels, name: str) -> Voxels:
    dtype = np.dtype(name)
    if dtype.kind == "f" or image.dtype == dtype:
        return image.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    whole = np.rint(np.nan_to_num(image, nan=0.0)) if image.dtype.kind == "f" else image
    return np.clip(whole, limits.min, limits.max).astype(dtype)
