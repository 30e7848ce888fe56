"""A folder of synthetic scans: images, labels, and the labels' foreground indexes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sophon.bench.scans.scan import SIDE, paint, slices_of
from sophon.errors import ConfigError
from sophon.pipeline.ops.volumes import foreground
from sophon.pipeline.ops.volumes.written import chunked, nifti

LIKE = "kits19"
FORMATS = ("nii.gz", "nii", "zarr.zip")
CHUNK = 32  # voxels along each axis of a chunk: 64 KiB of int16, so that little is decompressed for nothing
OPTIONS = "images=images&labels=labels"  # follow the path of the folder
_NOTE = "scans.json"


@dataclass(frozen=True)
class WrittenScans:
    """Summary of the scans that were written.

    Args:
        folder: Folder of the scans.
        sizes_bytes: Size of each sample, image and label together.
        slices: Number of slices of each scan.
        write_s: Time it took to write.
    """

    folder: Path
    sizes_bytes: list[int]
    slices: list[int]
    write_s: float


def write_scans(
    folder: Path,
    count: int,
    seed: int = 0,
    form: str = FORMATS[0],
    side: int = SIDE,
    slices: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    force: bool = False,
) -> WrittenScans:
    """Write scans to ``images/``, ``labels/`` and ``foreground/`` of a folder.

    Args:
        folder: Folder of the scans.
        count: Number of scans.
        seed: Seed of the scans.
        form: File format, one of FORMATS.
        side: Width and height of a slice in voxels.
        slices: Number of slices of each scan; by default drawn from the wide distribution of KiTS19.
        on_progress: Called with the number of scans done.
        force: Write even if the folder holds other files.

    Raises:
        ConfigError: The folder holds other files, or the format is unknown.
    """
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}; choose from {', '.join(FORMATS)}")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _NOTE).exists() and not force:
        raise ConfigError(f"{folder} holds other files; choose an empty folder, or use --force")
    for name in ("images", "labels", "foreground"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for old in (folder / name).glob("case_*"):
            old.unlink()
    start_s = time.monotonic()
    random = np.random.default_rng(seed)
    sizes, depths = [], []
    for number in range(count):
        depth = slices_of(random) if slices is None else slices
        scan = paint(1000 * seed + number, depth, side)
        stem = f"case_{number:05}"
        image, label = (_encoded(array, scan.spacing, form) for array in (scan.image, scan.label))
        (folder / "images" / f"{stem}.{form}").write_bytes(image)
        (folder / "labels" / f"{stem}.{form}").write_bytes(label)
        boxes = foreground.found_in(scan.label[None])
        (folder / "foreground" / f"{stem}.json").write_bytes(foreground.to_bytes(boxes, scan.label.shape, len(label)))
        sizes.append(len(image) + len(label))
        depths.append(depth)
        if on_progress is not None:
            on_progress(number + 1, count)
    (folder / _NOTE).write_text(json.dumps({"like": LIKE, "count": count, "seed": seed, "side": side}) + "\n")
    return WrittenScans(folder, sizes, depths, time.monotonic() - start_s)


def _encoded(
    array: np.ndarray[tuple[int, int, int], np.dtype[np.generic]], spacing: tuple[float, float, float], form: str
) -> bytes:
    return chunked(array, CHUNK, spacing) if form == "zarr.zip" else nifti(array, spacing, compressed=form == "nii.gz")
