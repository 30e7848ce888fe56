"""Targets: what belongs to a picture and follows it through the ops, wherever these run.

Wherever an op runs, its parameters are known here: they depend on the key and on the size of the picture, which comes
with the payload. So masks, boxes and keypoints are transformed on the trainer, by torchvision's own code, with the
parameters that were used for the picture.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sophon.codec.boxes import boxes_among, of_field, read_boxes, read_numbers
from sophon.codec.targets import received_mask
from sophon.errors import ConfigError, OpError
from sophon.loader.torch_import import torch
from sophon.pipeline import Key, Kind, Pipeline, Rng, Value
from sophon.pipeline.call import Form
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops import RandomApply, RandomChoice, RandomOrder
from sophon.pipeline.spec import Spec, image
from sophon.pipeline.translation.joint import Follower
from sophon.store.fields import BOX_FORMATS, BOXES, BYTES, KEYPOINTS, LABELS, MASK, TEXT, VALUES

LABEL = "label"
_NUMBERED = (KEYPOINTS, LABELS)
_PLAIN = (MASK, BYTES, TEXT, VALUES, LABELS)
_RAGGED = (BOXES, KEYPOINTS, LABELS, VALUES)
Size = tuple[int, int]


def check_kind(name: str, kind: Any) -> None:
    """Raise unless targets may be of this kind."""
    first, colon, rest = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    is_fine = kind in _PLAIN or (first == BOXES and rest in BOX_FORMATS)
    is_fine = is_fine or (bool(colon) and first in _NUMBERED and rest.isdecimal() and 0 < int(rest) < 10_000)
    if not is_fine:
        known = [*_PLAIN, *(f"{BOXES}:{form}" for form in BOX_FORMATS), f"{KEYPOINTS}:17"]
        raise ConfigError(f"kinds: {name!r}: expected one of {', '.join(known)}, got {kind!r}")


@dataclass(frozen=True)
class Targets:
    """How a sample is assembled.

    Args:
        sample: Its shape, with names at the leaves.
        fields: Which of these names are fields, in the order in which they arrive.
        kinds: Kinds of fields and columns; "" for a column that stays unchanged.
        followers: The recipe's effect on targets.
        form: Form of the picture's tensor, if an op returns an array.
    """

    sample: Any
    fields: tuple[str, ...]
    kinds: Mapping[str, str]
    followers: tuple[Follower, ...]
    form: Form

    @property
    def is_ragged(self) -> bool:
        """Whether samples have different numbers of objects and cannot be stacked."""
        return any(kind.partition(":")[0] in _RAGGED for kind in self.kinds.values())

    def boxes(self, values: Mapping[str, Any]) -> tuple[str, str, Any] | None:
        """Return the name, kind and value of the sample's boxes; None if it has none.

        Args:
            values: The received fields and columns.
        """
        return boxes_among(tuple(self.kinds.items()), [values[name] for name in self.kinds])

    def put_together(
        self, pipeline: Pipeline, value: Value, values: Mapping[str, Any], key: Key, size: Size, is_raw: bool
    ) -> Any:
        """Return a sample after the ops before the first `Call`.

        Args:
            pipeline: The pipeline for pictures.
            value: The picture after those ops.
            values: Received fields, columns and the label, by name.
            key: Identifies the sample and the epoch, and holds the objects that draws may use.
            size: Size of the picture before the first op.
            is_raw: Whether fields arrived in their stored form.

        Raises:
            OpError: A target is damaged, or torchvision refuses it; the message names the field.
        """
        tv_tensors = importlib.import_module("torchvision.tv_tensors")
        made = {}
        for name, found in values.items():
            try:
                made[name] = _made(tv_tensors, self.kinds.get(name, ""), found, size, is_raw)
            except OpError as error:
                raise of_field(name, error, key) from error
        sample = _filled(self.sample, made | {"image": _STAND_IN})
        sample = self._followed(pipeline, sample, key, size, tv_tensors)
        picture = self.form.tensor(value, torch) if isinstance(value, np.ndarray) else value
        return _with_picture(sample, picture)

    def _followed(self, pipeline: Pipeline, sample: Any, key: Key, size: Size, tv_tensors: Any) -> Any:
        """Return a sample whose targets have followed the picture."""
        at, spec = 1, image(*size, 3).with_objects(None if key.sight is None else key.sight.objects)
        for follower in self.followers:
            while at < follower.position:
                op = pipeline.ops[at]
                spec = op.passed(spec, op.draw(Rng(key, at), spec) if op.random else None)
                at += 1
            op = pipeline.ops[at] if follower.draws else _NO_OP
            drawn = op.draw(Rng(key, at), spec)
            try:
                sample = _follow(follower, sample, op, drawn, spec, tv_tensors)
            except Exception as error:
                told = OpError(f"on the targets: {type(error).__name__}: {str(error).removesuffix('.')}.")
                raise told.at(type(follower.transform).__name__, follower.position, int(key.sample)) from error
        return sample


_NO_OP = Op()  # draws nothing


class _StandIn:
    """Placeholder for the picture in a sample."""


_STAND_IN = _StandIn()


def _filled(sample: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(sample, str):
        return values[sample]
    if isinstance(sample, dict):
        return {name: _filled(part, values) for name, part in sample.items()}
    return type(sample)(_filled(part, values) for part in sample)


def _with_picture(sample: Any, picture: Any) -> Any:
    """Return a sample with the picture in its place."""
    if sample is _STAND_IN:
        return picture
    if isinstance(sample, dict):
        return {name: _with_picture(part, picture) for name, part in sample.items()}
    return type(sample)(_with_picture(part, picture) for part in sample) if type(sample) in (tuple, list) else sample


def _without_picture(sample: Any, stand_in: Any) -> Any:
    """Return a sample with a placeholder instead of its small picture."""
    if sample is stand_in:
        return _STAND_IN
    if isinstance(sample, dict):
        return {name: _without_picture(part, stand_in) for name, part in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(_without_picture(part, stand_in) for part in sample)
    return sample


def _follow(follower: Follower, sample: Any, op: Op, drawn: Params, spec: Spec, tv_tensors: Any) -> Any:
    """Return a sample after one transform was applied to its targets.

    Args:
        follower: The transform.
        sample: The sample before the transform.
        op: The op that the transform became.
        drawn: Parameters that the op drew.
        spec: Spec of the picture before the transform.
        tv_tensors: torchvision's module.
    """
    if follower.still:
        return sample
    if not follower.inside:
        return _transformed(follower, sample, drawn, (spec.height, spec.width), tv_tensors)
    assert isinstance(op, RandomApply | RandomChoice | RandomOrder)
    for which, params in op.applied(drawn):
        sample = _follow(follower.inside[which], sample, op.ops[which], params, spec, tv_tensors)
        spec = op.ops[which].passed(spec, params)
    return sample


def _transformed(follower: Follower, sample: Any, drawn: Params, size: Size, tv_tensors: Any) -> Any:
    """Return a sample whose targets torchvision has transformed.

    torchvision decides what to transform by the classes of all values, so the sample includes a picture of one pixel.
    """
    transform = follower.transform
    params = follower.params(drawn, size)
    if params is None:
        return sample
    small = _small_picture(follower, tv_tensors)
    whole = _with_picture(sample, small)
    if follower.whole:
        return _without_picture(transform(*whole) if isinstance(whole, tuple) else transform(whole), small)
    tree = torch.utils._pytree
    flat, shape = tree.tree_flatten(whole)
    needed = transform._needs_transform_list(flat)
    if follower.marks:
        transform.check_inputs(flat)  # it refuses samples without boxes, even if it would leave them unchanged
    if follower.marks and params:
        params["is_within_crop_area"] = _are_within(flat, params, tv_tensors)
    done = [
        transform.transform(value, params) if is_needed and value is not small else value
        for value, is_needed in zip(flat, needed, strict=True)
    ]
    return _without_picture(tree.tree_unflatten(done, shape), small)


def _are_within(flat: list[Any], crop: Mapping[str, Any], tv_tensors: Any) -> Any:
    """Return which boxes have their centres in a crop, exactly as torchvision decides it."""
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    boxes = next(value for value in flat if isinstance(value, tv_tensors.BoundingBoxes))
    plain = boxes.as_subclass(torch.Tensor)
    found = functional.convert_bounding_box_format(plain, boxes.format, tv_tensors.BoundingBoxFormat.XYXY)
    x, y = 0.5 * (found[..., 0] + found[..., 2]), 0.5 * (found[..., 1] + found[..., 3])
    right, bottom = crop["left"] + crop["width"], crop["top"] + crop["height"]
    return (crop["left"] < x) & (x < right) & (crop["top"] < y) & (y < bottom)


def _small_picture(follower: Follower, tv_tensors: Any) -> Any:
    met = follower.met
    if met.spec.kind is Kind.IMAGE:
        return Image.new("RGB", (1, 1))
    tensor = torch.zeros(3, 1, 1)
    return tv_tensors.Image(tensor) if met.form.is_image else tensor


# --- values ---------------------------------------------------------------------------------------------------------


def _made(  # noqa: PLR0911 - one return for each kind
    tv_tensors: Any, kind: str, found: Any, size: Size, is_raw: bool
) -> Any:
    """Return a target in torchvision's form.

    Raises:
        OpError: The target does not match its kind.
    """
    first, _, rest = kind.partition(":")
    if first == MASK:
        mask = received_mask(_bytes(found), size, is_raw)
        # torch has few operations on unsigned 16-bit integers.
        return tv_tensors.Mask(torch.from_numpy(mask.astype(np.int32) if mask.dtype == np.uint16 else mask))
    if first == BOXES:
        return _boxes(tv_tensors, rest, found, size)
    if first == KEYPOINTS:
        points = read_numbers(found, "f4", int(rest) * 2).reshape(-1, int(rest), 2)
        return tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=size)
    if first == LABELS:
        labels = read_numbers(found, "i8", int(rest or 1))
        return torch.from_numpy(labels.reshape(-1, int(rest)) if rest else labels)
    if first == VALUES:
        return torch.from_numpy(read_numbers(found, "f4", 1))
    if first == TEXT and isinstance(found, memoryview):
        try:
            return bytes(found).decode()
        except UnicodeDecodeError as error:
            raise OpError("expected UTF-8 text.") from error
    return bytes(found) if isinstance(found, memoryview) else found


def _boxes(tv_tensors: Any, form: str, found: Any, size: Size) -> Any:
    boxes, form = read_boxes(form, found, size)
    return tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format=form.upper(), canvas_size=size)


def _bytes(found: Any) -> memoryview:
    if not isinstance(found, bytes | memoryview):
        raise OpError(f"expected the bytes of a file, got {found!r:.60}.")
    return memoryview(found)


def size_bytes(sample: Any) -> int:
    """Return roughly how much memory a sample takes."""
    if isinstance(sample, Mapping):
        return sum(map(size_bytes, sample.values()))
    if isinstance(sample, tuple | list):
        return sum(map(size_bytes, sample))
    if isinstance(sample, Image.Image):
        return math.prod(sample.size) * len(sample.getbands())
    found = getattr(sample, "nbytes", None)
    return found if isinstance(found, int) else sys.getsizeof(sample)


def collated(samples: list[Any]) -> Any:
    """Return a batch of samples that cannot be stacked, as in torchvision's reference scripts for detection."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: [sample[name] for sample in samples] for name in first}
    if isinstance(first, tuple | list):
        return tuple(zip(*samples, strict=True))
    return samples
