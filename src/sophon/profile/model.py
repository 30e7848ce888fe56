"""Predicting costs from what is known of a sample: the size of its file, of its picture, and of the box it needs.

Bytes and seconds of a sample are, roughly, products of powers of those sizes (a window has the file's bytes times the
share of its area; decoding takes time by the pixel and by the byte), so their logarithms are linear in the logarithms
of the sizes. A ridge keeps the slopes near what is expected where few samples were measured. Predictions are scaled so
that their sum over the measured samples is the measured sum, since sums are what a plan is made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ConfigError

Rows = NDArray[np.floating[Any]]
"""[samples, features]: logarithms of sizes."""
Costs = NDArray[np.float32]
"""Bytes or seconds, one of each sample."""

BLOCK = 2**14
"""Samples at a time: temporaries of 128 KiB stay in a core's cache."""

_RIDGE = 1.0  # in measured samples: as if one more had told that a feature does not matter
_BEYOND = 4  # times what was measured is as far as a prediction goes
_ODD = 1.5  # in logarithms, a factor of 4.5: farther from the usual, a measurement is not believed
_LEAST = 1e-7  # of a cost: below the resolution of any clock here
_ANY = 1e12  # no number of a rule is as large: bytes and seconds of a sample, and logarithms
_JUDGED = 3  # measured samples from which a rule can be judged: with two, each has but one other to be predicted from


@dataclass(frozen=True)
class Fit:
    """A prediction rule.

    Args:
        rows: How many samples it was learnt from.
        error: Mean of |predicted − measured| / measured, each sample predicted from the others; None where there are
            too few of them to tell.
        centre: Mean of each feature.
        slopes: Slopes of each feature.
        level: Logarithm of the prediction at the centre.
        least: No prediction is below it.
        most: No prediction is above it.
    """

    rows: int
    error: float | None
    centre: tuple[float, ...]
    slopes: tuple[float, ...]
    level: float
    least: float
    most: float

    def predict(self, features: Rows, out: Costs | None = None, *, add: bool = False) -> Costs:
        """Return the predicted cost of each row.

        Args:
            features: Features of the rows.
            out: Where to write them; a new array if left out.
            add: Add them to what is there instead.
        """
        # Bounded before and not after exp: slopes from samples that are nearly alike may lead anywhere.
        least, most = (math.log(bound) if bound > 0 else -math.inf for bound in (self.least, self.most))
        level = self.level - sum(slope * centre for slope, centre in zip(self.slopes, self.centre, strict=True))
        used = [column for column, slope in enumerate(self.slopes) if slope]
        predicted = np.empty(len(features), np.float32) if out is None else out
        values, part = (np.empty(min(BLOCK, len(features)), features.dtype) for _ in range(2))
        for low in range(0, len(features), BLOCK):
            block, place = features[low : low + BLOCK], predicted[low : low + BLOCK]
            values, part = values[: len(block)], part[: len(block)]
            values[:] = level
            for column in used:
                np.multiply(block[:, column], self.slopes[column], out=part)
                np.add(values, part, out=values)
            np.clip(values, least, most, out=values)
            np.exp(values, out=values)
            if add:
                np.add(place, values, out=place, casting="same_kind")
            else:
                place[:] = values
        return predicted

    def to_json(self) -> list[object]:
        """Return the rule as JSON values."""
        return [self.rows, self.error, list(self.centre), list(self.slopes), self.level, self.least, self.most]

    @classmethod
    def from_json(cls, said: Any) -> Fit:
        """Return the rule that `to_json` gave."""
        try:
            rows, error, centre, slopes, level, least, most = said
            told = None if error is None else float(error)
            fit = cls(int(rows), told, _floats(centre), _floats(slopes), *_floats((level, least, most)))
        except (TypeError, ValueError, OverflowError) as problem:
            raise ConfigError(f"not a prediction rule: {problem}") from problem
        numbers = np.array([fit.error or 0.0, *fit.centre, *fit.slopes, fit.level, fit.least, fit.most])
        fits = len(fit.centre) == len(fit.slopes) and bool((np.abs(numbers) < _ANY).all())  # nor not a number
        if not fits or not 0 <= fit.least <= fit.most:
            raise ConfigError("not a prediction rule: its numbers do not fit together")
        return fit


def fit(features: Rows, costs: NDArray[np.floating[Any]], prior: Sequence[float] = ()) -> Fit:
    """Learn to predict costs from features.

    Args:
        features: [samples, features] of the measured samples.
        costs: What was measured.
        prior: Slopes to believe in until enough samples say otherwise; by default none matters.
    """
    costs = np.maximum(np.asarray(costs, np.float64), _LEAST)
    count, width = features.shape
    if count == 0:
        raise ConfigError("nothing was measured; at least one sample is needed to predict others")
    slopes = np.array(prior) if prior else np.zeros(width)
    centre = features.mean(axis=0)
    spread = features.std(axis=0)
    known = spread > 1e-9
    scaled = (features[:, known] - centre[known]) / spread[known]
    logs = np.log(costs)
    expected = (features - centre) @ slopes
    # The first call of a library, or a page fault, may take a hundred times as long: it counts, but not for that much.
    usual = float(np.median(logs - expected))
    logs = np.clip(logs, expected + usual - _ODD, expected + usual + _ODD)
    costs = np.exp(logs)
    level = float((logs - expected).mean())
    gram = scaled.T @ scaled + _RIDGE * np.eye(scaled.shape[1])
    inverse = np.linalg.inv(gram)
    weights = inverse @ (scaled.T @ (logs - expected - level))
    fitted = expected + scaled @ weights + level
    # Leverage of every row, the mean's share in it: what its own prediction owes to itself.
    leverage = np.einsum("ij,jk,ik->i", scaled, inverse, scaled) + 1 / count
    left_out = logs - (logs - fitted) / np.maximum(1 - leverage, 1e-3)
    scale = float(costs.sum() / np.exp(fitted).sum())
    error = float(np.mean(np.abs(np.exp(left_out) * scale - costs) / costs)) if count >= _JUDGED else None
    slopes[known] += weights / spread[known]
    # Far outside of what was measured a line in logarithms goes anywhere.
    least, most = float(costs.min() / _BEYOND), float(costs.max() * _BEYOND)
    return Fit(count, error, _floats(centre), _floats(slopes), level + float(np.log(scale)), least, most)


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))
