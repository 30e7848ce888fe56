"""Resample: change the sample rate, with the same bits on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Params
from sophon.pipeline.ops.audio.sound import MOST_RATE, MOST_SAMPLES, AudioOp, Waveform, audio, expected
from sophon.pipeline.ops.audio.waves import Reals, bessel_i0, sines
from sophon.pipeline.part import Box, Signal
from sophon.pipeline.spec import Spec

_REACH = 10  # periods of the slower rate on either side
_BETA = 5.0  # beta of the Kaiser window; both are the defaults of scipy.signal.resample_poly
_MOST_RATIO = 1 << 12  # limit on both terms of the ratio; the filter has twenty times as many coefficients
_MOST_GROWTH = 2  # of a sound that is already longer than usual
_BLOCK = 1 << 16  # samples of the result computed at a time, with a dozen numbers in memory for each
_PI = 3.141592653589793


@dataclass(frozen=True)
class Resample(AudioOp):
    """Resample sound like ``scipy.signal.resample_poly``, with the same rounding on every machine.

    Uses a polyphase filter of fixed length in float64; each sample is a sum of products in a fixed order, rounded to
    float32 at the end. The result differs from SciPy's by less than 1e-6 of full scale.

    Args:
        rate: Samples per second of the result.
    """

    rate: int

    def __post_init__(self) -> None:
        self._set(rate=checks.integer(self._where("rate"), self.rate, 1, MOST_RATE))

    def output(self, spec: Spec) -> Spec:
        """Return the spec of sound of this rate; its length is known if the length and rate of the input are."""
        self._check_kind(spec)
        spec = expected(spec)
        length = spec.shape[1]
        known = None if length is None or not spec.scale else self._made(length, *self._ratio(spec.scale))
        return audio((spec.shape[0], known), (float(self.rate),))

    def _ratio(self, scale: tuple[float, ...]) -> tuple[int, int]:
        """Return the upsampling and downsampling factors."""
        if not scale or scale[0] != int(scale[0]) or scale[0] < 1:
            raise OpError("sound of unknown rate cannot be resampled.")
        rate = int(scale[0])
        common = gcd(rate, self.rate)
        up, down = self.rate // common, rate // common
        if max(up, down) > _MOST_RATIO:
            raise OpError(
                f"{rate:,} samples per second cannot be resampled to {self.rate:,}: the ratio is {up} : {down}.",
                remedy="Choose a rate with a simpler ratio to the rate of the files.",
            )
        return up, down

    @staticmethod
    def _made(length: int, up: int, down: int) -> int:
        return -(-length * up // down)

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the interval of the input that the filter needs."""
        if not spec.scale:
            return None
        up, down = self._ratio(spec.scale)
        low, high = _reached(box[0], box[0] + box[1], up, down, spec.sizes[0] or 0)
        return low, high - low

    def apply(self, value: Signal, params: Params) -> Signal:  # noqa: ARG002 - part of the contract
        """Return the resampled sound; given a part, only the interval that the part determines."""
        up, down = self._ratio(value.scale)
        scale, (length,) = (float(self.rate),), value.whole_sizes
        if up == down:
            return value
        whole = self._made(length, up, down)
        start, count = value.box
        first, stop = (0, whole) if count == length else _enough(start, start + count, up, down, length, whole)
        if len(value.array) * (stop - first) > max(MOST_SAMPLES, _MOST_GROWTH * value.array.size):
            raise OpError(
                f"{count:,} samples at {value.scale[0]:g} per second would become {stop - first:,}, more than "
                f"{MOST_SAMPLES:,} over all channels.",
                remedy="Check the rate that the file declares; if it is right, crop first.",
            )
        array = _filtered(value.array, start, first, stop, up, down, length)
        return Signal(array, value.kind, scale, *(((first,), (whole,)) if stop - first < whole else ()))


def _reached(first: int, stop: int, up: int, down: int, length: int) -> tuple[int, int]:
    """Return which samples of the input determine samples `first` to `stop` of the output."""
    half = _REACH * max(up, down)
    low = -((half - first * down) // up)  # smallest n with n·up ≥ first·down - half
    high = ((stop - 1) * down + half) // up + 1
    return max(low, 0), min(max(high, low + 1), length)


def _enough(start: int, stop: int, up: int, down: int, length: int, whole: int) -> tuple[int, int]:
    """Return which samples of the output a part of the input determines."""
    half = _REACH * max(up, down)
    first = 0 if start == 0 else -(-((start - 1) * up + half + 1) // down)
    last = whole if stop == length else min(-((half - stop * up) // down), whole)  # those with m·down + half < stop·up
    first = min(first, whole)
    return first, max(last, first)


def _filtered(array: Waveform, start: int, first: int, stop: int, up: int, down: int, length: int) -> Waveform:
    """Return samples `first` to `stop` of the output, given part of the input and the index of its first sample."""
    taps = _filter(up, down)
    half = _REACH * max(up, down)
    padded = np.zeros((len(array), array.shape[1] + 1))
    padded[:, :-1] = array
    nothing = array.shape[1]  # indexes of silence before and after the sound
    made = np.empty((len(array), stop - first), np.float32)
    for begin in range(first, stop, _BLOCK):
        end = min(begin + _BLOCK, stop)
        at = np.arange(begin, end, dtype=np.int64) * down
        newest = (at + half) // up  # the last sample that the filter covers
        phase = (at + half) % up
        total = np.zeros((len(array), end - begin))
        for tap in range(taps.shape[1] - 1, -1, -1):  # from the oldest sample on
            sample = newest - tap
            place = np.where((sample >= 0) & (sample < length), sample - start, nothing)
            total += padded[:, place] * taps[phase, tap]
        made[:, begin - first : end - first] = total
    return made


@lru_cache(maxsize=16)
def _filter(up: int, down: int) -> Reals:
    """Return the filter coefficients by phase, [up, taps]: a Kaiser-windowed sinc up to the lower Nyquist rate."""
    most = max(up, down)
    half = _REACH * most
    n = np.arange(2 * half + 1) - half
    window = bessel_i0(_BETA * _root(np.maximum(1.0 - (n / half) * (n / half), 0.0))) / bessel_i0(np.array([_BETA]))
    _, sin = sines(n, 2 * most)  # sin(π n / most)
    sinc = np.where(n == 0, 1.0, sin / (_PI * np.where(n == 0, 1, n) / most))
    numbers = sinc * window
    total = 0.0
    for number in numbers.tolist():
        total += number
    numbers = numbers / total * up
    phases: Reals = np.zeros((up, -(-len(numbers) // up)))
    for phase in range(up):
        taps = numbers[phase::up]
        phases[phase, : len(taps)] = taps
    return phases


def _root(x: Any) -> Reals:
    """Return square roots, which IEEE 754 defines to the last bit, like the basic operations."""
    found: Reals = np.sqrt(x)
    return found
