"""What a value is, before it exists: its kind, shape and dtype.

Ops declare their output as a `Spec`, so that a pipeline is checked when it is built, a payload's size is bounded
before it is allocated, and random parameters can be drawn from a picture's size alone.

====================  =========================================  =======================
kind                  the value at run time                      shape
====================  =========================================  =======================
``Kind.ENCODED``      ``bytes`` of a file                        ``(bytes,)``
``Kind.IMAGE``        ``PIL.Image.Image``, in mode RGB or L      ``(height, width, channels)``
                      unless the spec says another one
``Kind.TENSOR``       C-contiguous ``numpy.ndarray``; after a    ``(channels, height, width)``
                      trainer-only step a ``torch.Tensor``
``Kind.VIEWS``        `ViewSet`: several values of one sample    ``(views,)``
``Kind.OBJECT``       whatever a trainer-only callable returned  ``()``
====================  =========================================  =======================

A dimension that is not known yet is None. Pictures are in mode RGB or L as a rule, by the number of channels; `mode`
names any other one (`MODES`). Few ops take those: see `Op.modes`. The spec of views has the spec of each in `views`,
and as its dtype what users see them in: "list" or "tuple". Of a picture whose sample has boxes, `objects` says where
those lie in it, for ops that draw by them (`Op.looks`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
from PIL import Image

from sophon.errors import ConfigError
from sophon.pipeline.part import Canvas, Part

Value: TypeAlias = Any
Shape: TypeAlias = tuple[int | None, ...]
Objects: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float64]]  # left, top, right, bottom of each

MODES: Final[dict[str, tuple[int, str]]] = {
    "RGB": (3, "uint8"),
    "L": (1, "uint8"),
    "P": (1, "uint8"),
    "RGBA": (4, "uint8"),
    "LA": (2, "uint8"),
    "CMYK": (4, "uint8"),
    "I;16": (1, "uint16"),
    "I": (1, "int32"),
    "F": (1, "float32"),
}
"""Pillow's modes that a picture may be decoded to: channels, and what a channel's values are."""

OTHER_MODES: Final = tuple(mode for mode in MODES if mode not in ("RGB", "L"))


class Kind(Enum):
    """The sorts of value that flow through a pipeline."""

    ENCODED = "encoded"
    IMAGE = "image"
    TENSOR = "tensor"
    VIEWS = "views"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Spec:
    """Kind, shape and dtype of a value.

    Of a picture also its mode, where that is neither RGB nor L, and its objects, where somebody knows them; of views
    the spec of each.
    """

    kind: Kind
    shape: Shape = ()
    dtype: str = "uint8"
    mode: str = ""
    views: tuple[Spec, ...] = ()
    objects: Objects | None = field(default=None, compare=False, repr=False)  # no part of what a value is

    @property
    def height(self) -> int:
        """Height in pixels; only for images and tensors of known size."""
        return self._known(self.shape[0 if self.kind is Kind.IMAGE else 1])

    @property
    def width(self) -> int:
        """Width in pixels; only for images and tensors of known size."""
        return self._known(self.shape[1 if self.kind is Kind.IMAGE else 2])

    @property
    def channels(self) -> int | None:
        """Number of channels of an image or tensor."""
        return self.shape[2 if self.kind is Kind.IMAGE else 0]

    @property
    def size_bytes(self) -> int:
        """Bytes of a value of this spec; 0 if a dimension is not known."""
        if self.kind is Kind.VIEWS:
            return sum(view.size_bytes for view in self.views) if self.is_sized else 0
        return math.prod(d or 0 for d in self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_sized(self) -> bool:
        """Whether all dimensions are known, those of all views."""
        return None not in self.shape and all(view.is_sized for view in self.views)

    def with_objects(self, objects: Objects | None) -> Spec:
        """Return the spec of a picture with these objects in it; None if nobody knows."""
        return self if objects is self.objects else replace(self, objects=objects)

    def _known(self, dimension: int | None) -> int:
        if dimension is None:
            raise ConfigError(
                f"{self} has no size yet, so nothing can be drawn for it; "
                "an op whose result has an unknown size must not stand before a random op inside RandomApply"
            )
        return dimension

    def __str__(self) -> str:
        if self.kind is Kind.VIEWS:
            counts = Counter(map(str, self.views))
            return ", ".join(f"{count} × {view}" for view, count in counts.items())
        size = "×".join("?" if d is None else str(d) for d in self.shape)
        mode = f" in mode {self.mode}" if self.mode else ""
        return f"{self.kind.value}[{size}] {self.dtype}{mode}" if size else self.kind.value


CONTAINERS: Final[dict[str, type]] = {"list": list, "tuple": tuple}
"""What users see the views of a sample in."""


@dataclass(frozen=True, slots=True)
class ViewSet:
    """The views of one sample on their way through a pipeline.

    Args:
        values: One of each view.
        container: What users see them in: "list" or "tuple".
    """

    values: tuple[Value, ...]
    container: str = "list"

    @property
    def nbytes(self) -> int:
        """Bytes of all views together; 0 of those whose size is not known."""
        return sum(getattr(value, "nbytes", None) or spec_of(value).size_bytes for value in self.values)


ENCODED = Spec(Kind.ENCODED, (None,))
OBJECT = Spec(Kind.OBJECT, (), "object")


def image(height: int | None, width: int | None, channels: int | None, mode: str = "") -> Spec:
    """Return the spec of an image, in mode RGB or L unless another one is named."""
    if mode in OTHER_MODES:
        return Spec(Kind.IMAGE, (height, width, MODES[mode][0]), MODES[mode][1], mode)
    return Spec(Kind.IMAGE, (height, width, channels))


def spec_of(value: Value) -> Spec:  # noqa: PLR0911 - one line per kind
    """Return the spec of a value that exists."""
    if isinstance(value, Image.Image):
        return image(value.height, value.width, len(value.getbands()), value.mode)
    if isinstance(value, Canvas):  # to an op it is the whole, as is a part
        return spec_of(value.value)
    if isinstance(value, Part):
        return image(value.height, value.width, len(value.picture.getbands()), value.picture.mode)
    if isinstance(value, ViewSet):
        views = tuple(map(spec_of, value.values))
        return Spec(Kind.VIEWS, (len(views),), value.container, views=views)
    if isinstance(value, np.ndarray):
        return Spec(Kind.TENSOR, value.shape, value.dtype.name)
    if isinstance(value, bytes | bytearray | memoryview):
        return Spec(Kind.ENCODED, (len(value),))
    torch: Any = sys.modules.get("torch")  # where it is not loaded, nobody has a tensor of it
    if torch is not None and isinstance(value, torch.Tensor):
        return Spec(Kind.TENSOR, tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return OBJECT
