"""Which box of a picture the ops behind Decode need."""

from __future__ import annotations

from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.part import Box
from sophon.pipeline.pipeline import Pipeline
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.spec import Spec, image


def can_crop_early(pipeline: Pipeline, stop: int | None = None) -> bool:
    """Return whether one of ops[:stop] crops and those between it and Decode let a part pass."""
    if not isinstance(pipeline.ops[0], Decode):
        return False
    for op in pipeline.ops[1:stop]:
        if type(op).box_needed is not Op.box_needed:
            return True
        if type(op).box_before is Op.box_before:
            return False
    return False


def needed_box(pipeline: Pipeline, key: Key, height: int, width: int, stop: int | None = None) -> Box | None:
    """Return the box of a picture of this size that ops[:stop] need in one pass, or None if they need all of it.

    Where they end before the crop, what they give is the whole picture. Random parameters depend on the key and the
    picture's size alone, so nothing has to be decoded for this.
    """
    decode = pipeline.ops[0]
    if not isinstance(decode, Decode):
        return None
    spec = image(height, width, len(decode.mode))
    passed: list[tuple[Op, Spec, Params]] = []
    for position, op in enumerate(pipeline.ops[1:stop], start=1):
        params = op.draw(Rng(key, position), spec) if op.random else None
        box = op.box_needed(spec, params)
        if box is not None:
            for earlier, its_spec, its_params in reversed(passed):
                box = earlier.box_before(box, its_spec, its_params)
                if box is None:
                    return None
            return box
        if type(op).box_before is Op.box_before:
            return None
        passed.append((op, spec, params))
        spec = op.output(spec)
    return None
