"""The contract of a codec: how one value becomes the bytes of a payload and back.

If a codec is inconsistent with the following, it is a bug:

- `decode(encode(value), spec)` is the value, to the last bit, where `exact` is True.
- `decode` gets bytes from the network. It checks them against the spec that the pipeline declares at the cut, bounds
  every length before it allocates, and raises `PayloadError` for whatever does not fit; nothing else, and never a hang.
- `encode` is a pure function; the same value gives the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

from sophon.pipeline import Spec, Value

Payload: TypeAlias = bytes | memoryview

MAX_VALUE_BYTES = 1 << 30  # of one decoded value; a picture of the largest legal size has half of this


class Codec(ABC):
    """One way to encode what crosses the link."""

    exact: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in cuts, plans and requests."""

    @abstractmethod
    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""

    @abstractmethod
    def encode(self, value: Value) -> bytes:
        """Return the payload of a value."""

    @abstractmethod
    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the value of a payload, which must be of the given spec."""
