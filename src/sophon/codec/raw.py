"""raw: bytes without compression."""

from __future__ import annotations

from sophon.codec import layout
from sophon.codec.codec import MAX_VALUE_BYTES, Codec, Payload
from sophon.errors import PayloadError
from sophon.pipeline import Kind, Spec, Value


class Raw(Codec):
    """A value without compression.

    Byte layout: the file itself for an encoded value; the header of `layout` and the data for an image or tensor.
    """

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "raw"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""
        return layout.can_hold(spec)

    def encode(self, value: Value) -> bytes:
        """Return the payload of a value."""
        if isinstance(value, bytes):
            return value
        header, data = layout.split(value)
        return bytes(data) if isinstance(value, bytearray | memoryview) else b"".join((header, data))

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the value in a payload."""
        if spec.kind is Kind.ENCODED:
            if len(payload) > MAX_VALUE_BYTES:
                raise PayloadError(f"expected a file of at most {MAX_VALUE_BYTES:,} bytes, got {len(payload):,}")
            return bytes(payload)
        return layout.join(*layout.parse(payload, spec))
