"""What is known of every sample without touching it again: size of its file, of its picture, of the box it needs.

The box of any epoch is known beforehand, since random parameters depend on seed, epoch and sample alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sophon.pipeline import Key, Pipeline, needed_box
from sophon.profile.model import Rows

Sizes = NDArray[np.int32]
"""[samples, 2]: height and width of the picture; 0 where not known."""
Areas = NDArray[np.float32]
"""Pixels of a picture that an epoch needs, one per sample; 0 where not known."""

_TYPICAL_BYTES_PER_PIXEL = 0.5  # of a JPEG file; only where no picture's size is known at all


def filled(raw_bytes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return sizes of files, with the median of the known ones for those that are not known, which are 0."""
    known = raw_bytes > 0
    return np.where(known, raw_bytes, np.median(raw_bytes[known]) if known.any() else np.float32(1))


def area_needed(pipeline: Pipeline, key: Key, height: int, width: int) -> int:
    """Return how many pixels of a picture of this size one pass needs."""
    if not (height and width):
        return 0
    box = needed_box(pipeline, key, height, width)
    return height * width if box is None else box[2] * box[3]


def areas_of_epoch(pipeline: Pipeline, seed: int, epoch: int, sizes: Sizes) -> Areas:
    """Return what an epoch needs of each picture; about 20 µs per sample."""
    return np.array(
        [area_needed(pipeline, Key(seed, epoch, i), h, w) for i, (h, w) in enumerate(sizes.tolist())], np.float32
    )


def rows(raw_bytes: NDArray[np.float32], sizes: Sizes, areas: Areas) -> Rows:
    """Return the features of samples: logarithms of file bytes, of the picture's pixels and of those needed.

    What is not known is guessed from what is known of the others: their bytes per pixel and share of the area.
    """
    size_bytes = np.maximum(filled(raw_bytes).astype(np.float64), 1.0)
    pixels = sizes[:, 0].astype(np.float64) * sizes[:, 1]
    known = pixels > 0
    density = np.median(size_bytes[known] / pixels[known]) if known.any() else _TYPICAL_BYTES_PER_PIXEL
    pixels[~known] = size_bytes[~known] / density
    needed = areas.astype(np.float64)
    told = known & (needed > 0)
    share = np.mean(needed[told] / pixels[told]) if told.any() else 1.0
    needed = np.where(told, needed, share * pixels)
    sizes_of_all: Rows = np.stack([size_bytes, pixels, np.maximum(needed, 1.0)], axis=1)
    return np.asarray(np.log(sizes_of_all))
