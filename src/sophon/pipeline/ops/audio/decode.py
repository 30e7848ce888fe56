"""DecodeAudio: from the bytes of a WAV or FLAC file to samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Decoder, Params
from sophon.pipeline.ops.audio import flac, wav
from sophon.pipeline.ops.audio.flac import Flac
from sophon.pipeline.ops.audio.sound import MOST_CHANNELS, MOST_RATE, MOST_SAMPLES, Waveform, audio, sound
from sophon.pipeline.ops.audio.wav import Wav
from sophon.pipeline.part import Signal
from sophon.pipeline.spec import Spec


@dataclass(frozen=True)
class DecodeAudio(Decoder):
    """Decode a WAV or FLAC file to float32 between -1 and 1, (channels, samples), as ``soundfile.read`` does.

    Integers of up to 24 bits become floats without rounding. WAV files need no library; FLAC files need soundfile, the
    extra ``audio``.

    Args:
        rate: Required samples per second; other files are refused. By default, any rate is accepted.
        channels: Required number of channels; other files are refused. By default, any number is accepted, but batches
            need the same number everywhere: see `Mono`.
        max_samples: A file that declares more samples over all channels is refused before anything is decoded.
    """

    rate: int | None = None
    channels: int | None = None
    max_samples: int = MOST_SAMPLES
    data: ClassVar[str] = "audio"

    def __post_init__(self) -> None:
        rate = None if self.rate is None else checks.integer(self._where("rate"), self.rate, 1, MOST_RATE)
        channels = self.channels
        if channels is not None:
            channels = checks.integer(self._where("channels"), channels, 1, MOST_CHANNELS)
        most = checks.integer(self._where("max_samples"), self.max_samples, 1, 1 << 36)
        self._set(rate=rate, channels=channels, max_samples=most)

    def output(self, spec: Spec) -> Spec:
        """Return the spec of sound of unknown length."""
        self._check_kind(spec)
        return audio((self.channels, None), () if self.rate is None else (float(self.rate),))

    def sized(self, sizes: Sequence[int]) -> Spec:
        """Return the spec of sound of this length; with one channel and no known rate unless the op requires them."""
        return audio((self.channels or 1, *sizes), () if self.rate is None else (float(self.rate),))

    def within(self, most: int) -> DecodeAudio:
        """Return this op with its limit on the number of samples lowered."""
        return self if self.max_samples <= most else replace(self, max_samples=most)

    def specimen(self) -> bytes:
        """Return two thirds of a second of noise that grows louder, as a 16-bit WAV file."""
        return _specimen(self.rate or 44_100, self.channels or 2)

    def apply(self, value: bytes, params: Params = None) -> Signal:  # noqa: ARG002 - part of the contract
        """Return all samples of a file."""
        header = self.header(value)
        return self.decoded(value, header)

    def decoded(self, value: bytes | memoryview, header: Wav | Flac) -> Signal:
        """Return all samples of a file whose header has been read."""
        found: Waveform = wav.decoded(value, header) if isinstance(header, Wav) else flac.decoded(value, header)
        return sound(found, header.rate)

    def header(self, value: bytes | memoryview, file_bytes: int | None = None) -> Wav | Flac:
        """Return the header of a file, or raise if this op does not accept it.

        Args:
            value: The file, or the beginning of a WAV file.
            file_bytes: Size of the file, if only its beginning is given.
        """
        if wav.is_wav(value):
            header: Wav | Flac = wav.parse(value, file_bytes)
        elif flac.is_flac(value):
            header = flac.parse(value)
        else:
            start = bytes(value[:12]).hex(" ")
            raise OpError(
                f"the file is neither WAV nor FLAC: {len(value):,} bytes that start with {start or 'nothing'}.",
                remedy=wav.REMEDY,
            )
        if header.samples == 0:
            raise OpError("the file has no samples.", remedy=wav.REMEDY)
        if header.samples * header.channels > self.max_samples:
            raise OpError(
                f"the file declares {header.samples:,} samples × {header.channels} channels, which exceeds the limit "
                f"of {self.max_samples:,} values.",
                remedy="Raise DecodeAudio(max_samples=…) if you trust the file.",
            )
        if self.rate not in (None, header.rate):
            raise OpError(
                f"the file has {header.rate:,} samples per second, expected {self.rate:,}.",
                remedy="Omit DecodeAudio(rate=…) and add Resample(rate).",
            )
        if self.channels not in (None, header.channels):
            raise OpError(
                f"the file has {header.channels} channels, expected {self.channels}.",
                remedy="Omit DecodeAudio(channels=…) and mix the channels with Mono().",
            )
        return header


def spec_of_file(header: Wav | Flac) -> Spec:
    """Return the spec of the sound in a file."""
    return audio((header.channels, header.samples), (float(header.rate),))


@cache
def _specimen(rate: int, channels: int) -> bytes:
    count = min(rate * 2 // 3 + 1, 1 << 18) * channels
    # A linear congruential generator gives the same numbers on every machine.
    words: np.ndarray[Any, np.dtype[np.uint64]] = np.cumprod(
        np.full(count, 6364136223846793005, np.uint64)
    ) + np.arange(count, dtype=np.uint64)  # type: ignore[assignment]
    noise = (words >> np.uint64(48)).astype(np.int64) - (1 << 15)
    swelling = noise * (np.arange(count) % 10_007) // 10_007
    return wav.written(wav.form_of(channels, rate, 16), swelling.astype("<i2").tobytes())
