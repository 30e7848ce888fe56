"""Headers of FLAC files. libsndfile decodes the files, through the package soundfile (extra `audio`)."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sophon.errors import OpError
from sophon.pipeline.ops.audio.sound import MOST_RATE, Waveform
from sophon.pipeline.ops.audio.wav import REMEDY

_MAGIC: Final = b"fLaC"
_STREAMINFO_BYTES: Final = 34
_MOST_BLOCKS: Final = 1024
_LARGEST_BLOCK: Final = 65_535  # samples of a frame
_LEAST_FRAME: Final = 9  # bytes


@dataclass(frozen=True)
class Flac:
    """Contents of the first block of a FLAC file.

    Args:
        info: The raw block.
        channels: Number of channels.
        rate: Samples per second.
        bits: Bits per sample.
        samples: Number of samples per channel.
        start: Offset of the first frame in the file.
    """

    info: bytes
    channels: int
    rate: int
    bits: int
    samples: int
    start: int


def available() -> bool:
    """Return whether FLAC files can be decoded here."""
    return _soundfile() is not None


def is_flac(data: bytes | memoryview) -> bool:
    """Return whether a file begins like a FLAC file."""
    return bytes(data[:4]) == _MAGIC


def parse(data: bytes | memoryview) -> Flac:
    """Parse the header of a FLAC file.

    Raises:
        OpError: The file is damaged, or does not say how many samples it has.
    """
    at, info = 4, b""
    for number in range(_MOST_BLOCKS):
        if at + 4 > len(data):
            break
        kind, length = data[at] & 0x7F, int.from_bytes(data[at + 1 : at + 4], "big")
        is_last = bool(data[at] & 0x80)
        at += 4
        if at + length > len(data):
            break
        if (number == 0) != (kind == 0) or (kind == 0 and length != _STREAMINFO_BYTES):
            raise OpError("the FLAC file does not begin with a STREAMINFO block.", remedy=REMEDY)
        if kind == 0:
            info = bytes(data[at : at + length])
        at += length
        if is_last:
            return _declared(info, at, len(data))
    raise OpError("the header of the FLAC file is cut off.", remedy=REMEDY)


def _declared(info: bytes, start: int, file_bytes: int) -> Flac:
    packed = int.from_bytes(info[10:18], "big")
    rate, channels, bits, samples = (
        packed >> 44,
        (packed >> 41 & 7) + 1,
        (packed >> 36 & 31) + 1,
        packed & (1 << 36) - 1,
    )
    if not 1 <= rate <= MOST_RATE or not 4 <= bits <= 24:
        raise OpError(f"the FLAC file declares {bits} bits at {rate:,} samples per second.", remedy=REMEDY)
    if samples == 0:
        raise OpError(
            "the FLAC file does not say how many samples it has.",
            remedy="It was written to a pipe; encode it again to a file.",
        )
    if samples > (file_bytes - start) // _LEAST_FRAME * _LARGEST_BLOCK:
        raise OpError(f"the FLAC file declares {samples:,} samples in only {file_bytes:,} bytes.", remedy=REMEDY)
    return Flac(info, channels, rate, bits, samples, start)


def decoded(data: bytes | memoryview, flac: Flac) -> Waveform:
    """Return all samples, (channels, samples); float32 between -1 and 1, exact.

    Raises:
        OpError: The file is damaged, or nothing here can decode it.
    """
    soundfile = _soundfile()
    if soundfile is None:
        raise OpError("decoding a FLAC file needs the package soundfile.", remedy="pip install 'sophon-loader[audio]'")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format != "FLAC" or file.channels != flac.channels:
                raise OpError("the FLAC file does not match its header.", remedy=REMEDY)
            found = file.read(flac.samples, "float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise OpError(f"the FLAC file is damaged: {error}", remedy=REMEDY) from error
    if len(found) != flac.samples:
        raise OpError(f"the FLAC file declares {flac.samples:,} samples but has {len(found):,}.", remedy=REMEDY)
    return np.ascontiguousarray(found.T)


def _soundfile() -> Any:
    # Imported here because it loads a native library, which is not needed without sound.
    try:
        import soundfile
    except (ImportError, OSError):
        return None
    return soundfile
