"""The header that `raw` and `zstd` put before the bytes of an array, and how it is checked.

Byte layout, little-endian::

    0        kind      0 encoded, 1 image, 2 tensor, 3 audio, 4 volume
    1        dtype     0 uint8, 1 float32, 2 uint16, 3 int32, 4 int16
    2        n         number of dimensions, 1 … 4
    3        mode      for an image: 0 RGB or L, by channels; 1 P, 2 RGBA, 3 LA, 4 CMYK, 5 I;16, 6 I, 7 F; otherwise 0
    4        shape     n × uint32: (bytes,), (height, width, channels) or channels and axes
    4 + 4n   scale     only for audio and volumes: n - 1 × float64, one for each axis, 0 if unknown
    then     data      row-major; in mode P 1,027 bytes follow: channels per colour (3 or 4), number of colours - 1
                       as uint16, and the colours, padded with zeros
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from PIL import Image

from sophon.codec.codec import MAX_VALUE_BYTES, Payload
from sophon.errors import ConfigError, OpError, PayloadError
from sophon.pipeline import Kind, Spec, Value, spec_of
from sophon.pipeline.ops.pad import palette_of
from sophon.pipeline.part import Signal
from sophon.pipeline.spec import OTHER_MODES, SIGNALS

_KINDS = (Kind.ENCODED, Kind.IMAGE, Kind.TENSOR, *SIGNALS)
_DTYPES = ("uint8", "float32", "uint16", "int32", "int16")
_MODES = ("", *OTHER_MODES)  # the numbers are part of the format: tests/codec/test_modes.py pins them
_PALETTE = struct.Struct("<BH1024s")
_COLOURS = {3: "RGB", 4: "RGBA"}
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
        _MODES.index(spec.mode),
        *spec.shape,
    )
    if isinstance(value, Image.Image):
        return header, value.tobytes() + (_packed_palette(value) if spec.mode == "P" else b"")
    if isinstance(value, Signal):
        value.require_whole()
        axes = len(spec.shape) - 1
        header += struct.pack(f"<{axes}d", *(value.scale or (0.0,) * axes))
        value = value.array
    if isinstance(value, np.ndarray):
        return header, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return header, value


def parse(payload: Payload, expected: Spec) -> tuple[Spec, memoryview]:
    """Return the spec that a payload's header declares, checked against the expected one, and the data after it."""
    view = memoryview(payload)
    if len(view) < 4:
        raise PayloadError(f"expected a header of at least 4 bytes, got {len(view)}")
    kind, dtype, n, mode = view[:4]
    is_known = kind < len(_KINDS) and dtype < len(_DTYPES) and mode < (len(_MODES) if kind == 1 else 1)
    if not is_known or not 1 <= n <= _MAX_DIMENSIONS or len(view) < 4 + 4 * n:
        raise PayloadError(f"expected an array header, got {bytes(view[:8]).hex(' ')}")
    shape = struct.unpack_from(f"<{n}I", view, 4)
    after = 4 + 4 * n
    scale: tuple[float, ...] = ()
    if _KINDS[kind] in SIGNALS:
        if len(view) < after + 8 * (n - 1):
            raise PayloadError(f"the header has {len(view)} bytes, too few for {_KINDS[kind].value}")
        scale = struct.unpack_from(f"<{n - 1}d", view, after)
        after += 8 * (n - 1)
        if not all(0.0 <= step < math.inf for step in scale):
            raise PayloadError(f"expected a finite scale for each axis, got {scale}")
    spec = Spec(_KINDS[kind], shape, _DTYPES[dtype], _MODES[mode], scale=scale)
    check(spec, expected)
    return spec, view[after:]


def check(found: Spec, expected: Spec) -> None:
    """Raise unless a payload has the pipeline's spec at the cut and a size within bounds."""
    same = (found.kind, found.dtype, found.mode) == (expected.kind, expected.dtype, expected.mode)
    same = same and len(found.shape) == len(expected.shape)
    if not same or any(e not in (None, f) for f, e in zip(found.shape, expected.shape, strict=True)):
        raise PayloadError(f"expected {expected}, got {found}; do both sides run the same pipeline?")
    if value_bytes(found) > MAX_VALUE_BYTES:
        raise PayloadError(f"expected at most {MAX_VALUE_BYTES:,} bytes, got a header that declares {found}")


def value_bytes(spec: Spec) -> int:
    """Return the size of a value whose shape is known."""
    palette = _PALETTE.size if spec.mode == "P" else 0
    return math.prod(d or 0 for d in spec.shape) * np.dtype(spec.dtype).itemsize + palette


def join(spec: Spec, data: Payload) -> Value:
    """Return the value with a checked spec and this data; arrays are views of the data."""
    if len(data) != value_bytes(spec):
        raise PayloadError(f"expected {value_bytes(spec):,} bytes of data for {spec}, got {len(data):,}")
    if spec.kind is Kind.ENCODED:
        return bytes(data)
    if spec.kind is Kind.TENSOR or spec.kind in SIGNALS:
        shape = tuple(d or 0 for d in spec.shape)
        array = np.frombuffer(data, spec.dtype).reshape(shape)
        return (
            array if spec.kind is Kind.TENSOR else Signal(array, spec.kind.value, spec.scale if any(spec.scale) else ())
        )
    mode = spec.mode or {1: "L", 3: "RGB"}.get(spec.channels or 0)
    if mode is None or not spec.width or not spec.height:
        raise PayloadError(f"expected a picture with 1 or 3 channels, got {spec}")
    if mode == "P":
        return _with_palette(spec, memoryview(data))
    return Image.frombytes(mode, (spec.width, spec.height), data)


def _packed_palette(picture: Image.Image) -> bytes:
    colours, raw_mode = palette_of(picture)
    count = len(colours) // len(raw_mode)
    if raw_mode not in _COLOURS.values() or not 1 <= count <= 256:
        raise OpError(
            f"the picture has a palette of {count} colours in {raw_mode}.",
            remedy="Save the file in mode P with RGB colours.",
        )
    return _PALETTE.pack(len(raw_mode), count - 1, colours[: count * len(raw_mode)])


def _with_palette(spec: Spec, data: memoryview) -> Image.Image:
    channels, most, colours = _PALETTE.unpack(data[-_PALETTE.size :])
    if channels not in _COLOURS or most > 255:
        raise PayloadError(f"expected a palette of at most 256 colours, got {most + 1} with {channels} channels")
    picture = Image.frombytes("P", (spec.width, spec.height), data[: -_PALETTE.size])
    picture.putpalette(colours[: (most + 1) * channels], _COLOURS[channels])
    return picture


def bare(picture: Image.Image) -> Image.Image:
    """Return a plain picture with the same pixels.

    This drops the metadata and the class: Pillow gives a picture from a file the class of its file format, and some
    transforms check the class.
    """
    plain = picture._new(picture.im)
    plain.info = {}
    return plain
