"""zstd: general compression, for values that no picture codec can encode."""

from __future__ import annotations

from typing import Any

import numpy as np

from sophon.codec import layout
from sophon.codec.codec import Codec, Payload
from sophon.errors import PayloadError
from sophon.pipeline import Spec, Value, spec_of

_LEVEL = 3  # zstd's own default; on 224×224 crops level 9 saves 1 % more for four times the CPU
_PROBE_BYTES = 1 << 14


class Zstd(Codec):
    """A value compressed with Zstandard.

    Byte layout: the header of `layout`, then one byte and one zstd frame. If the byte is 1, the frame contains shuffled
    float32 data: all first bytes, then all second bytes, and so on. That helps for measured signals, whose exponents
    repeat while their mantissas do not. Floats that used to be 8-bit pixels repeat as a whole, and shuffling makes them
    larger (from 192 KB to 382 KB for a normalised 224×224 crop), so the encoder tries both ways on a piece from the
    middle.
    """

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "zstd"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""
        return layout.can_hold(spec)

    def encode(self, value: Value) -> bytes:
        """Return the payload of a value."""
        header, data = layout.split(value)
        zstd = _codec()
        shuffled = spec_of(value).dtype == "float32" and _shuffling_helps(memoryview(data), zstd)
        if shuffled:
            data = _shuffle(data)
        compressed: bytes = zstd.compress(data, asbytes=True)
        return b"".join((header, bytes([shuffled]), compressed))

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the value in a payload."""
        found, rest = layout.parse(payload, spec)
        size = layout.value_bytes(found)
        if len(rest) == 0 or rest[0] > 1 or (rest[0] == 1 and found.dtype != "float32"):
            raise PayloadError("expected a byte that says whether float32 data is shuffled")
        try:
            data = _codec().decompress(rest[1:], decompressed_size=size, asbytes=True)
        except (OSError, ValueError) as error:
            raise PayloadError(f"expected a zstd frame of {size:,} bytes: {error}") from error
        if rest[0] == 1 and len(data) == size:
            data = np.frombuffer(data, np.uint8).reshape(4, -1).T.tobytes()
        return layout.join(found, data)


def _shuffle(data: Payload) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(-1, 4).T.tobytes()


def _shuffling_helps(data: memoryview, zstd: Any) -> bool:
    middle = len(data) // 2 // 4 * 4
    piece = data[max(0, middle - _PROBE_BYTES // 2) : middle + _PROBE_BYTES // 2]
    return len(zstd.compress(_shuffle(piece))) < len(zstd.compress(piece))


def _codec() -> Any:
    # Imported here since pyarrow takes a tenth of a second, which `import sophon` should not cost.
    import pyarrow as pa

    return pa.Codec("zstd", compression_level=_LEVEL)
