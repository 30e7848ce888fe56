"""Sounds for tests: made from nothing, in every format, and damaged."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile

RATE = 8_000
FORMS = {
    "wav 8": ("WAV", "PCM_U8"),
    "wav 16": ("WAV", "PCM_16"),
    "wav 24": ("WAV", "PCM_24"),
    "wav 32": ("WAV", "PCM_32"),
    "wav float": ("WAV", "FLOAT"),
    "wav double": ("WAV", "DOUBLE"),
    "wav extensible": ("WAVEX", "PCM_16"),
    "flac 8": ("FLAC", "PCM_S8"),
    "flac 16": ("FLAC", "PCM_16"),
    "flac 24": ("FLAC", "PCM_24"),
}


def tone(samples: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Return a tone with noise, (samples, channels), never louder than 1."""
    rng = np.random.default_rng(seed)
    at = np.arange(samples)[:, None]
    pitch = rng.uniform(0.01, 0.5, channels)
    return 0.6 * np.sin(at * pitch) + 0.3 * rng.uniform(-1, 1, (samples, channels))


def sound_file(
    form: str = "wav 16", samples: int = 12_000, channels: int = 1, seed: int = 0, rate: int = RATE
) -> bytes:
    """Return a file, written by libsndfile."""
    container, subtype = FORMS[form]
    out = io.BytesIO()
    soundfile.write(out, tone(samples, channels, seed), rate, subtype, format=container)
    return out.getvalue()


def read_by_soundfile(data: bytes) -> np.ndarray:
    """Return what libsndfile reads, (channels, samples)."""
    found, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return np.ascontiguousarray(found.T)


def make_sounds(folder: Path, count: int = 9, classes: int = 3, ending: str = "wav", samples: int = 12_000) -> Path:
    """Write a folder of sounds in class folders, of different lengths."""
    for i in range(count):
        home = folder / f"class_{i % classes}"
        home.mkdir(parents=True, exist_ok=True)
        data = sound_file(f"{ending} 16", samples + 311 * (i % 4), 1, i)
        (home / f"{i:03d}.{ending}").write_bytes(data)
    return folder


# --- FLAC of variable block size, which no common encoder writes ------------------------------------------------------


def crc(data: bytes, bits: int, polynomial: int) -> int:
    """Return a CRC bit by bit, as the standard describes it."""
    value = 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value >> (bits - 1) & 1 else 0)) & ((1 << bits) - 1)
    return value


def as_variable(data: bytes, starts: list[int], blocks: list[int]) -> bytes:
    """Return a FLAC file whose frames count samples instead of frames."""
    head, frames, at = bytearray(data[: starts[0]]), [], 0
    head[8:10] = (16).to_bytes(2, "big")  # of blocks, the least
    for start, end, block in zip(starts, starts[1:], blocks, strict=False):
        frame = data[start:end]
        old = len(bytes([frame[4]]).decode("latin1")) if frame[4] < 0x80 else 2 if frame[4] < 0xE0 else 3
        more = {6: 1, 7: 2}.get(frame[2] >> 4, 0) + {12: 1, 13: 2, 14: 2}.get(frame[2] & 15, 0)
        header = bytes([0xFF, 0xF9, frame[2], frame[3]]) + _as_utf8(at) + frame[4 + old : 4 + old + more]
        body = header + bytes([crc(header, 8, 0x07)]) + frame[4 + old + more + 1 : -2]
        frames.append(body + crc(body, 16, 0x8005).to_bytes(2, "big"))
        at += block
    return bytes(head) + b"".join(frames)


def _as_utf8(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass") if number < 0x110000 else b""
