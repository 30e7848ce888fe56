"""Base classes of ops on volumes: image and label change together, or the label stays unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sophon.pipeline import checks
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.volumes.file import AXES, Voxels
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.spec import Kind, Spec

Triple = tuple[Any, Any, Any]


@dataclass(frozen=True)
class VolumeOp(Op):
    """An op on volumes that keeps their size."""

    takes: ClassVar[Kind] = Kind.VOLUME

    def output(self, spec: Spec) -> Spec:
        """Return the spec of a volume of the same size."""
        self._check_kind(spec)
        return spec


@dataclass(frozen=True)
class IntensityOp(VolumeOp):
    """An op that changes each voxel of the image independently of its neighbours and leaves the label unchanged."""

    still: ClassVar[bool] = True

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the same box."""
        return box

    def apply(self, value: Signal, params: Params = None) -> Signal:
        """Return the volume with new intensities."""
        return replace(value, array=self.changed(value.array, params))

    def changed(self, image: Voxels, params: Params) -> Voxels:
        """Return the image with new intensities."""
        raise NotImplementedError


def sides(where: str, value: Any) -> tuple[int, int, int]:
    """Return a size in canonical form: one number for all axes, or three."""
    found = (value,) * AXES if isinstance(value, int) else checks.sequence(where, value, (AXES,))
    x, y, z = (checks.integer(where, side, 1, 1 << 16) for side in found)
    return x, y, z
