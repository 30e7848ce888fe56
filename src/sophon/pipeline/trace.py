"""Trace: the cost of one run of a pipeline, op by op.

Ops that are fused into one pass share its time. The codec's time before the first op or after the last one is recorded
separately.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from sophon.pipeline.part import Part, Signal
from sophon.pipeline.spec import Value, ViewSet


class Trace:
    """The cost of one run, op by op.

    Args:
        ops: Number of ops in the pipeline.

    Attributes:
        codec_s: CPU seconds of the codec.
        op_s: CPU seconds of each op, by the thread's clock.
        op_bytes: Size of each op's output in bytes.
        size: Size of the decoded value along each axis (height and width for a picture); (0, 0) if nothing was decoded.
        windowable: Whether a part of the file could be decoded on its own; None if that was not tried.
        own_s: Wall-clock seconds of the trainer-only steps, which may wait as well as compute.
    """

    __slots__ = ("_last_s", "codec_s", "op_bytes", "op_s", "own_s", "size", "windowable")

    def __init__(self, ops: int) -> None:
        self.codec_s = 0.0
        self.op_s = [0.0] * ops
        self.op_bytes = [0] * ops
        self.size: tuple[int, ...] = (0, 0)
        self.windowable: bool | None = None
        self.own_s = 0.0
        self._last_s = time.thread_time()

    @property
    def finishing_s(self) -> float:
        """Seconds of the codec, the ops and the trainer-only steps together."""
        return self.codec_s + sum(self.op_s) + self.own_s

    def to_json(self) -> list[Any]:
        """Return the trace as JSON values."""
        return [self.codec_s, self.op_s, self.op_bytes, list(self.size), self.windowable, self.own_s]

    @classmethod
    def from_json(cls, said: list[Any]) -> Trace:
        """Return the trace that JSON values describe."""
        made = cls(len(said[1]))
        made.codec_s, made.op_s, made.op_bytes, size, made.windowable, made.own_s = said
        made.size = tuple(size)
        return made

    def coded(self) -> None:
        """Record that a codec has done its work."""
        now_s = time.thread_time()
        self.codec_s += now_s - self._last_s
        self._last_s = now_s

    def passed(self, first: int, stop: int, value: Value, between: Sequence[int] = ()) -> None:
        """Record that ops[first:stop] have produced this value.

        Args:
            first: The first op.
            stop: One past the last op.
            value: The result of the last op.
            between: Sizes of the results that the other ops would have produced, had they not been fused.
        """
        now_s = time.thread_time()
        each_s = (now_s - self._last_s) / (stop - first)
        for position, size_bytes in zip(range(first, stop), (*between, _size_bytes(value)), strict=True):
            self.op_s[position] = each_s
            self.op_bytes[position] = size_bytes
        if first == 0:
            self.decoded(value)
        self._last_s = now_s

    def decoded(self, value: Value) -> None:
        """Note the size of the decoded picture, or of the whole picture if only a part was decoded."""
        self.size = _size(value)


def _size(value: Value) -> tuple[int, ...]:
    if isinstance(value, Part | Image.Image):
        return value.height, value.width
    if isinstance(value, Signal):
        return value.whole_sizes
    return 0, 0


def _size_bytes(value: Value) -> int:
    if isinstance(value, np.ndarray | ViewSet):
        return int(value.nbytes)
    if isinstance(value, Image.Image):
        return value.height * value.width * len(value.getbands())
    if isinstance(value, Part):
        return value.height * value.width * len(value.picture.getbands())
    if isinstance(value, Signal):
        return int(value.array.shape[0] * math.prod(value.whole_sizes) * value.array.itemsize)
    return len(value) if isinstance(value, bytes | memoryview) else 0
