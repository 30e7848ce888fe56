"""Trace: what one run of a pipeline took, op by op.

Two ops that are done in one pass share its time. What a codec takes before the first op, or behind the last, is kept
apart.
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
    """What one run took, op by op.

    Args:
        ops: Ops in the pipeline.

    Attributes:
        codec_s: CPU seconds of the codec.
        op_s: CPU seconds of each op, by the thread's clock.
        op_bytes: Bytes of what each op gave.
        size: Size of the decoded value along each axis, of a picture height and width; (0, 0) if there was none.
        windowable: Whether a part of the file could be decoded on its own; None if that was not tried.
        own_s: Seconds of the steps that only the trainer can run; they may wait as well as compute.
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

    def to_json(self) -> list[Any]:
        """Return all of it as JSON values."""
        return [self.codec_s, self.op_s, self.op_bytes, list(self.size), self.windowable, self.own_s]

    @classmethod
    def from_json(cls, said: list[Any]) -> Trace:
        """Return the trace that JSON values describe."""
        made = cls(len(said[1]))
        made.codec_s, made.op_s, made.op_bytes, size, made.windowable, made.own_s = said
        made.size = tuple(size)
        return made

    def coded(self) -> None:
        """Note that a codec has done its part."""
        now_s = time.thread_time()
        self.codec_s += now_s - self._last_s
        self._last_s = now_s

    def passed(self, first: int, stop: int, value: Value, between: Sequence[int] = ()) -> None:
        """Note that ops[first:stop] have given this value.

        Args:
            first: The first op.
            stop: Behind the last op.
            value: What the last one gave.
            between: Bytes that the others would have given, had they not been done in one pass.
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
        """Note the size of the decoded picture, or of the one that a part is taken from."""
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
