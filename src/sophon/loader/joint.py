"""Joint: a recipe over whole samples (picture and targets), and the shape of a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sophon.errors import ConfigError
from sophon.link.transport import Opened
from sophon.loader.epoch.targets import LABEL, Targets, check_kind
from sophon.loader.sources.samples import divided
from sophon.pipeline import Pipeline
from sophon.pipeline.translation.joint import JointOps, joint_ops
from sophon.store.fields import BOXES

_IMAGE = "image"


@dataclass(frozen=True)
class Joint:
    """A recipe for samples with several fields, as in torchvision's v2: ``transform(image, target)``.

    Args:
        transform: A torchvision v2 transform, or anything that takes a sample of this shape.
        sample: The shape of a sample: field names in a tuple, list or dict, which may be nested; "image" is the
            picture, "label" the class of its folder, and any other name a field or column. A transform is called
            with the parts of a tuple, ``("image", {"boxes": "boxes", "labels": "labels"})``, or with the dict.
        kinds: Kinds of fields or columns that do not declare one themselves: "mask", "boxes:xyxy", "boxes:xywh",
            "boxes:cxcywh", "boxes:relative" (YOLO's fractions of the picture), "keypoints:17", "labels", "values",
            "text" or "bytes".
    """

    transform: Callable[..., Any]
    sample: Any = (_IMAGE, {"boxes": "boxes", "labels": "labels"})
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = list(_leaves(self.sample))
        if names.count(_IMAGE) != 1:
            raise ConfigError(f'sample: expected the picture once, as "{_IMAGE}", got {self.sample!r:.200}')
        if isinstance(self.sample, str):
            raise ConfigError("sample: expected more than the picture; give the transform itself as the pipeline")
        for name, kind in self.kinds.items():
            check_kind(name, kind)
            if name not in names:
                raise ConfigError(f"kinds: the sample has no {name!r}")

    @property
    def ops(self) -> JointOps:
        """The transform, translated to ops."""
        return joint_ops(self.transform, leads=next(_leaves(self.sample)) == _IMAGE)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields and columns that the recipe needs besides the picture and the label."""
        return tuple(dict.fromkeys(name for name in _leaves(self.sample) if name not in (_IMAGE, LABEL)))

    def bound(self, pipeline: Pipeline, opened: Opened) -> tuple[Pipeline, Targets]:
        """Return the pipeline and the targets for a data set, given the kinds of its fields.

        Raises:
            ConfigError: The data set lacks a field, or the kind of a field is unknown.
        """
        fields, columns = divided(self.names, opened)
        if LABEL in _leaves(self.sample) and not opened.has_labels:
            raise ConfigError(f"sample: {LABEL!r}: the data set has no labels")
        known = {one.name: one.kind for one in opened.fields}
        kinds = {name: self.kinds.get(name, known.get(name, "")) for name in (*fields, *columns)}
        for name in fields:
            if kinds[name] == "picture":
                raise ConfigError(
                    f'sample: declare the kind of {name!r}, such as kinds={{"{name}": "mask"}} or "bytes"'
                )
        recipe = self.ops
        boxes = [name for name, kind in kinds.items() if kind.partition(":")[0] == BOXES]
        if pipeline.looks and len(boxes) > 1:
            raise ConfigError(f"sample: a step depends on the boxes, and there are several: {', '.join(boxes)}")
        targets = Targets(self.sample, fields, kinds, recipe.followers, recipe.form)
        return pipeline.along([(name, kinds[name]) for name in fields]), targets


def _leaves(sample: Any) -> Iterator[str]:
    """Yield the names in a sample's description."""
    if isinstance(sample, str):
        yield sample
        return
    parts = sample.values() if isinstance(sample, dict) else sample
    if not isinstance(sample, dict | tuple | list):
        raise ConfigError(f"sample: expected field names in tuples, lists and dicts, got {sample!r:.80}")
    for part in parts:
        yield from _leaves(part)
