"""Measures the costs and savings of every cut of the ImageNet recipe on a few files, and checks that no bit changes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sophon.bench.ops import RECIPE
from sophon.bench.pictures.samples import Samples
from sophon.codec import RAW, Cut, finish_payload, legal_cuts, make_payload
from sophon.errors import OpError
from sophon.pipeline import Key, Value


@dataclass(frozen=True)
class CutRow:
    """One cut: mean payload bytes and CPU milliseconds per sample on either side."""

    cut: Cut
    payload_bytes: float
    storage_ms: float
    trainer_ms: float


@dataclass(frozen=True)
class CutsResult:
    """All cuts on one set of files.

    Args:
        rows: One row per cut; the first is the raw file.
        raw_bytes: Mean size of a file.
        best_bytes: Mean payload if every sample takes its own smallest cut.
        best_share: Share of the samples for which each cut is the smallest.
        tensors: Number of tensors that were finished.
        mismatches: Number of tensors that differ from the uncut run.
    """

    rows: tuple[CutRow, ...]
    raw_bytes: float
    best_bytes: float
    best_share: dict[Cut, float]
    tensors: int
    mismatches: int

    @property
    def gain(self) -> float:
        """Factor by which fewer bytes cross the link when each sample takes its own smallest cut."""
        return self.raw_bytes / self.best_bytes


def cuts_to_measure(*, allow_lossy: bool = False) -> list[Cut]:
    """Return the cuts of the recipe, except JPEG XL of whole pictures, which is slow and larger than the file."""
    first_crop = next(k for k, op in enumerate(RECIPE.ops, 1) if op.random)
    cuts = legal_cuts(RECIPE, allow_lossy=allow_lossy)
    return [cut for cut in cuts if cut.k >= first_crop or not cut.codec.startswith("jxl")]


def measure_cuts(
    samples: Samples, epoch: int = 0, seed: int = 0, on_sample: Callable[[int, int], None] | None = None
) -> CutsResult:
    """Run every sample through every exact cut and compare the bits.

    Args:
        samples: Files to run on.
        epoch: Epoch whose random boxes are used.
        seed: Seed of the random boxes.
        on_sample: Called with the number of samples done and the total.
    """
    cuts = cuts_to_measure()
    payload_bytes = np.zeros((len(samples.files), len(cuts)))
    storage_s, trainer_s = np.zeros(len(cuts)), np.zeros(len(cuts))
    mismatches = 0
    for sample, data in enumerate(samples.files):
        key = Key(seed, epoch, sample)
        expected = digest(RECIPE.run(data, key))
        for column, cut in enumerate(cuts):
            start_s = time.thread_time()
            try:
                payload, made = make_payload(RECIPE, data, key, cut), cut
            except OpError:  # as a server does: files that cannot be cut are sent whole
                payload, made = data, RAW
            middle_s = time.thread_time()
            tensor = finish_payload(RECIPE, payload, key, made)
            trainer_s[column] += time.thread_time() - middle_s
            storage_s[column] += middle_s - start_s
            payload_bytes[sample, column] = len(payload)
            mismatches += digest(tensor) != expected
        if on_sample is not None:
            on_sample(sample + 1, len(samples.files))
    count = len(samples.files)
    smallest = payload_bytes.argmin(axis=1)
    return CutsResult(
        rows=tuple(
            CutRow(cut, payload_bytes[:, c].mean(), storage_s[c] / count * 1e3, trainer_s[c] / count * 1e3)
            for c, cut in enumerate(cuts)
        ),
        raw_bytes=samples.mean_bytes,
        best_bytes=payload_bytes.min(axis=1).mean(),
        best_share={cut: float((smallest == c).mean()) for c, cut in enumerate(cuts) if (smallest == c).any()},
        tensors=payload_bytes.size,
        mismatches=mismatches,
    )


def digest(tensor: Value) -> bytes:
    """Return a digest of a tensor's shape, type and bits."""
    array = np.ascontiguousarray(tensor)
    return hashlib.sha256(f"{array.shape}{array.dtype}".encode() + array.tobytes()).digest()
