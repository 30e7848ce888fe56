"""Targets: what belongs to a picture, and follows it through the ops wherever these run.

Whoever runs an op, its parameters are known here: they depend on the key and on the size of the picture, which comes
with the payload. So masks, boxes and keypoints are transformed on the trainer, by torchvision's own code, with the
parameters that moved the picture.
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

from sophon.codec.targets import received_mask
from sophon.errors import ConfigError, OpError
from sophon.loader.torch_import import torch
from sophon.pipeline import Key, Kind, Pipeline, Rng, Value
from sophon.pipeline.call import Form
from sophon.pipeline.spec import image
from sophon.pipeline.translation.joint import Follower
from sophon.store.fields import BOX_FORMATS, BOXES, BYTES, KEYPOINTS, LABELS, MASK, TEXT, VALUES

LABEL = "label"
_NUMBERED = (KEYPOINTS, LABELS)
_PLAIN = (MASK, BYTES, TEXT, VALUES, LABELS)
_RAGGED = (BOXES, KEYPOINTS, LABELS, VALUES)
Size = tuple[int, int]


def check_kind(name: str, kind: Any) -> None:
    """Raise unless a kind is one that targets may have."""
    first, colon, rest = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    is_fine = kind in _PLAIN or (first == BOXES and rest in BOX_FORMATS)
    is_fine = is_fine or (bool(colon) and first in _NUMBERED and rest.isdecimal() and 0 < int(rest) < 10_000)
    if not is_fine:
        known = [*_PLAIN, *(f"{BOXES}:{form}" for form in BOX_FORMATS), f"{KEYPOINTS}:17"]
        raise ConfigError(f"kinds: {name!r}: expected one of {', '.join(known)}, got {kind!r}")


@dataclass(frozen=True)
class Targets:
    """What a sample is put together from.

    Args:
        sample: Its shape, with names at the leaves.
        fields: Those names that are fields, in the order in which they come.
        kinds: Of fields and columns; "" for a column that stays what it is.
        followers: What the recipe does to targets.
        form: Of the picture's tensor, where an op gives an array.
    """

    sample: Any
    fields: tuple[str, ...]
    kinds: Mapping[str, str]
    followers: tuple[Follower, ...]
    form: Form

    @property
    def is_ragged(self) -> bool:
        """Whether samples have different numbers of objects, so that they cannot be stacked."""
        return any(kind.partition(":")[0] in _RAGGED for kind in self.kinds.values())

    def put_together(
        self, pipeline: Pipeline, value: Value, values: Mapping[str, Any], key: Key, size: Size, is_raw: bool
    ) -> Any:
        """Return a sample after the ops before the first `Call`.

        Args:
            pipeline: What is done to pictures.
            value: The picture after those ops.
            values: Fields as they came, columns and the label, by name.
            key: Which sample, of which epoch.
            size: Of the picture before the first op.
            is_raw: Whether fields came as they are stored.

        Raises:
            OpError: A target is damaged, or torchvision refuses it; names the field.
        """
        tv_tensors = importlib.import_module("torchvision.tv_tensors")
        made = {}
        for name, found in values.items():
            try:
                made[name] = _made(tv_tensors, self.kinds.get(name, ""), found, size, is_raw)
            except OpError as error:
                raise OpError(
                    f"field {name!r}: {error.problem}", remedy=error.remedy, sample=int(key.sample)
                ) from error
        sample = _filled(self.sample, made | {"image": _STAND_IN})
        sample = self._followed(pipeline, sample, key, size, tv_tensors)
        picture = self.form.tensor(value, torch) if isinstance(value, np.ndarray) else value
        return _with_picture(sample, picture)

    def _followed(self, pipeline: Pipeline, sample: Any, key: Key, size: Size, tv_tensors: Any) -> Any:
        """Return a sample whose targets have gone where the picture went."""
        at, spec = 1, image(*size, 3)
        for follower in self.followers:
            while at < follower.position:
                op = pipeline.ops[at]
                spec = op.made(spec, op.draw(Rng(key, at), spec) if op.random else None)
                at += 1
            drawn = pipeline.ops[at].draw(Rng(key, at), spec) if follower.draws else None
            sample = _follow(follower, sample, drawn, (spec.height, spec.width), tv_tensors, key)
        return sample


class _StandIn:
    """Stands in a sample for the picture, which is elsewhere."""


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
    """Return a sample with our own mark where a small picture stands."""
    if sample is stand_in:
        return _STAND_IN
    if isinstance(sample, dict):
        return {name: _without_picture(part, stand_in) for name, part in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(_without_picture(part, stand_in) for part in sample)
    return sample


def _follow(follower: Follower, sample: Any, drawn: Any, size: Size, tv_tensors: Any, key: Key) -> Any:
    """Return a sample whose targets one transform has been applied to.

    torchvision decides what is transformed by the classes of all values, so a picture of one pixel is among them.
    """
    transform = follower.transform
    name = type(transform).__name__
    try:
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
        done = [
            transform.transform(value, params) if is_needed and value is not small else value
            for value, is_needed in zip(flat, needed, strict=True)
        ]
        return _without_picture(tree.tree_unflatten(done, shape), small)
    except Exception as error:
        told = OpError(f"on the targets: {type(error).__name__}: {str(error).removesuffix('.')}.")
        raise told.at(name, follower.position, int(key.sample)) from error


def _small_picture(follower: Follower, tv_tensors: Any) -> Any:
    met = follower.met
    if met.spec.kind is Kind.IMAGE:
        return Image.new("RGB", (1, 1))
    tensor = torch.zeros(3, 1, 1)
    return tv_tensors.Image(tensor) if met.form.is_image else tensor


# --- values ---------------------------------------------------------------------------------------------------------


def _made(  # noqa: PLR0911 - one for each kind
    tv_tensors: Any, kind: str, found: Any, size: Size, is_raw: bool
) -> Any:
    """Return a target as torchvision has it.

    Raises:
        OpError: It is not what its kind says.
    """
    first, _, rest = kind.partition(":")
    if first == MASK:
        mask = received_mask(_bytes(found), size, is_raw)
        # torch knows few operations on 16 bits without a sign.
        return tv_tensors.Mask(torch.from_numpy(mask.astype(np.int32) if mask.dtype == np.uint16 else mask))
    if first == BOXES:
        return _boxes(tv_tensors, rest, found, size)
    if first == KEYPOINTS:
        points = _numbers(found, "f4", int(rest) * 2).reshape(-1, int(rest), 2)
        return tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=size)
    if first == LABELS:
        labels = _numbers(found, "i8", int(rest or 1))
        return torch.from_numpy(labels.reshape(-1, int(rest)) if rest else labels)
    if first == VALUES:
        return torch.from_numpy(_numbers(found, "f4", 1))
    if first == TEXT and isinstance(found, memoryview):
        try:
            return bytes(found).decode()
        except UnicodeDecodeError as error:
            raise OpError("it is not text in UTF-8.") from error
    return bytes(found) if isinstance(found, memoryview) else found


def _boxes(tv_tensors: Any, form: str, found: Any, size: Size) -> Any:
    boxes = _numbers(found, "f4", 4).reshape(-1, 4)
    if form == "relative":
        height, width = size
        boxes = (boxes.astype(np.float64) * (width, height, width, height)).astype(np.float32)
        form = "cxcywh"
    _check_inside(boxes, form, size)
    return tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format=form.upper(), canvas_size=size)


def _check_inside(boxes: np.ndarray[Any, np.dtype[np.float32]], form: str, size: Size) -> None:
    """Raise if a box has no point in common with the picture; what only sticks out is for the recipe to clamp."""
    if not len(boxes):
        return
    a, b, c, d = boxes.astype(np.float64).T
    left, top, right, bottom = {
        "xyxy": (a, b, c, d),
        "xywh": (a, b, a + c, b + d),
        "cxcywh": (a - c / 2, b - d / 2, a + c / 2, b + d / 2),
    }[form]
    outside = (left > size[1]) | (top > size[0]) | (right < 0) | (bottom < 0)
    if outside.any():
        which = int(np.flatnonzero(outside)[0])
        numbers = ", ".join(f"{number:g}" for number in boxes[which])
        raise OpError(
            f"box {which} ({form}: {numbers}) lies outside of the picture of {size[1]}×{size[0]} pixels.",
            remedy="Correct it, or name the format that boxes are written in.",
        )


def _bytes(found: Any) -> memoryview:
    if not isinstance(found, bytes | memoryview):
        raise OpError(f"expected the bytes of a file, got {found!r:.60}.")
    return memoryview(found)


def _numbers(found: Any, dtype: str, each: int) -> np.ndarray[Any, Any]:
    """Return numbers, from bytes or from the value of a column, of which there are a multiple of some number."""
    if isinstance(found, bytes | memoryview):
        if len(found) % np.dtype(dtype).itemsize:
            raise OpError(f"its {len(found)} bytes are no whole numbers of {np.dtype(dtype).itemsize}.")
        array = np.frombuffer(found, f"<{dtype}").astype(dtype)
    else:
        try:
            array = np.asarray([] if found is None else found, np.float64 if dtype == "f4" else np.int64)
            array = array.astype(dtype).reshape(-1)
        except (TypeError, ValueError, OverflowError) as error:
            raise OpError(f"expected numbers, got {found!r:.60}.") from error
    if len(array) % each:
        raise OpError(f"it has {len(array)} numbers, expected {each} for each object.")
    if dtype == "f4" and not np.isfinite(array).all():
        raise OpError("it has numbers that are not finite.")
    return array


def size_bytes(sample: Any) -> int:
    """Return about how much memory a sample takes."""
    if isinstance(sample, Mapping):
        return sum(map(size_bytes, sample.values()))
    if isinstance(sample, tuple | list):
        return sum(map(size_bytes, sample))
    if isinstance(sample, Image.Image):
        return math.prod(sample.size) * len(sample.getbands())
    found = getattr(sample, "nbytes", None)
    return found if isinstance(found, int) else sys.getsizeof(sample)


def collated(samples: list[Any]) -> Any:
    """Return a batch of samples that cannot be stacked, as torchvision's references for detection have it."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: [sample[name] for sample in samples] for name in first}
    if isinstance(first, tuple | list):
        return tuple(zip(*samples, strict=True))
    return samples
