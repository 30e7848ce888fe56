"""Ops that stand beside each other and can be done in one pass, with the same bits.

A fusion is only used where a run covers both ops: a pipeline cut between them runs each on its own. The result may be
written where the caller wants it, for example into its place in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from PIL import Image

from sophon.pipeline.op import Op
from sophon.pipeline.ops.tensor import Normalize, Tensor, ToFloat, ToTensor
from sophon.pipeline.pixels import look_up
from sophon.pipeline.spec import Value

_CHANNELS = 3  # of the pictures for which there is a look-up

Fused = Callable[[Value, Tensor | None], Value]


def fuse(ops: Sequence[Op]) -> dict[int, Fused]:
    """Return, by the position of the first op of a pair, a function that does both."""
    pairs = pairwise(ops)
    return {at: fused for at, (first, second) in enumerate(pairs) if (fused := _pair(first, second)) is not None}


def _pair(first: Op, second: Op) -> Fused | None:
    if isinstance(first, ToTensor) and isinstance(second, Normalize):
        return _to_normalized(first, second)
    if isinstance(first, ToFloat) and isinstance(second, Normalize):
        return lambda value, _: _scale_and_normalize(value, first, second)
    return None


def _to_normalized(to_tensor: ToTensor, normalize: Normalize) -> Fused:
    table: Tensor | None = None
    if len(normalize.mean) in (1, _CHANNELS):
        # A channel has 256 values: what the two ops make of each of them is all that there is to know.
        ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (1, 256, _CHANNELS))
        table = normalize.apply(to_tensor.apply(Image.fromarray(np.ascontiguousarray(ramp))))[:, 0]
        table = np.ascontiguousarray(table)

    def run(value: Value, out: Tensor | None) -> Value:
        if table is not None and value.mode == "RGB":
            room = np.empty((_CHANNELS, value.height, value.width), np.float32) if out is None else out
            if look_up(value, table, room):
                return room
        # The tensor is ours alone, so Normalize need not copy it: the same operations in the same order.
        return normalize.apply_to(to_tensor.apply_into(value, out))

    return run


def _scale_and_normalize(value: Value, scale: ToFloat, normalize: Normalize) -> Value:
    floats = scale.apply(value)
    # A tensor of floats passes through ToFloat as it is, and may belong to somebody else.
    return normalize.apply(floats) if floats is value else normalize.apply_to(floats)
