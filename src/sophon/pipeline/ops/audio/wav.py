"""WAV files: where the samples lie, and which numbers they are.

Samples of 8, 16, 24 and 32 bits become float32 between -1 and 1, divided by 2 to the power of their bits less one:
exact up to 24 bits, above that rounded to the nearest. Those of 32-bit floats are what they are, those of 64 bits
rounded. That is what libsndfile does. RF64, big-endian RIFX and compressed samples are refused.
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
_GUID: Final = bytes.fromhex("000000001000800000aa00389b71")  # of a sub-format, after its number
_BITS: Final = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
REMEDY: Final = "Check that the file is complete and opens elsewhere, replace it, or leave it out."


@dataclass(frozen=True)
class Wav:
    """What a WAV file declares.

    Args:
        form: Its format chunk, as it is.
        is_float: Whether samples are floats.
        bits: Of a sample.
        channels: How many there are.
        rate: Samples per second.
        start: Where the samples begin in the file.
        samples: How many there are of each channel.
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
        """Bytes from one sample of all channels to the next."""
        return self.channels * self.bits // 8


def is_wav(data: bytes | memoryview) -> bool:
    """Return whether a file begins as WAV files do."""
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WAVE"


def parse(data: bytes | memoryview, file_bytes: int | None = None) -> Wav:
    """Return what a WAV file declares.

    Args:
        data: The file, or its beginning.
        file_bytes: Size of the file, where only its beginning is given.

    Raises:
        OpError: It is damaged, or something else than samples as they are.
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
                raise OpError(f"a WAV file with a format chunk of {length:,} bytes.", remedy=REMEDY)
            form = bytes(data[at : at + length])
        at += length + (length & 1)
    raise OpError("a WAV file without samples.", remedy=REMEDY)


def _with_samples(form: bytes, start: int, length: int, file_bytes: int) -> Wav:
    if len(form) < 16:
        raise OpError("a WAV file whose samples come before their format.", remedy=REMEDY)
    tag, channels, rate, _, step, bits = _FORMAT.unpack_from(form)
    if tag == _EXTENSIBLE and len(form) >= 40 and form[26:40] == _GUID:
        tag = int.from_bytes(form[24:26], "little")
    if bits not in _BITS.get(tag, ()):
        raise OpError(f"a WAV file of format {tag:#x} with {bits} bits.", remedy="Save it as PCM, or as FLAC.")
    if not 1 <= channels <= MOST_CHANNELS or not 1 <= rate <= MOST_RATE or step * 8 != channels * bits:
        raise OpError(
            f"a WAV file that declares {channels} channels, {rate:,} samples per second and {step} bytes a sample.",
            remedy=REMEDY,
        )
    there = file_bytes - start
    if length == _TO_THE_END:
        length = there
    if length > there:
        raise OpError(
            f"a WAV file that was cut off: {length:,} bytes of samples declared, {there:,} there.", remedy=REMEDY
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
    """Return the format of integers, for files that are to be written."""
    step = channels * bits // 8
    form = _FORMAT.pack(_PCM, channels, rate, rate * step, step, bits)
    return Wav(form, False, bits, channels, rate, 0, 0)


def written(wav: Wav, samples: bytes | memoryview) -> bytes:
    """Return a WAV file of these samples, in the format of another one."""
    form = wav.form + b"\0" * (len(wav.form) & 1)
    head = b"WAVE" + _CHUNK.pack(b"fmt ", len(wav.form)) + form + _CHUNK.pack(b"data", len(samples))
    pad = b"\0" * (len(samples) & 1)
    return b"".join((_CHUNK.pack(b"RIFF", len(head) + len(samples) + len(pad)), head, samples, pad))
