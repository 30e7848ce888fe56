"""WAV files: where the samples are, and how to convert them to numbers.

Samples of 8, 16, 24 and 32 bits become float32 between -1 and 1, divided by 2 to the power of their bits minus one:
exact up to 24 bits, and rounded to nearest above that. 32-bit floats are unchanged and 64-bit floats are rounded, as in
libsndfile. RF64, big-endian RIFX and compressed samples are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from sophon.errors import OpError
from sophon.pipeline.ops.audio.sound import MOST_CHANNELS, MOST_RATE, Waveform

_CHUNK: Final = struct.Struct("<4sI")
_FORMAT: Final = struct.Struct("<HHIIHH")
_MOST_CHUNKS: Final = 1024
_TO_THE_END: Final = 0xFFFFFFFF  # of a file that was written to a pipe
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID: Final = bytes.fromhex("000000001000800000aa00389b71")  # rest of a sub-format, after its number
_BITS: Final = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
REMEDY: Final = "Check that the file is complete and opens elsewhere, replace it, or leave it out."


@dataclass(frozen=True)
class Wav:
    """The header of a WAV file.

    Args:
        form: The raw format chunk.
        is_float: Whether samples are floats.
        bits: Bits per sample.
        channels: Number of channels.
        rate: Samples per second.
        start: Offset of the first sample in the file.
        samples: Number of samples per channel.
    """

    form: bytes
    is_float: bool
    bits: int
    channels: int
    rate: int
    start: int
    samples: int

    @property
    def step(self) -> int:
        """Bytes per sample, over all channels."""
        return self.channels * self.bits // 8


def is_wav(data: bytes | memoryview) -> bool:
    """Return whether a file begins like a WAV file."""
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WAVE"


def parse(data: bytes | memoryview, file_bytes: int | None = None) -> Wav:
    """Parse the header of a WAV file.

    Args:
        data: The file, or its beginning.
        file_bytes: Size of the file, if only its beginning is given.

    Raises:
        OpError: The file is damaged, or its samples are compressed.
    """
    size = len(data) if file_bytes is None else file_bytes
    at, form = 12, b""
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(data):
            break
        name, length = _CHUNK.unpack_from(data, at)
        at += 8
        if name == b"data":
            return _with_samples(form, at, length, size)
        if name == b"fmt ":
            if not 16 <= length <= 64 or at + length > len(data):
                raise OpError(f"the WAV file has a format chunk of {length:,} bytes.", remedy=REMEDY)
            form = bytes(data[at : at + length])
        at += length + (length & 1)
    raise OpError("the WAV file has no samples.", remedy=REMEDY)


def _with_samples(form: bytes, start: int, length: int, file_bytes: int) -> Wav:
    if len(form) < 16:
        raise OpError("the WAV file has samples before their format.", remedy=REMEDY)
    tag, channels, rate, _, step, bits = _FORMAT.unpack_from(form)
    if tag == _EXTENSIBLE and len(form) >= 40 and form[26:40] == _GUID:
        tag = int.from_bytes(form[24:26], "little")
    if bits not in _BITS.get(tag, ()):
        raise OpError(f"the WAV file has format {tag:#x} with {bits} bits.", remedy="Save it as PCM, or as FLAC.")
    if not 1 <= channels <= MOST_CHANNELS or not 1 <= rate <= MOST_RATE or step * 8 != channels * bits:
        raise OpError(
            f"the WAV file declares {channels} channels, {rate:,} samples per second and {step} bytes per sample.",
            remedy=REMEDY,
        )
    there = file_bytes - start
    if length == _TO_THE_END:
        length = there
    if length > there:
        raise OpError(
            f"the WAV file is cut off: it declares {length:,} bytes of samples and has {there:,}.", remedy=REMEDY
        )
    return Wav(form, tag == _FLOAT, bits, channels, rate, start, length // step)


def decoded(data: bytes | memoryview, wav: Wav, first: int = 0, count: int | None = None) -> Waveform:
    """Return samples as numbers, (channels, samples)."""
    count = wav.samples - first if count is None else count
    piece = memoryview(data)[wav.start + first * wav.step : wav.start + (first + count) * wav.step]
    flat = _numbers(piece, wav)
    return np.ascontiguousarray(flat.reshape(count, wav.channels).T)


def _numbers(piece: memoryview, wav: Wav) -> Waveform:
    if wav.is_float:
        with np.errstate(over="ignore", invalid="ignore"):  # a number too large for float32 becomes infinite
            return np.frombuffer(piece, f"<f{wav.bits // 8}").astype(np.float32)
    if wav.bits == 8:
        return (np.frombuffer(piece, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(2.0**-7)
    if wav.bits == 24:
        wide = np.zeros((len(piece) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(piece, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0].astype(np.float32) * np.float32(2.0**-31)
    return np.frombuffer(piece, f"<i{wav.bits // 8}").astype(np.float32) * np.float32(2.0 ** (1 - wav.bits))


def form_of(channels: int, rate: int, bits: int) -> Wav:
    """Return the format chunk for integer samples."""
    step = channels * bits // 8
    form = _FORMAT.pack(_PCM, channels, rate, rate * step, step, bits)
    return Wav(form, False, bits, channels, rate, 0, 0)


def written(wav: Wav, samples: bytes | memoryview) -> bytes:
    """Return a WAV file with these samples, in a given format."""
    form = wav.form + b"\0" * (len(wav.form) & 1)
    head = b"WAVE" + _CHUNK.pack(b"fmt ", len(wav.form)) + form + _CHUNK.pack(b"data", len(samples))
    pad = b"\0" * (len(samples) & 1)
    return b"".join((_CHUNK.pack(b"RIFF", len(head) + len(samples) + len(pad)), head, samples, pad))
