"""SpecAugment: TimeMask and FrequencyMask, like torchaudio's ``TimeMasking`` and ``FrequencyMasking``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sophon.pipeline import checks
from sophon.pipeline.op import Op
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Kind, Spec

_MOST = 1 << 20


@dataclass(frozen=True)
class TimeMask(Op):
    """Set some consecutive frames of a spectrogram to one value, in all bands and channels.

    First the number of frames is drawn, then their position, as in torchaudio but with different random numbers.

    Args:
        most: Largest number of frames, exclusive.
        value: Value to set the frames to.
        p: Largest share of all frames that may be set.
    """

    most: int
    value: float = 0.0
    p: float = 1.0
    takes: ClassVar[Kind] = Kind.TENSOR
    axis: ClassVar[int] = -1

    def __post_init__(self) -> None:
        bound = checks.FLOAT32_MAX
        self._set(
            most=checks.integer(self._where("most"), self.most, 0, _MOST),
            value=checks.number(self._where("value"), self.value, -bound, bound),
            p=checks.probability(self._where("p"), self.p),
        )

    def output(self, spec: Spec) -> Spec:
        """Return a tensor of the same shape."""
        self._check_kind(spec)
        return spec

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, int]:
        """Return where the mask begins and ends."""
        size = spec.shape[self.axis] or 0
        length = rng.uniform(0.0, min(self.most, int(size * self.p)))
        start = rng.uniform(0.0, 1.0) * (size - length)
        return int(start), int(start) + int(length)

    def apply(self, value: np.ndarray[Any, Any], params: tuple[int, int]) -> np.ndarray[Any, Any]:
        """Return a copy with the mask applied."""
        made = value.copy()
        place = [slice(None)] * made.ndim
        place[self.axis] = slice(*params)
        made[tuple(place)] = self.value
        return made


@dataclass(frozen=True)
class FrequencyMask(TimeMask):
    """Set some neighbouring bands of a spectrogram to one value, in all frames and channels.

    Args:
        most: Largest number of bands, exclusive.
        value: Value to set the bands to.
        p: Largest share of all bands that may be set.
    """

    axis: ClassVar[int] = -2
