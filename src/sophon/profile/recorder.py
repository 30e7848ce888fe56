"""Recorder: the costs that a running loader measures.

Every sample that passes is measured. A sample that is sent raw gives the time of each op at the trainer and the size of
its picture (the paper's second stage). A sample that is cut gives, for that cut, the bytes on the link, the codec's
time on both sides, and the time of the first ops near storage by the storage node's own clock; so nothing has to be
assumed about the two CPUs. `estimate` turns this into a profile.

Concurrency: any number of threads may record. Limits: the last `KEPT` records of each cut, and 4 * (3 + ops) + cuts + 1
bytes per sample.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut, looks_ahead
from sophon.errors import ArtifactError, ConfigError
from sophon.pipeline import Key, Pipeline, Trace
from sophon.process.renewal import renew_after_fork
from sophon.profile import features
from sophon.profile.kinds import kind_of
from sophon.profile.model import Fit
from sophon.profile.table import FloatTable, Profile

KEPT = 512  # records per cut: enough for an error of the mean of one percent, while old timings are forgotten
_COLD = 4  # records per cut, or half of them


@dataclass(frozen=True, slots=True)
class Record:
    """The cost of one sample at one cut.

    Args:
        sample: Index of the sample.
        epoch: Epoch in which it passed, which determines its box.
        payload_bytes: Bytes on the link.
        encode_s: CPU seconds of the codec near storage.
        decode_s: CPU seconds of the codec at the trainer.
        storage_op_s: CPU seconds of each of the first k ops, near storage.
        trainer_op_s: CPU seconds of each op at the trainer; 0 for ops that ran elsewhere.
        op_bytes: Size in bytes of each op's result at the trainer.
    """

    sample: int
    epoch: int
    payload_bytes: int
    encode_s: float
    decode_s: float
    storage_op_s: tuple[float, ...] = ()
    trainer_op_s: tuple[float, ...] = ()
    op_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Storage:
    """A storage node's report about a sample: CPU seconds in total and by op, size of file and picture."""

    cpu_s: float = 0.0
    op_s: Sequence[float] = ()
    raw_bytes: int = 0
    size: tuple[int, ...] = (0, 0)


@dataclass
class Known:
    """Everything recorded so far, in the form that `estimate` uses.

    Args:
        raw_bytes: Size of each sample's file, in bytes; 0 if unknown.
        sizes: Height and width of each picture; 0 if unknown.
        areas: Pixels of each picture that the epoch needs; for a picture of unknown size, assuming the usual size.
        op_s: [samples, ops] trainer CPU seconds measured in that epoch; NaN if not measured. None if the measurements
            are from a different epoch.
        refused: [samples, cuts] true where the cut is impossible for the sample.
        records: Measurements, by cut.
        record_areas: Pixels that the pass of each record needed, by cut.
        rules: Rules of an earlier run, by the cost that they predict.
        ratios: Storage : trainer ratios of an earlier run, by op.
    """

    raw_bytes: FloatTable
    sizes: features.Sizes
    areas: features.Areas
    op_s: FloatTable | None
    refused: NDArray[np.bool_]
    records: dict[Cut, list[Record]]
    record_areas: dict[Cut, features.Areas]
    rules: dict[str, Fit] = field(default_factory=dict)
    ratios: tuple[float, ...] = ()


class Recorder:
    """Costs of the samples of one data set under one pipeline.

    Args:
        pipeline: The pipeline of the samples; its ops up to `first_call` are timed.
        cuts: The columns of the profile, RAW first.
        samples: Number of samples.
        seed: Seed of the random ops.

    Attributes:
        is_hasty: Whether plans are made from few records. The first records of each cut are then ignored, since loading
            libraries and touching fresh memory made them up to four times as slow.
    """

    def __init__(self, pipeline: Pipeline, cuts: Sequence[Cut], samples: int, seed: int) -> None:
        self.pipeline = pipeline
        self.cuts = tuple(cuts)
        self.seed = seed
        self.is_hasty = False
        self._kind = kind_of(pipeline)
        self._column = {cut: column for column, cut in enumerate(self.cuts)}
        self._ahead = [column for cut, column in self._column.items() if looks_ahead(cut)]
        self._raw_bytes = np.zeros(samples, np.float32)
        self._passed = np.zeros(samples, np.bool_)
        self._sizes = np.zeros((samples, self._kind.axes), np.int32)
        self._op_s = np.full((samples, pipeline.first_call), np.nan, np.float32, order="F")
        self._op_s_epoch = -1
        self._refused = np.zeros((samples, len(self.cuts)), np.bool_, order="F")
        self._records: dict[Cut, deque[Record]] = {cut: deque(maxlen=KEPT) for cut in self.cuts}
        self._rules: dict[str, Fit] = {}
        self._ratios: tuple[float, ...] = ()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._raw_bytes)

    @property
    def seen(self) -> int:
        """How many samples have passed, in this run or an earlier one."""
        return int(np.count_nonzero(self._passed))

    def count(self, cut: Cut) -> int:
        """Return how many records of a cut are kept."""
        return len(self._records[cut])

    def saw(self, key: Key, cut: Cut, payload_bytes: int, trace: Trace, storage: Storage | None = None) -> None:
        """Record the cost of one sample at the cut that was actually made.

        Args:
            key: Identifies the sample and the epoch.
            cut: The cut.
            payload_bytes: Bytes on the link.
            trace: Cost of the trainer's part.
            storage: The storage node's report about its part.
        """
        if cut not in self._column:
            return
        told = storage or Storage()
        sample, epoch = int(key.sample), int(key.epoch)
        size = self._size(trace.size) or self._size(told.size)
        record = Record(
            sample,
            epoch,
            payload_bytes,
            max(told.cpu_s - sum(told.op_s), 0.0),
            trace.codec_s,
            tuple(told.op_s),
            tuple(trace.op_s),
            tuple(trace.op_bytes),
        )
        with self._lock:
            if size:
                self._sizes[sample] = size
            if cut == RAW or told.raw_bytes:
                self._raw_bytes[sample] = payload_bytes if cut == RAW else told.raw_bytes
                self._passed[sample] = True
            if cut == RAW:
                if self._op_s_epoch < 0:
                    self._op_s_epoch = epoch
                if self._op_s_epoch == epoch:
                    self._op_s[sample] = trace.op_s[: self._op_s.shape[1]]
                if trace.windowable is False:
                    self._refused[sample, self._ahead] = True
            self._records[cut].append(record)

    def _size(self, told: tuple[int, ...]) -> tuple[int, ...]:
        """Return the size of a value by axis; empty if any size is unknown."""
        size = told[: self._kind.axes]
        return size if len(size) == self._kind.axes and 0 not in size else ()

    def refused(self, sample: int, cut: Cut) -> None:
        """Record that a cut is impossible for a sample."""
        if cut != RAW and cut in self._column:
            self._refused[sample, self._column[cut]] = True

    def expect(self, raw_bytes: NDArray[Any]) -> None:
        """Record the sizes of all files, including those that have not passed yet."""
        with self._lock:
            np.copyto(self._raw_bytes, raw_bytes, where=~self._passed, casting="same_kind")

    def recall(self, profile: Profile) -> None:
        """Start from the results of an earlier run.

        Raises:
            ArtifactError: The profile was not made by a loader of this job, so it is not used.
        """
        if len(profile) != len(self):
            raise ArtifactError(f"the profile has {len(profile):,} samples, but the data set has {len(self):,}")
        rules, ratios = self._learnt(profile)
        with self._lock:
            self._raw_bytes[:] = profile.payload_bytes[:, profile.column(RAW)]
            self._passed[:] = True
            if profile.sizes is not None and profile.sizes.shape == self._sizes.shape:
                self._sizes[:] = profile.sizes
                sized = features.sized(profile.sizes)
                if sized.any():  # otherwise the data set has no pictures
                    self._raw_bytes[~sized] = 0  # these samples had not passed: the profile's value may be a guess
                    self._passed[~sized] = False
            for cut, column in self._column.items():
                if cut in profile.cuts:
                    self._refused[:, column] = np.isinf(profile.payload_bytes[:, profile.column(cut)])
            self._rules = rules
            self._ratios = ratios

    def _learnt(self, profile: Profile) -> tuple[dict[str, Fit], tuple[float, ...]]:
        """Return the rules of a profile, and the storage : trainer ratios of its ops."""
        made, ops = profile.provenance, self.pipeline.first_call
        try:
            rules = {str(name): Fit.from_json(said) for name, said in dict(made["rules"]).items()}
            ratios = tuple(map(float, made["storage_to_trainer"]))
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
            raise ArtifactError(f"the profile does not say how its costs were predicted ({error})") from error
        fits = len(ratios) == ops and all(f"op {position}" in rules for position in range(ops))
        if not fits or not all(0 < ratio < math.inf for ratio in ratios):
            raise ArtifactError(f"the profile lacks the cost of each of the {ops} ops on both sides")
        odd = [name for name, rule in rules.items() if len(rule.slopes) != len(self._kind.features)]
        if odd:
            raise ArtifactError(f"the profile predicts {odd[0][:40]!r} from different features than this release does")
        return rules, ratios

    def known(self, epoch: int) -> Known:
        """Return a copy of everything recorded, with the boxes of an epoch."""
        with self._lock:
            this_epoch = self._op_s_epoch == epoch
            known = Known(
                self._raw_bytes.copy(),
                self._sizes.copy(),
                np.zeros(0, np.float32),
                self._op_s.copy(order="F") if this_epoch else None,
                self._refused.copy(order="F"),
                {cut: self._believed(kept) for cut, kept in self._records.items()},
                {},
                dict(self._rules),
                self._ratios,
            )
        # Not under the lock, which threads that finish samples need.
        known.areas = self._areas(epoch, np.arange(len(self)), features.filled_sizes(known.sizes))
        for cut, kept in known.records.items():
            epochs, samples = (np.array([getattr(r, name) for r in kept], np.int64) for name in ("epoch", "sample"))
            known.record_areas[cut] = self._areas(epochs, samples, known.sizes[samples])
        return known

    def _believed(self, kept: Sequence[Record]) -> list[Record]:
        cold = min(_COLD, len(kept) // 2) if self.is_hasty and len(kept) < KEPT else 0
        return list(kept)[cold:]

    def _areas(self, epochs: int | NDArray[Any], samples: NDArray[Any], sizes: features.Sizes) -> features.Areas:
        if not self._kind.has_pixels:
            return np.zeros(len(samples), np.float32)
        return features.areas_needed(self.pipeline, self.seed, epochs, samples, sizes)
