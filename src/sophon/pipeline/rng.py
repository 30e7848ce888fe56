"""Random numbers that depend on (seed, epoch, sample, op position) and on nothing else.

The generator is Philox4x64, counter-based: those four integers are its key and counter, so there is no state to carry
over, no order to preserve and no worker id involved. Every machine that runs an op draws the same numbers.

Only Philox's raw 64-bit words come from NumPy, because NumPy guarantees that stream forever, whereas the methods of
`numpy.random.Generator` may change between releases, and trainer and storage node need not run the same release.
Uniform, integer and normal numbers are made from the words here, with IEEE basic operations only (see `portable`).

Concurrency: one Philox object per thread is re-keyed for every `Rng`; an `Rng` itself is used by one thread.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sophon.errors import ConfigError
from sophon.pipeline import portable
from sophon.pipeline.spec import Spec

_WORDS = 8  # words drawn at once; most ops need one to six
_LIMIT = 1 << 64
# Positions of a view's steps: above those of a pipeline's ops and of the loader's own draws (from 2**32 on).
_VIEW, _STEP = 1 << 40, 1 << 48


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies one pass of one sample: which run, which epoch, which sample.

    It may also carry `sight`, the size of the decoded picture and the boxes of its objects, which some ops use when
    they draw. These follow from the sample, so they are not part of the key's identity.
    """

    seed: int
    epoch: int
    sample: int
    sight: Spec | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "sample"):
            number = getattr(self, name)
            if not isinstance(number, int | np.integer) or not 0 <= number < _LIMIT:
                raise ConfigError(f"{name} must be an integer in 0 … 2**64 - 1, got {number!r}")


def position_inside(position: int, view: int, step: int) -> int:
    """Return a unique position for a step of a view, given the position of the op that it is in."""
    return position + _VIEW * (view + 1) + _STEP * step


class Rng:
    """The stream of one op on one pass of one sample.

    Args:
        key: Seed, epoch and sample.
        position: Index of the op in its pipeline.
    """

    __slots__ = ("_block", "_next", "_stream", "_words")

    def __init__(self, key: Key, position: int) -> None:
        self._stream = (key.seed, key.epoch, position, key.sample)
        self._block = 0
        self._words: list[int] = self._draw(_WORDS).tolist()
        self._next = 0

    def _draw(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        thread = _thread
        key, counter = thread.key, thread.counter
        # Two counter words name the stream; the lowest counts its blocks of four words.
        key[0], key[1], counter[2], counter[3] = self._stream
        counter[0] = self._block
        thread.philox.state = thread.state
        blocks = -(-count // 4)
        self._block += blocks
        words: np.ndarray[tuple[int], np.dtype[np.uint64]] = thread.philox.random_raw(blocks * 4)
        return words[:count]

    def inside(self, view: int, step: int) -> Rng:
        """Return the stream, from its beginning, for a step of a view inside this op."""
        seed, epoch, position, sample = self._stream
        return Rng(Key(seed, epoch, sample), position_inside(position, view, step))

    def word(self) -> int:
        """Return 64 random bits."""
        if self._next == len(self._words):
            self._words = self._draw(_WORDS).tolist()
            self._next = 0
        word = self._words[self._next]
        self._next += 1
        return word

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a float in [low, high)."""
        return low + (high - low) * ((self.word() >> 11) * 2.0**-53)

    def uniform32(self, low: float, high: float) -> float:
        """Return a float32 in [low, high], as torch draws it: from 0.1 to 0.1 it gives torch's float32 of 0.1."""
        return float(np.float32(self.uniform(low, high)))

    def log_uniform(self, low: float, high: float) -> float:
        """Return a positive float whose logarithm is uniform."""
        return portable.exp(self.uniform(portable.log(low), portable.log(high)))

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.uniform() < probability

    def below(self, bound: int) -> int:
        """Return an integer in 0 … bound - 1 (bias below 2**-32 for any picture-sized bound)."""
        return (self.word() * bound) >> 64

    def uniforms(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return many floats in [0, 1)."""
        return (self._draw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int) -> tuple[int, ...]:
        """Return 0 … count - 1 in random order."""
        order = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return tuple(order)

    def normals(self, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return standard normal numbers, by the inverse distribution function from uniform ones."""
        words = self._draw(math.prod(shape))
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return _normal_quantile(uniform).astype(np.float32).reshape(shape)


class _Thread(threading.local):
    """One thread's generator, and the state that re-keys it: an empty buffer, and arrays overwritten in place."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(0)
        self.state: Any = self.philox.state
        self.key = self.state["state"]["key"] = np.zeros(2, np.uint64)
        self.counter = self.state["state"]["counter"] = np.zeros(4, np.uint64)


_thread = _Thread()


# Wichura's algorithm AS 241 (Applied Statistics 37, 1988), about 16 digits: one rational function for the middle of the
# distribution and two for its tails. Coefficients from the highest power down.
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
     5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)  # fmt: skip
_NEAR = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip

_Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _normal_quantile(p: _Doubles) -> _Doubles:
    q = p - 0.5
    result = np.empty_like(q)
    middle = np.abs(q) <= 0.425
    result[middle] = q[middle] * _rational(_MIDDLE, 0.180625 - q[middle] * q[middle])
    tail = q[~middle]
    r = np.sqrt(-portable.log_array(np.minimum(p[~middle], 1.0 - p[~middle])))
    size = np.where(r <= 5.0, _rational(_NEAR, r - 1.6), _rational(_FAR, r - 5.0))
    result[~middle] = np.copysign(size, tail)
    return result


def _rational(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: _Doubles) -> _Doubles:
    top, bottom = (np.zeros_like(x), np.zeros_like(x))
    for a, b in zip(*coefficients, strict=True):
        top = top * x + a
        bottom = bottom * x + b
    return np.asarray(top / bottom)
