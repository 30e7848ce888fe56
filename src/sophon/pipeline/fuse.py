"""Ops that stand beside each other and can be done in one pass, with the same bits.

A fusion is only used where a run covers both ops: a pipeline cut between them runs each on its own. The result may be
written where the caller wants it, for example into its place in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from sophon.pipeline.op import Op
from sophon.pipeline.ops.tensor import Normalize, Tensor, ToFloat, ToTensor
from sophon.pipeline.spec import Value

Fused = Callable[[Value, Tensor | None], Value]


def fuse(ops: Sequence[Op]) -> dict[int, Fused]:
    """Return, by the position of the first op of a pair, a function that does both."""
    pairs = pairwise(ops)
    return {at: fused for at, (first, second) in enumerate(pairs) if (fused := _pair(first, second)) is not None}


def _pair(first: Op, second: Op) -> Fused | None:
    if isinstance(first, ToTensor) and isinstance(second, Normalize):
        # The tensor is ours alone, so Normalize need not copy it: the same operations in the same order.
        return lambda value, out: second.apply_to(first.apply_into(value, out))
    if isinstance(first, ToFloat) and isinstance(second, Normalize):
        return lambda value, _: _scale_and_normalize(value, first, second)
    return None


def _scale_and_normalize(value: Value, scale: ToFloat, normalize: Normalize) -> Value:
    floats = scale.apply(value)
    # A tensor of floats passes through ToFloat as it is, and may belong to somebody else.
    return normalize.apply(floats) if floats is value else normalize.apply_to(floats)
