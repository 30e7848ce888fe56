"""Cropping and padding in time: RandomTimeCrop, CenterTimeCrop and TimePad."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.audio.sound import MOST_SAMPLES, AudioOp, audio, expected
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec
from sophon.pipeline.streams import Boxes, Numbers, Sizes, Streams


@dataclass(frozen=True)
class CenterTimeCrop(AudioOp):
    """Take a fixed number of samples from the middle of a sound.

    Args:
        samples: Number of samples.
        pad_if_needed: Pad shorter sound with silence; otherwise it is an error.
    """

    samples: int
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        self._set(
            samples=checks.integer(self._where("samples"), self.samples, 1, MOST_SAMPLES),
            pad_if_needed=checks.flag(self._where("pad_if_needed"), self.pad_if_needed),
        )

    def output(self, spec: Spec) -> Spec:
        """Return the spec of sound of this length."""
        self._check_kind(spec)
        spec = expected(spec)
        return audio((spec.shape[0], self.samples), spec.scale)

    def box_needed(self, spec: Spec, params: Params) -> Box | None:
        """Return the interval that is needed, or None if the whole sound is."""
        length = spec.sizes[0] or 0
        return None if length <= self.samples else (self._start(length, params), self.samples)

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the intervals."""
        (lengths,) = sizes
        is_longer = lengths > self.samples
        starts = np.where(is_longer, self._starts(streams, lengths), 0)
        return starts, np.where(is_longer, self.samples, lengths)

    def sizes_made(self, sizes: Sizes) -> Sizes | None:
        """Return the same size for all samples."""
        return (np.full_like(sizes[0], self.samples),)

    def _start(self, length: int, params: Params) -> int:  # noqa: ARG002 - others draw it
        return (length - self.samples) // 2

    def _starts(self, streams: Streams, lengths: Numbers) -> Numbers:  # noqa: ARG002 - other crops draw them
        return (lengths - self.samples) // 2

    def apply(self, value: Signal, params: Params) -> Signal:
        """Return the interval, taken from a whole sound or from a part that contains it."""
        (length,) = value.whole_sizes
        if length < self.samples and not self.pad_if_needed:
            raise OpError(
                f"the sound has {length:,} samples, but the crop needs {self.samples:,}.",
                remedy=f"Use {self.name()}(…, pad_if_needed=True), or leave the file out.",
            )
        if length >= self.samples:
            piece = value.piece((0 if length == self.samples else self._start(length, params), self.samples))
        else:
            value.require_whole()
            piece = np.pad(value.array, ((0, 0), (0, self.samples - length)))
        return Signal(np.ascontiguousarray(piece), value.kind, value.scale)


@dataclass(frozen=True)
class RandomTimeCrop(CenterTimeCrop):
    """Take a fixed number of samples from a random position.

    Args:
        samples: Number of samples.
        pad_if_needed: Pad shorter sound with silence; otherwise it is an error.
    """

    def draw(self, rng: Rng, spec: Spec) -> int:
        """Return the first sample of the crop."""
        return rng.below(max((spec.sizes[0] or 0) - self.samples, 0) + 1)

    def _start(self, length: int, params: Params) -> int:  # noqa: ARG002 - as drawn
        return int(params)

    def _starts(self, streams: Streams, lengths: Numbers) -> Numbers:
        return streams.below(0, np.maximum(lengths - self.samples, 0) + 1)


@dataclass(frozen=True)
class TimePad(AudioOp):
    """Pad sound with silence at the end to a minimum length; longer sound is unchanged.

    Args:
        samples: Minimum number of samples.
    """

    samples: int

    def __post_init__(self) -> None:
        self._set(samples=checks.integer(self._where("samples"), self.samples, 1, MOST_SAMPLES))

    def output(self, spec: Spec) -> Spec:
        """Return the spec of sound of at least this length."""
        self._check_kind(spec)
        spec = expected(spec)
        length = spec.shape[1]
        return audio((spec.shape[0], None if length is None else max(length, self.samples)), spec.scale)

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the interval of the input, or None for all of it if the interval includes padding."""
        return box if box[0] + box[1] <= (spec.sizes[0] or 0) else None

    def boxes_before(self, boxes: Boxes, streams: Streams, sizes: Sizes) -> Boxes | None:  # noqa: ARG002
        """Return the intervals."""
        (starts, lengths), (whole,) = boxes, sizes
        is_inside = starts + lengths <= whole
        return np.where(is_inside, starts, 0), np.where(is_inside, lengths, whole)

    def sizes_made(self, sizes: Sizes) -> Sizes | None:
        """Return the larger of the input size and the minimum."""
        return (np.maximum(sizes[0], self.samples),)

    def apply(self, value: Signal, params: Params) -> Signal:  # noqa: ARG002 - part of the contract
        """Return the sound with silence after it."""
        (length,) = value.whole_sizes
        if length >= self.samples:
            return value
        if value.array.shape[1] < length:  # a part never includes padding: then the whole sound would be here
            return Signal(value.array, value.kind, value.scale, value.starts, (self.samples,))
        return Signal(np.pad(value.array, ((0, 0), (0, self.samples - length))), value.kind, value.scale)
