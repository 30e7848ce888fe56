"""The kind, shape and dtype of a value, known before the value exists.

Ops declare their output as a `Spec`, so that a pipeline is checked when it is built, a payload's size is bounded
before it is allocated, and random parameters can be drawn from only a picture's size.

====================  =========================================  =======================
kind                  the value at run time                      shape
====================  =========================================  =======================
``Kind.ENCODED``      ``bytes`` of a file                        ``(bytes,)``
``Kind.IMAGE``        ``PIL.Image.Image``, in mode RGB or L      ``(height, width, channels)``
                      unless the spec names another
``Kind.TENSOR``       C-contiguous ``numpy.ndarray``; after a    ``(channels, height, width)``
                      trainer-only step a ``torch.Tensor``
``Kind.AUDIO``        `Signal`: sound                            ``(channels, samples)``
``Kind.VOLUME``       `Signal`: a volume                         ``(channels, depth, height, width)``
``Kind.VIEWS``        `ViewSet`: several values of one sample    ``(views,)``
``Kind.OBJECT``       whatever a trainer-only callable returned  ``()``
====================  =========================================  =======================

A dimension that is not known yet is None. Pictures are normally in mode RGB or L, depending on the number of channels;
`mode` names any other mode (`MODES`). Few ops take pictures in other modes: see `Op.modes`. The spec of views has the
spec of each view in `views`, and as its dtype the container that users get (`arranged`). For a picture whose sample has
boxes, `objects` says where the boxes lie in it, for ops whose draws depend on boxes (`Op.looks`). For sound and
volumes, `scale` is the scale of each axis, in samples per second or mm, if it is known in advance.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from PIL import Image

from sophon.errors import ConfigError
from sophon.pipeline.part import Canvas, Part, Signal

Value: TypeAlias = Any
Shape: TypeAlias = tuple[int | None, ...]
Objects: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float64]]  # left, top, right and bottom of each object

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
"""Pillow modes that a picture may be decoded to: number of channels, and dtype of a channel."""

OTHER_MODES: Final = tuple(mode for mode in MODES if mode not in ("RGB", "L"))


class Kind(Enum):
    """The kinds of value that flow through a pipeline."""

    ENCODED = "encoded"
    IMAGE = "image"
    TENSOR = "tensor"
    AUDIO = "audio"
    VOLUME = "volume"
    VIEWS = "views"
    OBJECT = "object"


SIGNALS: Final = (Kind.AUDIO, Kind.VOLUME)
"""Kinds whose values are `Signal` objects."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Kind, shape and dtype of a value.

    For a picture, also its mode, if it is neither RGB nor L, and its objects, if known; for views, the spec of each
    view.
    """

    kind: Kind
    shape: Shape = ()
    dtype: str = "uint8"
    mode: str = ""
    views: tuple[Spec, ...] = ()
    objects: Objects | None = field(default=None, compare=False, repr=False)  # not part of a value's type
    scale: tuple[float, ...] = ()

    @property
    def height(self) -> int:
        """Height in pixels; only for images and tensors of known size."""
        return self.known(self.shape[0 if self.kind is Kind.IMAGE else 1])

    @property
    def width(self) -> int:
        """Width in pixels; only for images and tensors of known size."""
        return self.known(self.shape[1 if self.kind is Kind.IMAGE else 2])

    @property
    def channels(self) -> int | None:
        """Number of channels of an image or tensor."""
        return self.shape[2 if self.kind is Kind.IMAGE else 0]

    @property
    def sizes(self) -> Shape:
        """Size along each axis, without the channels."""
        return self.shape[:2] if self.kind is Kind.IMAGE else self.shape[1:]

    @property
    def size_bytes(self) -> int:
        """Size in bytes of a value of this spec; 0 if a dimension is unknown."""
        if self.kind is Kind.VIEWS:
            return sum(view.size_bytes for view in self.views) if self.is_sized else 0
        own = math.prod(d or 0 for d in self.shape) * np.dtype(self.dtype).itemsize
        return own + sum(view.size_bytes for view in self.views)

    @property
    def is_sized(self) -> bool:
        """Whether all dimensions are known, including those of all views."""
        return None not in self.shape and all(view.is_sized for view in self.views)

    def with_objects(self, objects: Objects | None) -> Spec:
        """Return the spec of a picture with these objects in it; give None if they are unknown."""
        return self if objects is self.objects else replace(self, objects=objects)

    def resized(self, sizes: Shape) -> Spec:
        """Return the spec of sound or a volume of a new size, including its label."""
        views = tuple(replace(view, shape=(view.shape[0], *sizes)) for view in self.views)
        return replace(self, shape=(self.shape[0], *sizes), views=views)

    def known(self, dimension: int | None) -> int:
        """Return a dimension.

        Raises:
            ConfigError: The dimension is not known yet.
        """
        if dimension is None:
            raise ConfigError(
                f"{self} has no size yet, so nothing can be drawn for it; an op with a result of unknown size must "
                "not come before a random op inside RandomApply"
            )
        return dimension

    def __str__(self) -> str:
        if self.kind is Kind.VIEWS:
            counts = Counter(map(str, self.views))
            return ", ".join(f"{count} × {view}" for view, count in counts.items())
        size = "×".join("?" if d is None else str(d) for d in self.shape)
        mode = f" in mode {self.mode}" if self.mode else ""
        return f"{self.kind.value}[{size}] {self.dtype}{mode}" if size else self.kind.value


@dataclass(frozen=True, slots=True)
class ViewSet:
    """The views of one sample on their way through a pipeline.

    Args:
        values: The value of each view.
        container: The container in which users get the views; see `arranged`.
    """

    values: tuple[Value, ...]
    container: str = "list"

    @property
    def nbytes(self) -> int:
        """Total bytes of all views; views of unknown size count as 0."""
        return sum(getattr(value, "nbytes", None) or spec_of(value).size_bytes for value in self.values)


ENCODED = Spec(Kind.ENCODED, (None,))
OBJECT = Spec(Kind.OBJECT, (), "object")


def image(height: int | None, width: int | None, channels: int | None, mode: str = "") -> Spec:
    """Return the spec of an image, in mode RGB or L unless another mode is named."""
    if mode in OTHER_MODES:
        return Spec(Kind.IMAGE, (height, width, MODES[mode][0]), MODES[mode][1], mode)
    return Spec(Kind.IMAGE, (height, width, channels))


def volume(
    channels: int | None, sizes: Shape, has_label: bool, spacing: tuple[float, ...] = (), dtype: str = "float32"
) -> Spec:
    """Return the spec of a volume; the spec of its label is among its views."""
    views = (Spec(Kind.TENSOR, (1, *sizes)),) if has_label else ()
    return Spec(Kind.VOLUME, (channels, *sizes), dtype, views=views, scale=spacing)


def _spec_of_signal(value: Signal) -> Spec:
    sizes = value.whole_sizes
    shape = (value.array.shape[0], *sizes)
    views = () if value.label is None else (Spec(Kind.TENSOR, (1, *sizes), value.label.dtype.name),)
    return Spec(Kind(value.kind), shape, value.array.dtype.name, "", views, value.objects, value.scale)


def spec_of(value: Value) -> Spec:  # noqa: PLR0911 - one line per kind
    """Return the spec of a value that exists."""
    if isinstance(value, Image.Image):
        return image(value.height, value.width, len(value.getbands()), value.mode)
    if isinstance(value, Canvas):  # an op treats it as the whole picture, like a part
        return spec_of(value.value)
    if isinstance(value, Part):
        return image(value.height, value.width, len(value.picture.getbands()), value.picture.mode)
    if isinstance(value, ViewSet):
        views = tuple(map(spec_of, value.values))
        return Spec(Kind.VIEWS, (len(views),), value.container, views=views)
    if isinstance(value, np.ndarray):
        return Spec(Kind.TENSOR, value.shape, value.dtype.name)
    if isinstance(value, Signal):
        return _spec_of_signal(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return Spec(Kind.ENCODED, (len(value),))
    torch: Any = sys.modules.get("torch")  # if torch is not loaded, there can be no tensor
    if torch is not None and isinstance(value, torch.Tensor):
        return Spec(Kind.TENSOR, tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return OBJECT


def seen(value: Signal) -> Value:
    """Return sound or a volume as users see it: an array, or image and label by name if there is a label.

    Raises:
        OpError: The value is only a part.
    """
    value.require_whole()
    return value.array if value.label is None else ViewSet((value.array, value.label), _WITH_LABEL)


# --- arrangements -----------------------------------------------------------------------------------------------------
# The container in which users get the views of a sample, as a string, so that a spec can hold it: "list", "tuple", or
# JSON for a nest of lists, tuples and dicts, such as DINOv2 returns. In the JSON a number stands for a view, […] for a
# list, {"tuple": […]} for a tuple and {"dict": [[name, …], …]} for a dict.

_PLAIN_ARRANGEMENTS: Final[dict[str, type]] = {"list": list, "tuple": tuple}
_WITH_LABEL: Final = '{"dict": [["image", 0], ["label", 1]]}'
_LONGEST_ARRANGEMENT: Final = 1 << 12
_DEEPEST_ARRANGEMENT: Final = 6
_ARRANGEMENT: Final = '"list", "tuple", or an arrangement of views'


def arranged(text: str, values: Sequence[Any]) -> Any:
    """Return views in the container that users get."""
    plain = _PLAIN_ARRANGEMENTS.get(text)
    return _filled(_read_arrangement(text), values) if plain is None else plain(values)


def arrangement(shape: Any, count: int) -> str:
    """Return an arrangement as a string.

    Args:
        shape: Lists, tuples and dicts with the numbers of views in them.
        count: Number of views.
    """
    if type(shape) in (list, tuple) and list(shape) == list(range(count)):
        return type(shape).__name__
    return json.dumps(_to_json(shape))


def checked_arrangement(where: str, text: Any, count: int) -> str:
    """Return an arrangement after checking it; it may come from the network.

    Raises:
        ConfigError: The text is not an arrangement of this many views.
    """
    if not isinstance(text, str) or len(text) > _LONGEST_ARRANGEMENT:
        raise ConfigError(f"{where}: expected {_ARRANGEMENT}, got {text!r:.80}")
    if text in _PLAIN_ARRANGEMENTS:
        return text
    try:
        used = set(_views_in(_read_arrangement(text)))
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ConfigError(f"{where}: expected {_ARRANGEMENT}, got {text!r:.80}") from error
    if used != set(range(count)):
        raise ConfigError(f"{where}: expected an arrangement of all {count} views, got {text!r:.80}")
    return text


def _to_json(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {"dict": [[name, _to_json(part)] for name, part in shape.items()]}
    if isinstance(shape, tuple):
        return {"tuple": list(map(_to_json, shape))}
    return list(map(_to_json, shape)) if isinstance(shape, list) else shape


@lru_cache(maxsize=64)
def _read_arrangement(text: str) -> Any:
    return _from_json(json.loads(text), _DEEPEST_ARRANGEMENT)


def _from_json(said: Any, depth: int) -> Any:
    if type(said) is int:
        return said
    if depth == 0:
        raise ValueError(said)
    if isinstance(said, list):
        return [_from_json(part, depth - 1) for part in said]
    if not isinstance(said, dict) or len(said) != 1:
        raise ValueError(said)
    ((kind, parts),) = said.items()
    if kind == "tuple":
        return tuple(_from_json(part, depth - 1) for part in parts)
    if kind != "dict" or not all(isinstance(name, str) for name, _ in parts):
        raise ValueError(said)
    return {name: _from_json(part, depth - 1) for name, part in parts}


def _views_in(shape: Any) -> Iterator[int]:
    if isinstance(shape, int):
        yield shape
        return
    for part in shape.values() if isinstance(shape, dict) else shape:
        yield from _views_in(part)


def _filled(shape: Any, values: Sequence[Any]) -> Any:
    if isinstance(shape, int):
        return values[shape]
    if isinstance(shape, dict):
        return {name: _filled(part, values) for name, part in shape.items()}
    return type(shape)(_filled(part, values) for part in shape)
