"""Small samples with volumes in them, of every format."""

from __future__ import annotations

from pathlib import Path

from sophon.bench.scans.scan import Scan, paint
from sophon.bench.scans.scan_folder import write_scans
from sophon.bundle import pack
from sophon.pipeline import Pipeline, ops
from sophon.pipeline.ops.volumes import foreground
from sophon.pipeline.ops.volumes.written import chunked, nifti

FORMATS = ("nii", "nii.gz", "zarr.zip")
DECODE = ops.DecodeVolume(label="label", foreground="foreground")
MLPERF = [
    DECODE,
    ops.ResampleVolume((1.6, 1.2, 1.2)),
    ops.NormalizeVolume(),
    ops.RandomBalancedCrop((12, 20, 16)),
    ops.RandomFlipVolume(),
    ops.CastVolume(),
    ops.RandomBrightnessVolume(p=0.5),
    ops.RandomNoiseVolume(p=0.5),
]
RECIPE = Pipeline(MLPERF)


def encoded(array, spacing, form: str, side: int = 16) -> bytes:
    """Return the file of an array."""
    return chunked(array, side, spacing) if form == "zarr.zip" else nifti(array, spacing, compressed=form == "nii.gz")


def sample(form: str = "nii.gz", seed: int = 1, slices: int = 20, side: int = 40) -> tuple[bytes, Scan]:
    """Return the bundle of a sample, and what it was made of."""
    scan = paint(seed, slices, side)
    image, label = (encoded(array, scan.spacing, form) for array in (scan.image, scan.label))
    boxes = foreground.found_in(scan.label[None])
    return pack([image, label, foreground.to_bytes(boxes, scan.label.shape, len(label))]), scan


def data_set(folder: Path, count: int = 4, form: str = "nii.gz", slices: int = 20, side: int = 40) -> str:
    """Write a data set, and return how it is opened."""
    write_scans(folder, count, 0, form, side, slices)
    return f"{folder}?images=images&labels=labels"
