"""Sounds for benchmarks: a folder's WAV files, unchanged or as FLAC; synthetic ones if there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sophon.errors import ConfigError

_RATE = 44_100
_SECONDS = 5  # as in ESC-50
_COUNT = 24


def with_sounds(data: Path, into: Path, ending: str) -> Path:
    """Make a folder of sounds, and return it.

    Args:
        data: Folder of WAV files; if there are none below it, synthetic ones are made.
        into: Folder to make; WAV files are linked and not copied.
        ending: "wav", or "flac" for the same clips as FLAC.
    """
    into.mkdir(parents=True)
    clips = sorted(path for path in data.rglob("*") if path.suffix.lower() == ".wav")
    if not clips:
        (into.parent / f"{into.name}-made").mkdir()
        clips = [_made(into.parent / f"{into.name}-made", number) for number in range(_COUNT)]
    for number, clip in enumerate(clips):
        if ending == "wav":
            (into / f"{number:06d}.wav").symlink_to(clip.resolve())
        else:
            _as_flac(clip, into / f"{number:06d}.flac")
    return into


def _made(folder: Path, number: int) -> Path:
    """Write a clip: fading tones, noise, and then silence, as in many recordings."""
    from sophon.pipeline.ops.audio import wav

    rng = np.random.default_rng(number)
    count = _RATE * _SECONDS
    at = np.arange(count) / _RATE
    waves = sum(
        rng.uniform(0.05, 0.3) * np.exp(-at * rng.uniform(0.2, 2.0)) * np.sin(at * 2 * np.pi * rng.uniform(80, 6_000))
        for _ in range(6)
    )
    noise = np.convolve(rng.normal(size=count), np.ones(8) / 8, "same") * rng.uniform(0.001, 0.05)
    samples = np.clip((waves + noise) * 2**15, -(2**15), 2**15 - 1).astype("<i2")
    form = wav.form_of(1, _RATE, 16)
    path = folder / f"{number:03d}.wav"
    path.write_bytes(wav.written(form, samples.tobytes()))
    return path


def _as_flac(clip: Path, path: Path) -> None:
    try:
        import soundfile
    except ImportError as missing:
        raise ConfigError("FLAC files need soundfile; pip install 'sophon-loader[audio]'") from missing
    samples, rate = soundfile.read(clip, dtype="int16", always_2d=True)
    soundfile.write(path, samples, rate, "PCM_16", format="FLAC")
