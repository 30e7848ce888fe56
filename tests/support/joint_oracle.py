"""Samples of picture, mask, boxes, keypoints and labels, and what torchvision's v2 makes of them.

torchvision is given the parameters that the ops of a pipeline draw, or the seed of a `Call`; all else is its own.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from sophon.bundle import pack
from sophon.codec.cut import RAW, Cut
from sophon.codec.cut import make_payload as cut_payload
from sophon.link.wire import Reply
from sophon.loader.epoch.finishing import Finishing
from sophon.loader.epoch.targets import Targets
from sophon.loader.joint import Joint
from sophon.pipeline import Call, Key, Pipeline, Rng, spec_of
from sophon.pipeline.ops.on_tensor import OnTensor
from tests.support import transform_oracle as oracle
from tests.support.pictures import encode, scene

SAMPLE = ("image", {"boxes": "boxes", "masks": "mask", "keypoints": "keypoints", "labels": "labels", "n": "number"})
FIELDS = ("mask", "boxes", "keypoints", "labels")


@dataclass(frozen=True)
class Raw:
    """A sample as a store has it: the size of its picture, the bytes of its fields, and the picture."""

    width: int
    height: int
    image: bytes
    mask: bytes
    boxes: np.ndarray[Any, Any]
    box_format: str
    keypoints: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]

    @property
    def data(self) -> bytes:
        """The bundle of its fields."""
        arrays = (self.boxes.tobytes(), self.keypoints.tobytes(), self.labels.tobytes())
        return pack([self.image, self.mask, *arrays])

    @property
    def kinds(self) -> dict[str, str]:
        """Of its fields."""
        kinds = ("mask", f"boxes:{self.box_format}", f"keypoints:{self.keypoints.shape[1]}", "labels")
        return dict(zip(FIELDS, kinds, strict=True))

    def theirs(self, sample: Any = SAMPLE) -> Any:
        """Return the sample as torchvision has it."""
        from torchvision import tv_tensors

        size = (self.height, self.width)
        mask = np.array(Image.open(io.BytesIO(self.mask)))
        boxes = torch.from_numpy(self.boxes.copy())
        values = {
            "image": Image.open(io.BytesIO(self.image)).convert("RGB"),
            "boxes": tv_tensors.BoundingBoxes(boxes, format=self.box_format.upper(), canvas_size=size),
            "mask": tv_tensors.Mask(torch.from_numpy(mask)),
            "keypoints": tv_tensors.KeyPoints(torch.from_numpy(self.keypoints.copy()), canvas_size=size),
            "labels": torch.from_numpy(self.labels.copy()),
            "number": 7,
        }
        return _filled(sample, values)


def _filled(sample: Any, values: dict[str, Any]) -> Any:
    if isinstance(sample, str):
        return values[sample]
    if isinstance(sample, dict):
        return {name: _filled(part, values) for name, part in sample.items()}
    return type(sample)(_filled(part, values) for part in sample)


def raw_sample(width: int = 97, height: int = 64, objects: int = 5, box_format: str = "xyxy", seed: int = 0) -> Raw:
    """Return a made-up sample; its boxes and points lie inside of the picture."""
    rng = np.random.default_rng(seed)
    x, y = (np.sort(rng.uniform(0, side, (objects, 2)), axis=1) for side in (width, height))
    corners = np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1).astype(np.float32)
    if box_format == "xywh":
        corners[:, 2:] -= corners[:, :2]
    elif box_format == "cxcywh":
        middle, size = (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]
        corners = np.concatenate([middle, size], axis=1)
    points = rng.uniform(0, 1, (objects, 3, 2)).astype(np.float32) * np.float32([width, height])
    blocks = rng.integers(0, 21, (height // 5 + 1, width // 5 + 1)).astype(np.uint8)
    mask = Image.fromarray(np.kron(blocks, np.ones((5, 5), np.uint8))[:height, :width])
    mask = mask.convert("P") if seed % 2 else mask
    file = io.BytesIO()
    mask.save(file, "PNG")
    picture = encode(scene(width, height), "jpeg 4:4:4" if seed % 3 else "jpeg 4:2:0")
    labels = rng.integers(0, 90, objects)
    return Raw(width, height, picture, file.getvalue(), corners, box_format, points, labels)


class Ours:
    """A recipe over samples, as it is finished by a loader.

    Args:
        recipe: The transform.
        raw: A sample of the data set.
        sample: What a sample is.
    """

    def __init__(self, recipe: Any, raw: Raw, sample: Any = SAMPLE) -> None:
        made = Joint(recipe, sample).ops
        self.pipeline = Pipeline(made.ops).along(raw.kinds.items())
        targets = Targets(sample, FIELDS, raw.kinds, made.followers, made.form)
        self._finishing = Finishing(self.pipeline, 3, "here", False, fields=FIELDS, targets=targets)

    def finished(self, raw: Raw, key: Key, cut: Cut = RAW) -> Any:
        """Return the sample, of which ops[:k] have run elsewhere; whatever goes wrong is raised."""
        payload = raw.data if cut == RAW else cut_payload(self.pipeline, raw.data, key, cut)
        made = self._finishing.make(Reply(0, cut, payload, columns={"number": 7}), key)
        if made.error is not None:
            raise made.error
        return self._finishing.item(made)


def theirs(recipe: Any, raw: Raw, key: Key, shape: Any = SAMPLE) -> Any:
    """Return what torchvision makes of a sample with the parameters that our ops draw."""
    parts = list(oracle.flat(recipe))
    ops = Pipeline(Joint(recipe, shape).ops.ops).ops
    held = sum(isinstance(op, Call | OnTensor) for op in ops)  # of these, each is one of the last transforms
    sample, position = raw.theirs(shape), 1
    for at, part in enumerate(parts):
        if at >= len(parts) - held:
            position, count = len(ops) - len(parts) + at, 1
        else:
            count = len(_ops(parts[: at + 1], shape)) - len(_ops(parts[:at], shape))
        if count == 1 and isinstance(ops[position], Call):
            assert ops[position].function is part
            sample = seeded(part, sample, Rng(key, position).word())
            continue
        if count == 1 and ops[position].random:
            drawn = ops[position].draw(Rng(key, position), _seen(sample, shape))
            sample = oracle.forced(part, sample, drawn)
        else:
            sample = part(sample)
        position += count
    return sample


def _seen(sample: Any, shape: Any) -> Any:
    """Return the spec of a sample's picture, with the boxes that torchvision has by now."""
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    spec = spec_of(_plain(_picture(sample, shape)))
    for value in torch.utils._pytree.tree_flatten(sample)[0]:
        if isinstance(value, tv_tensors.BoundingBoxes):
            return spec.with_objects(functional.convert_bounding_box_format(value, new_format="XYXY").double().numpy())
    return spec


def _ops(parts: list[Any], shape: Any) -> tuple[Any, ...]:
    return Joint(parts, shape).ops.ops


def _picture(sample: Any, shape: Any) -> Any:
    """Return the picture of a sample of some shape."""
    if shape == "image":
        return sample
    if isinstance(shape, str):
        return None
    pairs = ((sample[at], shape[at]) for at in (shape if isinstance(shape, dict) else range(len(shape))))
    return next((found for found in (_picture(*pair) for pair in pairs) if found is not None), None)


def seeded(part: Any, sample: Any, seed: int) -> Any:
    """Return what a transform of torchvision's makes of a sample under a seed."""
    torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    return part(*sample) if isinstance(sample, tuple) else part(sample)


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def differences(ours: Any, theirs: Any, where: str = "sample") -> list[str]:  # noqa: PLR0911 - one for each kind
    """Return in words where two samples differ: in shape, class, canvas, format or any bit."""
    if isinstance(theirs, dict):
        if not isinstance(ours, dict) or list(ours) != list(theirs):
            return [f"{where}: {type(ours)} with other names"]
        return [text for name in theirs for text in differences(ours[name], theirs[name], f"{where}.{name}")]
    if isinstance(theirs, tuple | list):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return [f"{where}: {type(ours)}, expected {type(theirs)}"]
        return [
            text
            for at, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for text in differences(a, b, f"{where}.{at}")
        ]
    if type(ours) is not type(theirs):
        return [f"{where}: {type(ours)}, expected {type(theirs)}"]
    found = []
    for name in ("canvas_size", "format", "clamping_mode"):
        if getattr(ours, name, None) != getattr(theirs, name, None):
            found.append(f"{where}: {name} {getattr(ours, name, None)}, expected {getattr(theirs, name, None)}")
    if isinstance(theirs, torch.Tensor | Image.Image):
        text = oracle.difference(oracle.facts(ours), oracle.facts(theirs))
        return found + ([f"{where}: {text}"] if text else [])
    return found + ([] if ours == theirs else [f"{where}: {ours!r}, expected {theirs!r}"])
