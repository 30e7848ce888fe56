"""The contract of a codec, which turns a value into the bytes of a payload and back.

A codec that breaks any of these rules has a bug:

- `decode(encode(value), spec)` is the value, to the last bit, where `exact` is True.
- `decode` gets bytes from the network. It checks them against the spec that the pipeline declares at the cut, bounds
  every length before it allocates, and raises `PayloadError` for anything that does not fit. It raises nothing else,
  and never hangs.
- `encode` is a pure function; the same value gives the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

from sophon.errors import ConfigError
from sophon.pipeline import Key, Part, Pipeline, Spec, Trace, Value
from sophon.pipeline.part import Signal

Payload: TypeAlias = bytes | memoryview

MAX_VALUE_BYTES = 1 << 30  # one decoded value; twice the size of the largest legal picture


class Codec(ABC):
    """One way to encode the values that cross the link."""

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
        """Return the value in a payload, which must match the given spec."""


class AheadCodec(Codec):
    """A codec that looks ahead: it encodes only the part of a file that the ops after the decoder need.

    It works at the start of a pipeline (k is 0), and decodes to what the pipeline's decoder would give, as a `Part` or
    a `Signal`.
    """

    @abstractmethod
    def looks_ahead(self, pipeline: Pipeline) -> bool:
        """Return whether the ops of a pipeline need only part of a file."""

    @abstractmethod
    def encode_ahead(self, data: Payload, pipeline: Pipeline, key: Key, trace: Trace | None = None) -> bytes:
        """Return the payload for one pass of a sample; raise `OpError` if the same bits cannot be guaranteed.

        The size of the whole value is reported to the trace.
        """

    @abstractmethod
    def decode_ahead(self, payload: Payload, pipeline: Pipeline) -> Part | Signal:
        """Return the part of the picture (or other value) that a payload holds."""

    def cut_down(
        self, data: Payload, pipeline: Pipeline, key: Key, stop: int | None = None, trace: Trace | None = None
    ) -> Part | Signal | None:
        """Decode only the part of a file that ops[:stop] need in one pass; None if impossible or not worthwhile.

        Errors in the file are left for the decoder to report. The trace records whether part of the file can be decoded
        on its own.
        """
        del data, pipeline, key, stop, trace
        return None

    def encode(self, value: Value) -> bytes:  # noqa: ARG002 - part of the contract
        """Raise an error: without knowing the ops that follow, nothing can be left out."""
        raise ConfigError(f"{self.name} needs the pipeline and the key; use make_payload")

    def decode(self, payload: Payload, spec: Spec) -> Value:  # noqa: ARG002 - part of the contract
        """Raise an error, as `encode` does."""
        raise ConfigError(f"{self.name} needs the pipeline; use finish_payload")
