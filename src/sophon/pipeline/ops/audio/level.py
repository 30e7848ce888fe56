"""Loudness and channels: Gain, RandomGain, Mono."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sophon.pipeline import checks, portable
from sophon.pipeline.op import Params
from sophon.pipeline.ops.audio.sound import EachSample, Waveform, audio, expected
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec

_LN10_OVER_20 = 0.11512925464970229  # one decibel, as the natural logarithm of an amplitude ratio
_MOST_DB = 120.0


@dataclass(frozen=True)
class Gain(EachSample):
    """Multiply every sample by a factor; with `clip`, the same as torchaudio's ``Vol`` with ``gain_type="amplitude"``.

    Args:
        factor: Factor; 0.5 is 6 dB quieter.
        clip: Whether to clip samples to -1 … 1.
    """

    factor: float
    clip: bool = False

    def __post_init__(self) -> None:
        self._set(
            factor=checks.number(self._where("factor"), self.factor, 0.0, 1e6),
            clip=checks.flag(self._where("clip"), self.clip),
        )

    def changed(self, array: Waveform, params: Params) -> Waveform:  # noqa: ARG002 - part of the contract
        """Return louder or softer samples."""
        made = array * np.float32(self.factor)
        return np.clip(made, np.float32(-1), np.float32(1)) if self.clip else made


@dataclass(frozen=True)
class RandomGain(EachSample):
    """Make sound louder or quieter by a random number of decibels.

    Args:
        low_db: Smallest gain in decibels.
        high_db: Largest gain in decibels.
    """

    low_db: float = -6.0
    high_db: float = 6.0

    def __post_init__(self) -> None:
        low = checks.number(self._where("low_db"), self.low_db, -_MOST_DB, _MOST_DB)
        high = checks.number(self._where("high_db"), self.high_db, low, _MOST_DB)
        self._set(low_db=low, high_db=high)

    def draw(self, rng: Rng, spec: Spec) -> float:  # noqa: ARG002 - part of the contract
        """Return the factor."""
        return portable.exp(_LN10_OVER_20 * rng.uniform(self.low_db, self.high_db))

    def changed(self, array: Waveform, params: float) -> Waveform:
        """Return louder or softer samples."""
        return array * np.float32(params)


@dataclass(frozen=True)
class Mono(EachSample):
    """Mix all channels into one by taking their mean, summed in order."""

    def output(self, spec: Spec) -> Spec:
        """Return the spec of sound with one channel."""
        self._check_kind(spec)
        spec = expected(spec)
        return audio((1, spec.shape[1]), spec.scale)

    def changed(self, array: Waveform, params: Params) -> Waveform:  # noqa: ARG002 - part of the contract
        """Return the mean of all channels."""
        if len(array) == 1:
            return array
        total = array[:1].copy()
        for channel in range(1, len(array)):
            total += array[channel : channel + 1]
        total /= np.float32(len(array))
        return total
