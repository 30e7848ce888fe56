"""DecodeVolume: makes a volume from the files of a sample: image, label and foreground index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from sophon.bundle import pack, unpack
from sophon.errors import OpError, PayloadError
from sophon.pipeline import checks
from sophon.pipeline.op import Decoder
from sophon.pipeline.ops.volumes import foreground
from sophon.pipeline.ops.volumes.chunked import ZIP, ChunkedFile
from sophon.pipeline.ops.volumes.file import AXES, MAX_VOXELS, VolumeFile, as_image, as_label
from sophon.pipeline.ops.volumes.nifti import NiftiFile, is_nifti
from sophon.pipeline.ops.volumes.patch import Patch
from sophon.pipeline.ops.volumes.written import nifti
from sophon.pipeline.part import Box, Signal, holds
from sophon.pipeline.spec import Kind, Spec, volume

Buffer = bytes | memoryview
VOLUME = "volume"
FOREGROUND = "foreground"
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Opened:
    """The files of one sample, with parsed headers.

    Args:
        image: The image.
        label: The label, if there is one.
        boxes: Boxes of the foreground, if known.
    """

    image: VolumeFile
    label: VolumeFile | None
    boxes: foreground.Boxes | None

    def spec(self) -> Spec:
        """Return the spec of the whole volume, with the boxes that crops are drawn from."""
        header = self.image.header
        return volume(header.channels, header.sizes, self.label is not None, header.spacing).with_objects(self.boxes)

    def read(self, box: Box) -> Signal:
        """Return a box of the volume, possibly the whole volume."""
        header = self.image.header
        label = None if self.label is None else as_label(self.label.read(box), self.label.header)
        whole = box == header.whole
        return Signal(
            as_image(self.image.read(box), header),
            Kind.VOLUME.value,
            header.spacing,
            () if whole else box[:AXES],
            () if whole else header.sizes,
            label,
            self.boxes,
        )


@dataclass(frozen=True)
class DecodeVolume(Decoder):
    """Decode a volume and its label from NIfTI (`.nii`, `.nii.gz`) or Zarr (`.zarr.zip`) files.

    The image becomes float32, after applying the slope and intercept of its file, and the label uint8; both are
    (channels, x, y, z), with the axes of the file.

    Args:
        label: Name of the field that holds the label; "" for only an image.
        foreground: Name of the field that says where the label's foreground lies (`sophon index`); "" for none.
        channels: Number of values per voxel; other files are refused.
        max_voxels: Refuse files with more voxels.
    """

    label: str = ""
    foreground: str = ""
    channels: int = 1
    max_voxels: int = MAX_VOXELS
    data: ClassVar[str] = VOLUME

    def __post_init__(self) -> None:
        for name in ("label", "foreground"):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > _LONGEST_NAME:
                raise checks.fail(self._where(name), text, "the name of a field")
        if self.foreground and not self.label:
            raise checks.fail(self._where("foreground"), self.foreground, '"" if there is no label')
        self._set(
            channels=checks.integer(self._where("channels"), self.channels, 1, 1 << 10),
            max_voxels=checks.integer(self._where("max_voxels"), self.max_voxels, 1, MAX_VOXELS),
        )

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Names and kinds of the fields of a sample other than the image."""
        told = ((self.label, VOLUME), (self.foreground, FOREGROUND))
        return tuple((name, kind) for name, kind in told if name)

    def output(self, spec: Spec) -> Spec:
        """Return the spec of a volume of unknown size."""
        self._check_kind(spec)
        return volume(self.channels, (None,) * AXES, bool(self.label))

    def sized(self, sizes: Sequence[int]) -> Spec:
        """Return the spec of a volume of this size, with unknown spacing."""
        return volume(self.channels, tuple(sizes), bool(self.label))

    def specimen(self) -> bytes:
        """Return a small synthetic sample."""
        return _specimen(self.channels, bool(self.label), bool(self.foreground))

    def within(self, most: int) -> DecodeVolume:
        """Return this op with its limit on the number of voxels lowered."""
        return self if self.max_voxels <= most else replace(self, max_voxels=most)

    def apply(self, value: Buffer, params: Any = None) -> Signal:  # noqa: ARG002 - part of the contract
        """Return the volume."""
        opened = self.open(value)
        return opened.read(opened.image.header.whole)

    def open(self, value: Buffer) -> Opened:
        """Return the files of a sample.

        Raises:
            OpError: A file is not a volume, or the files do not belong together; the message names the field.
        """
        parts = self._parts(value)
        image = self._opened("", parts[0], opened_file)
        label = self._opened(self.label, parts[1], opened_file) if self.label else None
        return self._checked(image, label, parts, is_whole=True)

    def open_patches(self, value: Buffer) -> tuple[Opened, Box]:
        """Return the patches that were sent in place of a sample's files, and their box.

        Raises:
            OpError: The files are not patches, or do not belong together.
        """
        parts = self._parts(value)
        image = Patch(parts[0], self.max_voxels)
        label = Patch(parts[1], self.max_voxels) if self.label else None
        if label is not None and not holds(label.box, image.box):
            raise OpError(f"the label's patch covers {label.box}, but the image's patch covers {image.box}.")
        return self._checked(image, label, parts, is_whole=False), image.box

    def _parts(self, value: Buffer) -> list[memoryview]:
        try:
            return unpack(value, 1 + len(self.fields))
        except PayloadError as error:
            raise OpError(f"{error}.") from error

    def _opened(self, name: str, data: memoryview, how: Any) -> VolumeFile:
        try:
            found: VolumeFile = how(data, self.max_voxels)
        except OpError as error:
            raise OpError(f"field {name!r}: {error.problem}" if name else error.problem, remedy=error.remedy) from error
        return found

    def _checked(self, image: VolumeFile, label: VolumeFile | None, parts: list[memoryview], is_whole: bool) -> Opened:
        if image.header.channels != self.channels:
            raise OpError(
                f"the volume has {image.header.channels} channels, expected {self.channels}.",
                remedy=f"Write DecodeVolume(channels={image.header.channels}).",
            )
        if label is None:
            return Opened(image, None, None)
        if label.header.sizes != image.header.sizes or label.header.channels != 1:
            raise OpError(
                f"field {self.label!r}: the label has {label.header} voxels, but its image has {image.header}.",
                remedy="Save a label with the size of the image and one channel.",
            )
        boxes = None
        if self.foreground:
            boxes = foreground.from_bytes(parts[2], label.header.sizes, len(parts[1]) if is_whole else None)
        return Opened(image, label, boxes)


def opened_file(data: memoryview, max_voxels: int) -> VolumeFile:
    """Open a volume file; the first bytes decide the format."""
    if data[:4] == ZIP:
        return ChunkedFile(data, max_voxels)
    if is_nifti(data):
        return NiftiFile(data, max_voxels)
    raise OpError(
        f"the file is neither NIfTI nor zipped Zarr: {bytes(data[:8])!r}.",
        remedy="Save it as .nii, .nii.gz or .zarr.zip.",
    )


@cache
def _specimen(channels: int, has_label: bool, has_foreground: bool) -> bytes:
    """Return a sample of 24 × 20 × 28 voxels: gradients, an edge and pseudo-noise."""
    x, y, z = np.mgrid[:24, :20, :28]
    image = (x * 31 - y * 17 + z * 5 + (x * 7919 + y * 104729 + z * 1299709) % 97 - 300).astype(np.int16)
    label = ((x - 10) ** 2 + (y - 8) ** 2 + (z - 15) ** 2 < 30).astype(np.uint8)
    spacing = (1.5, 0.75, 0.8)
    several = np.stack([image + 7 * number for number in range(channels)], axis=-1) if channels > 1 else image
    parts = [nifti(several, spacing)]
    if has_label:
        parts.append(nifti(label, spacing))
    if has_foreground:
        parts.append(foreground.to_bytes([[1, 5, 3, 10, 16, 14, 21]], label.shape, len(parts[1])))
    return pack(parts)
