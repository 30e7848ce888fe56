"""Payloads of samples with several values: one payload per value, all in one bundle.

Byte layout: a bundle (`bundle`) with the payload of each view in turn; a single view is just its payload. For a volume
with a label: the payload of the image, that of the label, and the rows that random draws may depend on
(`Spec.objects`), seven float64 per row, or no bytes if there are no rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sophon.bundle import pack, unpack
from sophon.codec.codec import Codec, Payload
from sophon.errors import PayloadError
from sophon.pipeline import Kind, Spec, Value
from sophon.pipeline.part import Signal
from sophon.pipeline.spec import ViewSet

_ROW = 7  # of a box of the foreground: class, starts, stops
_MOST_ROWS = 1 << 12


def fits(codec: Codec, spec: Spec) -> bool:
    """Return whether values of this spec, or all of its views, can be encoded."""
    if spec.kind is Kind.VOLUME and spec.views:
        return codec.fits(replace(spec, views=())) and codec.fits(spec.views[0])
    return all(map(codec.fits, spec.views)) if spec.kind is Kind.VIEWS else codec.fits(spec)


def encode(codec: Codec, value: Value) -> bytes:
    """Return the payload of a value, or of all views of a sample."""
    if isinstance(value, Signal) and value.label is not None:
        value.require_whole()
        rows = b"" if value.objects is None else np.ascontiguousarray(value.objects, "<f8").tobytes()
        image = replace(value, label=None, objects=None)
        return pack([codec.encode(image), codec.encode(value.label), rows])
    return pack([codec.encode(view) for view in value.values]) if isinstance(value, ViewSet) else codec.encode(value)


def decode(codec: Codec, payload: Payload, spec: Spec) -> Value:
    """Return the value in a payload, or all its views, each of which must match its spec."""
    if spec.kind is Kind.VOLUME and spec.views:
        return _volume(codec, payload, spec)
    if spec.kind is not Kind.VIEWS:
        return codec.decode(payload, spec)
    parts = unpack(payload, len(spec.views))
    views = (codec.decode(part, view) for part, view in zip(parts, spec.views, strict=True))
    return ViewSet(tuple(views), spec.dtype)


def _volume(codec: Codec, payload: Payload, spec: Spec) -> Signal:
    image, label, rows = unpack(payload, 3)
    signal: Signal = codec.decode(image, replace(spec, views=()))
    array = codec.decode(label, spec.views[0])
    if array.shape[1:] != signal.array.shape[1:]:
        raise PayloadError(f"the label has {array.shape[1:]} voxels, but its image has {signal.array.shape[1:]}")
    if len(rows) % (8 * _ROW) or len(rows) > 8 * _ROW * _MOST_ROWS:
        raise PayloadError(f"expected foreground boxes, got {len(rows)} bytes")
    objects = np.frombuffer(rows, "<f8").reshape(-1, _ROW).astype(np.float64) if len(rows) else None
    if objects is not None and not np.isfinite(objects).all():
        raise PayloadError("the foreground boxes are not finite")
    return replace(signal, label=array, objects=objects)
