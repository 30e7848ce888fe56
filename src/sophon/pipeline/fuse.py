"""Adjacent ops that can be done in one pass, with the same bits.

- ToTensor and Normalize: nothing else uses the tensor between them, so it need not be copied. The result can be written
  directly to where the caller wants it, for example into its place in a batch.
- Crops and flips only move pixels: a run of them is one crop of the picture and at most one flip of the crop. An op
  that crops and resizes may end such a run, since its crop is merged too; the resize sees the same pixels as before.
  (Pillow's ``resize(box=…)`` would save another copy, but it reads beyond the box and gives different bits.)

- All of these in one: a crop that is resized, mirrored, converted to a tensor and normalised is written straight to its
  place, without an intermediate picture. So is a crop that becomes a tensor of bytes (PILToTensor).
- Views: ops are fused within each view.

A fusion is used only where a run covers all its ops: a pipeline cut between them runs each side separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.combined.views import Views
from sophon.pipeline.ops.crop import CenterCrop, RandomCrop, RandomResizedCrop, crop, located
from sophon.pipeline.ops.flip import RandomHorizontalFlip, RandomVerticalFlip
from sophon.pipeline.ops.tensor import Normalize, PILToTensor, Tensor, ToFloat, ToTensor
from sophon.pipeline.part import Box, Part
from sophon.pipeline.pixels import look_up, write_planes
from sophon.pipeline.spec import Spec, Value, spec_of

_CHANNELS = 3  # number of channels for which there is a look-up
_FLIPS = (RandomHorizontalFlip, RandomVerticalFlip)
_CROPS = (CenterCrop, RandomCrop)
_TURNS = {
    (True, False): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, True): Image.Transpose.FLIP_TOP_BOTTOM,
    (True, True): Image.Transpose.ROTATE_180,  # both flips in one pass
}


@dataclass(frozen=True)
class Fused:
    """Several ops in one pass.

    Args:
        span: Number of ops.
        run: Runs the ops, given the value, the parameters of each op and an array for the result.
        hides: Whether a cut may lie between the ops; their costs must then be measured separately when ops are timed.
    """

    span: int
    run: Callable[[Value, Sequence[Params], Tensor | None], Value]
    hides: bool = False


def fuse(ops: Sequence[Op]) -> dict[int, tuple[Fused, ...]]:
    """Return the fusions that begin at each position, longest first."""
    found: dict[int, tuple[Fused, ...]] = {at: (_in_views(op),) for at, op in enumerate(ops) if isinstance(op, Views)}
    for at in range(len(ops) - 1):
        fusions = tuple(_moves(ops[at:stop]) for stop in range(at + _run_of_moves(ops, at), at + 1, -1))
        if (whole := _to_the_end(ops[at:])) is not None:
            fusions = (whole, *fusions)
        elif not fusions and (pair := _pair(ops[at], ops[at + 1])) is not None:
            fusions = (pair,)
        if fusions:
            found[at] = fusions
    return found


def _in_views(op: Views) -> Fused:
    fusions = [fuse(steps) for steps in op.views]
    return Fused(1, lambda value, params, _: op.each(value, params[0], fusions))


def _pair(first: Op, second: Op) -> Fused | None:
    if isinstance(first, ToTensor) and isinstance(second, Normalize):
        return _to_normalized(first, second)
    if isinstance(first, ToFloat) and isinstance(second, Normalize):
        return Fused(2, lambda value, *_: _scale_and_normalize(value, first, second))
    return None


def _to_normalized(to_tensor: ToTensor, normalize: Normalize) -> Fused:
    table = table_of(to_tensor, normalize)

    def run(value: Value, _: Sequence[Params], out: Tensor | None) -> Value:
        if table is not None and value.mode == "RGB":
            result = np.empty((_CHANNELS, value.height, value.width), np.float32) if out is None else out
            if look_up(value, table, result):
                return result
        # Nothing else uses the tensor, so Normalize need not copy it: the same operations in the same order.
        return normalize.apply_to(to_tensor.apply_into(value, out))

    return Fused(2, run)


def table_of(to_tensor: ToTensor, normalize: Normalize) -> Tensor | None:
    """Return the output of the two ops for each of the 256 values of each channel, as a table of shape (3, 256)."""
    if len(normalize.mean) not in (1, _CHANNELS):
        return None
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (1, 256, _CHANNELS))
    return np.ascontiguousarray(normalize.apply(to_tensor.apply(Image.fromarray(np.ascontiguousarray(ramp))))[:, 0])


def _to_the_end(ops: Sequence[Op]) -> Fused | None:
    """Return the fusion of crops, flips and the conversion to a tensor, if the ops begin with such a run."""
    count = next((i for i, op in enumerate(ops) if type(op) not in (*_FLIPS, *_CROPS, RandomResizedCrop)), len(ops))
    moves, ending = ops[:count], _ending(ops[count:])
    if not moves or ending is None or not _is_one_pass(moves):
        return None
    table, last = ending

    def run(value: Value, params: Sequence[Params], out: Tensor | None) -> Value:
        found = _straight(moves, value, params, table, out)
        return found if found is not None else last.run(_one_by_one(moves, value, params[:count]), (), out)

    return Fused(count + last.span, run, hides=True)


def _ending(ops: Sequence[Op]) -> tuple[Tensor | None, Fused] | None:
    """Return the lookup table for the tensor (None for bytes), and the fusion that makes the tensor from a picture."""
    if ops and type(ops[0]) is PILToTensor:
        as_bytes = ops[0]
        return None, Fused(1, lambda value, _, out: as_bytes.apply_into(value, out))
    if len(ops) > 1 and type(ops[0]) is ToTensor and type(ops[1]) is Normalize:
        table = table_of(ops[0], ops[1])
        return None if table is None else (table, _to_normalized(ops[0], ops[1]))
    return None


def _is_one_pass(moves: Sequence[Op]) -> bool:
    """Return whether the compiled filter can do all resizing, with only crops before it and only flips after it."""
    resizing = [index for index, op in enumerate(moves) if isinstance(op, RandomResizedCrop)]
    if not resizing:
        return True
    first = resizing[0]
    before, after = moves[:first], moves[first + 1 :]
    return (
        all(op.interpolation == "bilinear" for op in moves if isinstance(op, RandomResizedCrop))
        and all(type(op) in _CROPS for op in before)
        and all(type(op) in _FLIPS for op in after)
    )


def _straight(
    moves: Sequence[Op], value: Image.Image | Part, params: Sequence[Any], table: Tensor | None, out: Tensor | None
) -> Tensor | None:
    """Return the tensor of a cropped, resized and mirrored picture; None if an intermediate picture is needed."""
    spec = spec_of(value)
    box: Box = (0, 0, spec.height, spec.width)
    size: tuple[int, ...] = (spec.height, spec.width)
    flips = [False, False]
    for op, drawn in zip(moves, params, strict=False):  # the last two draw nothing
        if isinstance(op, _FLIPS):
            flips[isinstance(op, RandomVerticalFlip)] ^= drawn
        elif isinstance(op, RandomResizedCrop):
            box, size = _inside(box, drawn), op.resized_to
        else:
            inner = op.box_needed(spec, drawn)
            if inner is None:  # a border has to be made first
                return None
            box = _inside(box, _mirrored(inner, spec, flips[0], flips[1]))
            spec = op.output(spec)
            size = box[2], box[3]
    shape = (_CHANNELS, *size)
    result: Tensor = np.empty(shape, np.uint8 if table is None else np.float32) if out is None else out
    if result.shape != shape:
        return None
    picture, pillow_box = located(value, box)
    return result if write_planes(picture, pillow_box, result, table, (flips[0], flips[1])) else None


def _scale_and_normalize(value: Value, scale: ToFloat, normalize: Normalize) -> Value:
    floats = scale.apply(value)
    # ToFloat returns a float tensor unchanged, and other code may still hold it.
    return normalize.apply(floats) if floats is value else normalize.apply_to(floats)


def _run_of_moves(ops: Sequence[Op], at: int) -> int:
    """Return how many ops from a position only move pixels, possibly followed by one that resizes."""
    count = 0
    for op in ops[at:]:
        if type(op) in (*_FLIPS, *_CROPS):  # not a subclass, which may do anything
            count += 1
        else:
            return count + (type(op) is RandomResizedCrop)
    return count


def _moves(ops: Sequence[Op]) -> Fused:
    return Fused(len(ops), lambda value, params, _: _move(ops, value, params))


def _move(ops: Sequence[Op], value: Image.Image | Part, params: Sequence[Any]) -> Image.Image | Part:
    spec = spec_of(value)
    box: Box = (0, 0, spec.height, spec.width)
    flipped_x = flipped_y = cropped = False
    for op, drawn in zip(ops, params, strict=True):
        if isinstance(op, _FLIPS):
            flipped_x ^= drawn and isinstance(op, RandomHorizontalFlip)
            flipped_y ^= drawn and isinstance(op, RandomVerticalFlip)
        else:
            inner = op.box_needed(spec, drawn)
            if inner is None:  # a border has to be made first
                moved: Image.Image | Part = _one_by_one(ops, value, params)
                return moved
            box = _inside(box, _mirrored(inner, spec, flipped_x, flipped_y))
            cropped = True
        spec = op.output(spec) if not isinstance(op, RandomResizedCrop) else spec
    turn = _TURNS.get((flipped_x, flipped_y))
    if isinstance(value, Part) and not cropped:
        return _turned_part(value, turn, flipped_x, flipped_y)
    last = ops[-1]
    if isinstance(last, RandomResizedCrop):
        if turn is None:
            return last.apply(value, box)
        piece = crop(value, box).transpose(turn)
        return last.apply(piece, (0, 0, piece.height, piece.width))
    piece = value if isinstance(value, Image.Image) and not cropped else crop(value, box)
    return piece if turn is None else piece.transpose(turn)


def _one_by_one(ops: Sequence[Op], value: Value, params: Sequence[Params]) -> Value:
    for op, drawn in zip(ops, params, strict=True):
        value = op.apply(value, drawn)
    return value


def _inside(outer: Box, inner: Box) -> Box:
    return outer[0] + inner[0], outer[1] + inner[1], inner[2], inner[3]


def _mirrored(box: Box, spec: Spec, flipped_x: bool, flipped_y: bool) -> Box:
    top, left, height, width = box
    if flipped_x:
        left = spec.width - left - width
    if flipped_y:
        top = spec.height - top - height
    return top, left, height, width


def _turned_part(part: Part, turn: Image.Transpose | None, flipped_x: bool, flipped_y: bool) -> Part:
    if turn is None:
        return part
    piece = part.picture
    box = (part.top, part.left, piece.height, piece.width)
    top, left, _, _ = _mirrored(box, spec_of(part), flipped_x, flipped_y)
    return Part(piece.transpose(turn), top, left, part.height, part.width)
