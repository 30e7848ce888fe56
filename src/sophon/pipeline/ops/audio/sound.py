"""Base classes of ops for sound, which take a `Signal` with one axis, time; many of them treat every sample alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from sophon.pipeline.op import Op, Params
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.spec import Kind, Shape, Spec
from sophon.pipeline.streams import Boxes, Sizes, Streams

Waveform: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
MOST_CHANNELS = 64
MOST_RATE = 1 << 20  # samples per second
MOST_SAMPLES = 1 << 27  # over all channels: 50 minutes at 44.1 kHz, half a gigabyte


def audio(shape: Shape, scale: Sequence[float] = ()) -> Spec:
    """Return the spec of sound: channels, samples and, if known, the rate."""
    return Spec(Kind.AUDIO, shape, "float32", scale=tuple(scale))


def sound(array: Waveform, rate: float) -> Signal:
    """Return sound of this rate."""
    return Signal(array, Kind.AUDIO.value, (float(rate),))


def expected(spec: Spec) -> Spec:
    """Return the spec of an op's input as sound; after a user's own step, nothing else is known about it."""
    return audio((None, None)) if spec.kind is Kind.OBJECT else spec


@dataclass(frozen=True)
class AudioOp(Op):
    """An op that takes sound and returns sound."""

    takes: ClassVar[Kind] = Kind.AUDIO

    def output(self, spec: Spec) -> Spec:
        """Return the spec of sound of the same shape; ops that change the shape override this."""
        self._check_kind(spec)
        return expected(spec)


@dataclass(frozen=True)
class EachSample(AudioOp):
    """An op whose every output sample depends only on the input sample at the same position."""

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the same box."""
        return box

    def boxes_before(self, boxes: Boxes, streams: Streams, sizes: Sizes) -> Boxes | None:  # noqa: ARG002
        """Return the same boxes."""
        return boxes

    def sizes_made(self, sizes: Sizes) -> Sizes | None:
        """Return the same sizes."""
        return sizes

    def apply(self, value: Signal, params: Params) -> Signal:
        """Return a signal at the same position."""
        return replace(value, array=self.changed(value.array, params))

    def changed(self, array: Waveform, params: Params) -> Waveform:
        """Return new samples for all samples given."""
        raise NotImplementedError
