"""MelSpectrogram and MFCC: the same bits on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from sophon.errors import OpError
from sophon.pipeline import checks, portable
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.audio.sound import MOST_RATE, expected
from sophon.pipeline.ops.audio.waves import Reals, fft, sines
from sophon.pipeline.part import Signal
from sophon.pipeline.spec import Kind, Spec

_MOST_FFT = 1 << 14
_MOST_MELS = 1024
_LEAST_POWER = 1e-10  # from torchaudio: floor of the power before it is converted to decibels
_DB = 4.342944819032518  # 10 / ln 10
_HTK_Q, _HTK_HZ = 1127.0104803, 700.0  # 2595 log10(1 + f / 700), by natural logarithms: 2595 / ln 10


@dataclass(frozen=True)
class MelSpectrogram(Op):
    """Make a mel spectrogram like torchaudio's, with its defaults (Hann window, reflected ends, HTK mel scale).

    The transform is computed in float64 with basic operations only, so its bits are the same on every machine.
    torchaudio's bits depend on the processor; the results differ by about 1e-6 of the largest value.

    Args:
        rate: Samples per second of the sound; other rates are refused. Put ``Resample(rate)`` before this op.
        n_fft: Samples per frame.
        hop: Samples from one frame to the next; by default half a frame.
        n_mels: Number of bands.
        f_min: Lowest frequency in Hz.
        f_max: Highest frequency in Hz; by default half the rate.
        power: 2 for power, 1 for magnitude.
        decibels: Whether to return 10 log₁₀ of the values, after raising values below 1e-10 to 1e-10.
    """

    rate: int
    n_fft: int = 400
    hop: int | None = None
    n_mels: int = 128
    f_min: float = 0.0
    f_max: float | None = None
    power: int = 2
    decibels: bool = False
    takes: ClassVar[Kind] = Kind.AUDIO

    def __post_init__(self) -> None:
        where = self._where
        rate = checks.integer(where("rate"), self.rate, 1, MOST_RATE)
        n_fft = checks.integer(where("n_fft"), self.n_fft, 2, _MOST_FFT)
        f_max = rate / 2 if self.f_max is None else checks.number(where("f_max"), self.f_max, 0.0, rate / 2)
        self._set(
            rate=rate,
            n_fft=n_fft,
            hop=checks.integer(where("hop"), n_fft // 2 if self.hop is None else self.hop, 1, _MOST_FFT),
            n_mels=checks.integer(where("n_mels"), self.n_mels, 1, _MOST_MELS),
            f_min=checks.number(where("f_min"), self.f_min, 0.0, f_max),
            f_max=float(f_max),
            power=checks.integer(where("power"), self.power, 1, 2),
            decibels=checks.flag(where("decibels"), self.decibels),
        )

    @property
    def _rows(self) -> int:
        return self.n_mels

    def output(self, spec: Spec) -> Spec:
        """Return the spec of a tensor: channels, bands, frames."""
        self._check_kind(spec)
        spec = expected(spec)
        length = spec.shape[1]
        frames = None if length is None else 1 + length // (self.hop or 1)
        return Spec(Kind.TENSOR, (spec.shape[0], self._rows, frames), "float32")

    def apply(self, value: Signal, params: Params) -> np.ndarray[Any, np.dtype[np.float32]]:  # noqa: ARG002
        """Return the spectrogram of a whole sound."""
        return np.ascontiguousarray(self._mels(value).astype(np.float32))

    def _mels(self, value: Signal) -> Reals:
        value.require_whole()
        if value.scale != (float(self.rate),):
            raise OpError(
                f"the sound has {value.scale[0] if value.scale else 0:g} samples per second, expected {self.rate:,}.",
                remedy=f"Put Resample({self.rate}) before it.",
            )
        length, half = value.array.shape[1], self.n_fft // 2
        if length <= half:
            raise OpError(f"{length:,} samples are too few for frames of {self.n_fft:,}.", remedy="Pad: TimePad(…).")
        padded = np.pad(value.array.astype(np.float64), ((0, 0), (half, half)), mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.n_fft, axis=1)[:, :: self.hop]
        re, im = fft(frames * _hann(self.n_fft))
        power = re * re + im * im
        power = np.ascontiguousarray(np.moveaxis(np.sqrt(power) if self.power == 1 else power, -1, 0))
        assert self.f_max is not None
        made = np.zeros((self.n_mels, *power.shape[1:]))
        for band, (low, weights) in enumerate(_bands(self.rate, self.n_fft, self.n_mels, self.f_min, self.f_max)):
            for number, weight in enumerate(weights, start=low):  # one by one: sums by BLAS have no fixed order
                made[band] += power[number] * weight
        made = np.moveaxis(made, 0, 1)
        return portable.log_array(np.maximum(made, _LEAST_POWER)) * _DB if self.decibels else made


@dataclass(frozen=True)
class MFCC(MelSpectrogram):
    """Make mel-frequency cepstral coefficients: the orthonormal cosine transform of mel bands in decibels.

    Args:
        rate: Samples per second of the sound; see `MelSpectrogram`.
        n_fft: Samples per frame.
        hop: Samples from one frame to the next.
        n_mels: Number of bands.
        f_min: Lowest frequency in Hz.
        f_max: Highest frequency in Hz.
        power: 2 for power, 1 for magnitude.
        decibels: Always true.
        n_mfcc: Number of coefficients.
    """

    decibels: bool = True
    n_mfcc: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(decibels=True, n_mfcc=checks.integer(self._where("n_mfcc"), self.n_mfcc, 1, self.n_mels))

    @property
    def _rows(self) -> int:
        return self.n_mfcc

    def _mels(self, value: Signal) -> Reals:
        mels = super()._mels(value)
        table = _cosines(self.n_mels, self.n_mfcc)
        made = np.zeros((mels.shape[0], self.n_mfcc, mels.shape[2]))
        for number in range(self.n_mfcc):
            for band in range(self.n_mels):
                made[:, number] += mels[:, band] * table[number][band]
        return made


@lru_cache(maxsize=16)
def _hann(length: int) -> Reals:
    cos, _ = sines(np.arange(length), length)
    return 0.5 - 0.5 * cos


@lru_cache(maxsize=16)
def _bands(rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """Return, for each band, its first frequency bin and the weights from there on."""
    low, high = (_HTK_Q * portable.log(1.0 + hz / _HTK_HZ) for hz in (f_min, f_max))
    edges = [low + (high - low) * number / (n_mels + 1) for number in range(n_mels + 2)]
    corners = [_HTK_HZ * (portable.exp(mel / _HTK_Q) - 1.0) for mel in edges]
    hertz = [(rate // 2) * number / (n_fft // 2) for number in range(n_fft // 2 + 1)]
    found = []
    for band in range(n_mels):
        left, top, right = corners[band : band + 3]
        weights = [max(0.0, min((hz - left) / (top - left), (right - hz) / (right - top))) for hz in hertz]
        used = [number for number, weight in enumerate(weights) if weight > 0.0]
        first, last = (used[0], used[-1]) if used else (0, -1)
        found.append((first, tuple(weights[first : last + 1])))
    return tuple(found)


@lru_cache(maxsize=16)
def _cosines(n_mels: int, n_mfcc: int) -> tuple[tuple[float, ...], ...]:
    """Return the table of the orthonormal cosine transform of the second kind."""
    rows = []
    for number in range(n_mfcc):
        cos, _ = sines(number * (2 * np.arange(n_mels) + 1), 4 * n_mels)
        scale = float(np.sqrt((1.0 if number == 0 else 2.0) / n_mels))
        rows.append(tuple((cos * scale).tolist()))
    return tuple(rows)
