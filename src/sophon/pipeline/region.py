"""Computes the box of a picture, or of another value with axes, that the ops after the decoder need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from sophon.pipeline.op import Decoder, Op, Params, drawn, first_crop_of
from sophon.pipeline.part import Box
from sophon.pipeline.rng import Key
from sophon.pipeline.spec import Spec
from sophon.pipeline.streams import Boxes, Sizes, Streams, whole

if TYPE_CHECKING:  # a pipeline uses this module to find how many of its ops a storage node must know
    from sophon.pipeline.pipeline import Pipeline


def first_crop(ops: Sequence[Op]) -> int | None:
    """Return the position of the first op that crops, if all ops between it and the decoder can work on a part."""
    if not isinstance(ops[0], Decoder) or not ops[0].gives_parts:
        return None
    after = first_crop_of(ops[1:])
    return None if after is None else after + 1


def can_crop_early(pipeline: Pipeline, stop: int | None = None) -> bool:
    """Return whether one of ops[:stop] crops, and all ops before it have drawable parameters and can work on a part."""
    crop = pipeline.crop
    return crop is not None and crop < pipeline.drawable and (stop is None or crop < stop)


def needed_box(pipeline: Pipeline, key: Key, height: int, width: int, stop: int | None = None) -> Box | None:
    """Return the result of `needed_region` for a picture of this size."""
    decode = pipeline.ops[0]
    return needed_region(pipeline, key, decode.sized((height, width)), stop) if isinstance(decode, Decoder) else None


def needed_region(pipeline: Pipeline, key: Key, spec: Spec, stop: int | None = None) -> Box | None:
    """Return the box of a decoded value that ops[:stop] need in one pass, or None if they need the whole value.

    If the ops end before the crop, they need the whole value. Random parameters depend only on the key and the spec, so
    nothing has to be decoded for this.

    Args:
        pipeline: The pipeline of the value.
        key: Identifies the sample and the epoch.
        spec: Spec of the decoder's output for this sample, with all sizes known.
        stop: One past the last op; by default all ops.
    """
    if pipeline.crop is None:
        return None
    if key.sight is not None:
        spec = spec.with_objects(key.sight.objects)
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
    """Return the results of `needed_box` for many samples, with the whole in place of None.

    Args:
        pipeline: The pipeline of the samples.
        seed: Seed of the run.
        epochs: One epoch for all samples, or one for each.
        samples: Indexes of the samples.
        sizes: Sizes of the decoder's output for these samples, by axis.

    Returns:
        The boxes; None if some op can only be examined one sample at a time.
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
