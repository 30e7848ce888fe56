"""Random numbers for many samples at once: the same bits that `Rng` gives one by one.

A plan is made from the boxes of all crops in a coming epoch, of which there may be more than a million. Philox is
counter-based, so its rounds can be computed for all samples at once; so can the numbers that `Rng` derives from the
words, since that takes IEEE basic operations only (`tests/pipeline/test_streams.py` compares the two).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sophon.pipeline import portable
from sophon.pipeline.rng import position_inside

if TYPE_CHECKING:
    from sophon.pipeline import _streams as compiled
else:
    try:
        from sophon.pipeline import _streams as compiled
    except ImportError:  # built without a compiler
        compiled = None

Numbers: TypeAlias = NDArray[np.int64]
Sizes: TypeAlias = tuple[Numbers, ...]
"""Sizes of many values, by axis: heights and widths of pictures."""
Boxes: TypeAlias = tuple[Numbers, ...]
"""Starts of all axes, then lengths, as in `Box`: tops, lefts, heights and widths."""
Words: TypeAlias = NDArray[np.uint64]

# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): multipliers, key increments, rounds.
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_LIMIT = 1 << 64


class Streams:
    """The streams of one op on many passes.

    Args:
        seed: Seed of the run.
        epochs: One epoch for all samples, or one for each.
        position: Index of the op in its pipeline.
        samples: Indexes of the samples.
    """

    def __init__(self, seed: int, epochs: int | NDArray[Any], position: int, samples: NDArray[Any]) -> None:
        self._seed = seed
        self._epochs = np.atleast_1d(np.asarray(epochs, np.uint64))
        self._position = position
        self._samples = np.asarray(samples, np.uint64)
        self._blocks: dict[int, tuple[Words, ...]] = {}

    def of(self, rows: NDArray[Any]) -> Streams:
        """Return some of the streams."""
        epochs = self._epochs if len(self._epochs) == 1 else self._epochs[rows]
        some = Streams(self._seed, epochs, self._position, self._samples[rows])
        some._blocks = {number: tuple(words[rows] for words in block) for number, block in self._blocks.items()}
        return some

    def inside(self, view: int, step: int) -> Streams:
        """Return the streams for a step of a view inside this op."""
        return Streams(self._seed, self._epochs, position_inside(self._position, view, step), self._samples)

    def words(self, number: int) -> Words:
        """Return the word of every stream at this index, counted from 0."""
        block, place = divmod(number, 4)
        if block not in self._blocks:
            self._blocks[block] = self._drawn(block + 1)  # NumPy's Philox counts before it draws
        return self._blocks[block][place]

    def _drawn(self, count: int) -> tuple[Words, ...]:
        shape, position, seed = self._samples.shape, self._position % _LIMIT, self._seed % _LIMIT
        if compiled is not None and len(shape) == 1:
            drawn = np.empty((4, *shape), np.uint64)
            samples, epochs = np.ascontiguousarray(self._samples), np.ascontiguousarray(self._epochs)
            compiled.philox(count, position, samples, seed, epochs, drawn)
            return tuple(drawn)
        words = _philox((_one(count), _one(0), _one(position), self._samples), (_one(seed), self._epochs))
        return tuple(np.broadcast_to(word, shape) for word in words)

    def uniform(self, number: int, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """Return what `Rng.uniform` derives from a word."""
        share = (self.words(number) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * share

    def log_uniform(self, number: int, low: float, high: float) -> NDArray[np.float64]:
        """Return what `Rng.log_uniform` derives from a word."""
        return portable.exp_array(self.uniform(number, portable.log(low), portable.log(high)))

    def below(self, number: int, bounds: Numbers) -> Numbers:
        """Return what `Rng.below` derives from a word; bounds are below 2**32."""
        words, most = self.words(number), bounds.astype(np.uint64)
        low = ((words & _LOW) * most) >> _HALF
        return (((words >> _HALF) * most + low) >> _HALF).astype(np.int64)


def whole(sizes: Sizes) -> Boxes:
    """Return the boxes that cover whole pictures, or other values."""
    return (*map(np.zeros_like, sizes), *sizes)


def where(is_so: NDArray[np.bool_], boxes: Boxes, others: Boxes) -> Boxes:
    """Return boxes from the first set where a condition holds, and from the second elsewhere."""
    return tuple(np.where(is_so, one, other) for one, other in zip(boxes, others, strict=True))


def _one(number: int) -> Words:
    """Return an integer as an array, so that products wrap around without a warning."""
    return np.array([number % _LIMIT], np.uint64)


def _philox(counter: tuple[Words, ...], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Return four words for each counter, by Philox4x64-10."""
    a, b, c, d = counter
    first, second = key
    for number in range(_ROUNDS):
        if number:
            first, second = first + _one(_STEPS[0]), second + _one(_STEPS[1])
        high_a, low_a = _product(_MULTIPLIERS[0], a)
        high_c, low_c = _product(_MULTIPLIERS[1], c)
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
    return a, b, c, d


def _product(factor: int, words: Words) -> tuple[Words, Words]:
    """Return the upper and the lower half of the 128 bits of products."""
    high, low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    upper, lower = words >> _HALF, words & _LOW
    middle = upper * low
    middle += (lower * low) >> _HALF
    other = lower * high
    other += middle & _LOW
    upper *= high
    upper += middle >> _HALF
    upper += other >> _HALF
    return upper, words * np.uint64(factor)
