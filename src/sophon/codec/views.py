"""Payloads of views: each view encoded by a codec, all in one bundle.

Byte layout: a bundle (`store.bundle`) with the payload of each view in turn; for a single view, just its payload.
"""

from __future__ import annotations

from sophon.codec.codec import Codec, Payload
from sophon.pipeline import Kind, Spec, Value
from sophon.pipeline.spec import ViewSet
from sophon.store.bundle import pack, unpack


def fits(codec: Codec, spec: Spec) -> bool:
    """Return whether values of this spec, or all views of it, can be encoded."""
    return all(map(codec.fits, spec.views)) if spec.kind is Kind.VIEWS else codec.fits(spec)


def encode(codec: Codec, value: Value) -> bytes:
    """Return the payload of a value, or of all views of a sample."""
    return pack([codec.encode(view) for view in value.values]) if isinstance(value, ViewSet) else codec.encode(value)


def decode(codec: Codec, payload: Payload, spec: Spec) -> Value:
    """Return the value of a payload, or all its views; each must have its spec."""
    if spec.kind is not Kind.VIEWS:
        return codec.decode(payload, spec)
    parts = unpack(payload, len(spec.views))
    views = (codec.decode(part, view) for part, view in zip(parts, spec.views, strict=True))
    return ViewSet(tuple(views), spec.dtype)
