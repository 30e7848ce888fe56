"""flac: lossless compression of sound that was stored as integers, as most recordings are."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from sophon.codec import layout
from sophon.codec.codec import Codec, Payload
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Kind, Spec, Value
from sophon.pipeline.ops.audio import flac
from sophon.pipeline.ops.audio.sound import audio
from sophon.pipeline.part import Signal

_MOST_CHANNELS = 8
_MOST_RATE = 655_350
_SUBTYPES = {16: "PCM_16", 24: "PCM_24"}


class FlacCodec(Codec):
    """Encodes sound as a FLAC file with libsndfile.

    Byte layout: a FLAC file with 16 bits per sample if all samples are multiples of 2⁻¹⁵, otherwise with 24. Samples
    that are not multiples of 2⁻²³ either, such as those of resampled sound, are refused, and a smaller cut is made.
    """

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "flac"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""
        channels = spec.shape[0] if spec.kind is Kind.AUDIO else None
        return spec.kind is Kind.AUDIO and spec.dtype == "float32" and (channels or 1) <= _MOST_CHANNELS

    def encode(self, value: Signal) -> bytes:
        """Return the payload of a sound."""
        import soundfile

        value.require_whole()
        channels, count = value.array.shape
        rate = value.scale[0] if value.scale else 0.0
        if not 1 <= channels <= _MOST_CHANNELS or not count or not 1 <= rate <= _MOST_RATE or rate != int(rate):
            raise OpError(f"FLAC cannot hold sound with {channels} channels at {rate:g} samples per second.")
        bits, numbers = _integers(value.array)
        out = io.BytesIO()
        try:
            with soundfile.SoundFile(out, "w", int(rate), channels, _SUBTYPES[bits], format="FLAC") as file:
                file.write(np.ascontiguousarray(numbers.T))
        except soundfile.LibsndfileError as error:  # such as a sample rate that FLAC has no code for
            raise OpError(f"FLAC cannot hold this sound: {error}") from error
        return out.getvalue()

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the sound in a payload."""
        if not flac.is_flac(payload):
            raise PayloadError(f"expected a FLAC file, got {len(payload):,} bytes")
        try:
            header = flac.parse(payload)
            layout.check(audio((header.channels, header.samples)), spec)
            array = flac.decoded(payload, header)
        except OpError as error:
            raise PayloadError(f"the payload is damaged: {error}") from error
        return Signal(array, Kind.AUDIO.value, (float(header.rate),))


def _integers(array: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[int, np.ndarray[Any, Any]]:
    """Return the bit depth, and the samples as integers that libsndfile writes without change at that depth."""
    if not np.isfinite(array).all() or np.signbit(array[array == 0]).any():
        raise OpError("the sound has samples that no integer can represent.")
    for bits in (16, 24):
        scaled = array * np.float32(2.0 ** (bits - 1))
        most = np.float32(2.0 ** (bits - 1))
        if np.abs(scaled).max(initial=0) <= most and scaled.max(initial=0) < most and (scaled == np.rint(scaled)).all():
            return bits, scaled.astype(np.int16) if bits == 16 else scaled.astype(np.int32) << 8
    raise OpError("the sound has samples that FLAC would have to round.")
