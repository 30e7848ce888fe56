"""Which box of a picture the ops after Decode need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from sophon.pipeline.op import Op, Params, drawn, first_crop_of
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.part import Box
from sophon.pipeline.rng import Key
from sophon.pipeline.spec import Spec, image
from sophon.pipeline.streams import Boxes, Sizes, Streams, whole

if TYPE_CHECKING:  # a pipeline asks here how much of itself a storage node has to know
    from sophon.pipeline.pipeline import Pipeline


def first_crop(ops: Sequence[Op]) -> int | None:
    """Return the position of the first op that crops, if all ops between Decode and it can work on a part."""
    if not isinstance(ops[0], Decode) or ops[0].mode not in ("RGB", "L"):
        return None
    after = first_crop_of(ops[1:])
    return None if after is None else after + 1


def can_crop_early(pipeline: Pipeline, stop: int | None = None) -> bool:
    """Return whether one of ops[:stop] crops, and all ops before it can be drawn for and can work on a part."""
    crop = pipeline.crop
    return crop is not None and crop < pipeline.drawable and (stop is None or crop < stop)


def needed_box(pipeline: Pipeline, key: Key, height: int, width: int, stop: int | None = None) -> Box | None:
    """Return the box of a picture of this size that ops[:stop] need in one pass, or None if they need all of it.

    If they end before the crop, their result is the whole picture. Random parameters depend only on the key, the data
    that comes with it and the picture's size, so nothing has to be decoded.
    """
    decode = pipeline.ops[0]
    if not isinstance(decode, Decode) or pipeline.crop is None:
        return None
    spec = image(height, width, len(decode.mode)).with_objects(None if key.sight is None else key.sight.objects)
    passed: list[tuple[Op, Spec, Params]] = []
    for position, op in enumerate(pipeline.ops[1:stop], start=1):
        params = drawn(op, key, position, spec) if op.random else None
        box = op.box_needed(spec, params)
        if box is not None:
            for earlier, its_spec, its_params in reversed(passed):
                box = earlier.box_before(box, its_spec, its_params)
                if box is None:
                    return None
            return box
        if not op.passes:
            return None
        passed.append((op, spec, params))
        spec = op.passed(spec, params)
    return None


def needed_boxes(
    pipeline: Pipeline, seed: int, epochs: int | NDArray[Any], samples: NDArray[Any], sizes: Sizes
) -> Boxes | None:
    """Return `needed_box` for many samples at once, with the whole picture where it is None.

    Args:
        pipeline: The pipeline of the samples.
        seed: Seed of the run.
        epochs: One for all, or one for each sample.
        samples: Indexes of the samples.
        sizes: Heights and widths of their pictures.

    Returns:
        The boxes; None if one of the ops can only be asked about one picture at a time.
    """
    crop = pipeline.crop
    if crop is None:
        return whole(sizes)
    passed: list[tuple[Op, Streams, Sizes]] = []
    for position, op in enumerate(pipeline.ops[1:crop], start=1):
        passed.append((op, Streams(seed, epochs, position, samples), sizes))
        made = op.sizes_made(sizes)
        if made is None:
            return None
        sizes = made
    boxes = pipeline.ops[crop].boxes_needed(Streams(seed, epochs, crop, samples), sizes)
    for op, streams, its_sizes in reversed(passed):
        if boxes is not None:
            boxes = op.boxes_before(boxes, streams, its_sizes)
    return boxes
