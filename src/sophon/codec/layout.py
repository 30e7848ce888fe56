"""The header that `raw` and `zstd` put before the bytes of an array, and how it is checked.

Byte layout, little-endian::

    0        kind      0 encoded, 1 image, 2 tensor
    1        dtype     0 uint8, 1 float32
    2        n         number of dimensions, 1 … 4
    3        zero
    4        shape     n × uint32: (bytes,), (height, width, channels) or (channels, height, width)
    4 + 4n   data      row-major
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from PIL import Image

from sophon.codec.codec import MAX_VALUE_BYTES, Payload
from sophon.errors import ConfigError, PayloadError
from sophon.pipeline import Kind, Spec, Value, spec_of

_KINDS = (Kind.ENCODED, Kind.IMAGE, Kind.TENSOR)
_DTYPES = ("uint8", "float32")
_MAX_DIMENSIONS = 4

Array = np.ndarray[Any, np.dtype[Any]]


def can_hold(spec: Spec) -> bool:
    """Return whether a value of this spec has a layout."""
    return spec.kind in _KINDS and spec.dtype in _DTYPES


def split(value: Value) -> tuple[bytes, Payload]:
    """Return the header and the data of a value."""
    spec = spec_of(value)
    if not can_hold(spec):
        raise ConfigError(f"a value of {spec} has no byte layout; cut the pipeline before the step that makes it")
    header = struct.pack(
        f"<BBBB{len(spec.shape)}I",
        _KINDS.index(spec.kind),
        _DTYPES.index(spec.dtype),
        len(spec.shape),
        0,
        *spec.shape,
    )
    if isinstance(value, Image.Image):
        return header, value.tobytes()
    if isinstance(value, np.ndarray):
        return header, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return header, value


def parse(payload: Payload, expected: Spec) -> tuple[Spec, memoryview]:
    """Return the spec that a payload's header declares, checked against the expected one, and what follows it."""
    view = memoryview(payload)
    if len(view) < 4:
        raise PayloadError(f"expected a header of at least 4 bytes, got {len(view)}")
    kind, dtype, n, zero = view[:4]
    if kind >= len(_KINDS) or dtype >= len(_DTYPES) or not 1 <= n <= _MAX_DIMENSIONS or zero or len(view) < 4 + 4 * n:
        raise PayloadError(f"not the header of an array: {bytes(view[:8]).hex(' ')}")
    shape = struct.unpack_from(f"<{n}I", view, 4)
    spec = Spec(_KINDS[kind], shape, _DTYPES[dtype])
    check(spec, expected)
    return spec, view[4 + 4 * n :]


def check(found: Spec, expected: Spec) -> None:
    """Raise unless a payload holds what the pipeline gives at the cut, and no more than fits."""
    same = (found.kind, found.dtype, len(found.shape)) == (expected.kind, expected.dtype, len(expected.shape))
    if not same or any(e not in (None, f) for f, e in zip(found.shape, expected.shape, strict=True)):
        raise PayloadError(f"expected {expected}, got {found}; do both sides run the same pipeline?")
    if value_bytes(found) > MAX_VALUE_BYTES:
        raise PayloadError(f"expected at most {MAX_VALUE_BYTES:,} bytes, got a header that declares {found}")


def value_bytes(spec: Spec) -> int:
    """Return the size of a value whose shape is known."""
    return math.prod(d or 0 for d in spec.shape) * (4 if spec.dtype == "float32" else 1)


def join(spec: Spec, data: Payload) -> Value:
    """Return the value that a checked spec and its data make; arrays are views of the data."""
    if len(data) != value_bytes(spec):
        raise PayloadError(f"expected {value_bytes(spec):,} bytes of data for {spec}, got {len(data):,}")
    if spec.kind is Kind.ENCODED:
        return bytes(data)
    if spec.kind is Kind.TENSOR:
        shape = tuple(d or 0 for d in spec.shape)
        return np.frombuffer(data, spec.dtype).reshape(shape)
    mode = {1: "L", 3: "RGB"}.get(spec.channels or 0)
    if mode is None or not spec.width or not spec.height:
        raise PayloadError(f"expected a picture of 1 or 3 channels, got {spec}")
    return Image.frombytes(mode, (spec.width, spec.height), data)


def bare(picture: Image.Image) -> Image.Image:
    """Return a picture that has the pixels of another and nothing else of it.

    It has neither its metadata nor its class: Pillow gives a picture from a file the class of that file format, and
    some transforms look at the class.
    """
    plain = picture._new(picture.im)
    plain.info = {}
    return plain
