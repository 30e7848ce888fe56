"""Features of every sample, known without reading it again: sizes of its file, its picture and the box that is needed.

The box for any epoch is known in advance, since random parameters depend only on seed, epoch and sample.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import Error
from sophon.pipeline import Key, Pipeline
from sophon.pipeline.op import Decoder
from sophon.pipeline.part import count_of
from sophon.pipeline.region import needed_boxes, needed_region
from sophon.profile.kinds import Kind
from sophon.profile.model import Rows

Sizes = NDArray[np.int32]
"""[samples, axes]: size of the decoded value along each axis (height and width for a picture); 0 if not known."""
Areas = NDArray[np.float32]
"""Pixels of a picture that an epoch needs, one per sample; 0 if unknown."""

_BLOCK = 2**14  # samples at a time, so that drawing their boxes stays in a core's cache
_TYPICAL_BYTES_PER_PIXEL = 0.5  # of a JPEG file; used only if no picture's size is known at all


def filled(raw_bytes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return sizes of files, with unknown ones (0) replaced by the median of the known ones."""
    known = raw_bytes > 0
    if known.all():
        return raw_bytes
    return np.where(known, raw_bytes, np.median(raw_bytes[known]) if known.any() else np.float32(1))


def filled_sizes(sizes: Sizes) -> Sizes:
    """Return sizes of pictures, with unknown ones (0) replaced by the medians of the known ones.

    A box is drawn as a share of its picture, so the share of a picture that an epoch needs is nearly independent of its
    size.
    """
    known = sized(sizes)
    if known.all() or not known.any():
        return sizes
    return np.where(known[:, None], sizes, np.median(sizes[known], axis=0).astype(np.int32))


def sized(sizes: Sizes) -> NDArray[np.bool_]:
    """Return whether the size of each picture is known."""
    known: NDArray[np.bool_] = sizes[:, 0] > 0
    for axis in range(1, sizes.shape[1]):  # `all` along so short an axis takes several times as long
        known &= sizes[:, axis] > 0
    return known


def areas_needed(
    pipeline: Pipeline, seed: int, epochs: int | NDArray[Any], samples: NDArray[Any], sizes: Sizes
) -> Areas:
    """Return how many pixels of its picture each of many passes needs; 0 if the picture's size is unknown.

    Args:
        pipeline: The pipeline of the samples.
        seed: Seed of the run.
        epochs: One epoch for all passes, or one for each.
        samples: Index of the sample of each pass.
        sizes: Size of the picture of each pass, by axis.
    """
    areas = np.zeros(len(samples), np.float32)
    for low in range(0, len(samples), _BLOCK):
        known = low + np.flatnonzero(sized(sizes[low : low + _BLOCK]))
        epoch = epochs if isinstance(epochs, int) else epochs[known]
        by_axis = tuple(sizes[known, axis].astype(np.int64) for axis in range(sizes.shape[1]))
        boxes = needed_boxes(pipeline, seed, epoch, samples[known], by_axis)
        if boxes is not None:
            areas[known] = prod(boxes[len(by_axis) :])
            continue
        each = np.broadcast_to(epoch, len(known)).tolist()
        passes = zip(each, samples[known].tolist(), sizes[known].tolist(), strict=True)
        areas[known] = [_area(pipeline, Key(seed, e, sample), its_sizes) for e, sample, its_sizes in passes]
    return areas


def _area(pipeline: Pipeline, key: Key, sizes: list[int]) -> int:
    """Return how many pixels one pass needs, for ops without a vectorised method (about 20 µs); 0 if unknown."""
    decoder = pipeline.ops[0]
    if not isinstance(decoder, Decoder):
        return prod(sizes)
    spec = decoder.sized(sizes)
    if pipeline.looks:  # the boxes were not kept; one object that covers the picture gives similar draws
        whole = np.array([[0.0, 0.0, spec.width, spec.height]])
        key = replace(key, sight=spec.with_objects(whole))
    try:
        box = needed_region(pipeline, key, spec)
    except (Error, ArithmeticError):  # such as a picture that is too small: the sample itself will say so
        box = None
    return prod(sizes) if box is None else count_of(box)


def rows(
    kind: Kind, raw_bytes: NDArray[np.float32], sizes: Sizes, areas: Areas, dtype: type[np.floating[Any]] = np.float64
) -> Rows:
    """Return the features of samples: logarithms of file bytes and, for pictures, of total and needed pixels.

    Unknown values are guessed from the other samples: their bytes per pixel and share of the area.

    Args:
        kind: Kind of the samples.
        raw_bytes: Size of each file; 0 if unknown.
        sizes: Size of each picture.
        areas: Pixels needed of each picture.
        dtype: Data type of the result. float32 is good enough for predictions, in half the time.
    """
    size_bytes = np.maximum(filled(raw_bytes).astype(dtype), 1.0)
    if not kind.has_pixels:
        return np.log(size_bytes)[:, None]
    pixels = sizes[:, 0].astype(dtype)
    for axis in range(1, sizes.shape[1]):
        pixels *= sizes[:, axis].astype(dtype)
    needed = areas.astype(dtype)
    known = pixels > 0
    if not known.all():
        density = np.median(size_bytes[known] / pixels[known]) if known.any() else _TYPICAL_BYTES_PER_PIXEL
        pixels[~known] = size_bytes[~known] / density
    told = known & (needed > 0)
    if not told.all():
        share = np.mean(needed[told] / pixels[told]) if told.any() else 1.0
        needed = np.where(told, needed, share * pixels)
    found: Rows = np.empty((len(size_bytes), len(kind.features)), dtype, order="F")  # each feature is read separately
    for column, feature in enumerate((size_bytes, pixels, np.maximum(needed, 1.0))):
        np.log(feature, out=found[:, column])
    return found
