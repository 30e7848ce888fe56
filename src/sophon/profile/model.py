"""Predicts costs from the known sizes of a sample: its file, its picture and the box that is needed.

Bytes and seconds of a sample are, roughly, products of powers of these sizes (a window has the file's bytes times the
share of its area; decoding takes time per pixel and per byte), so their logarithms are linear in the logarithms of the
sizes. Ridge regression keeps the slopes near their expected values when few samples were measured: a plan looks for the
samples that a rule predicts to be cheap, so a rule that is too confident of a slope would be used most where it is
wrong. Predictions are scaled so that their sum over the measured samples is the measured sum, since a plan is based on
sums.
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
"""Bytes or seconds, one per sample."""

BLOCK = 2**14
"""Samples at a time: temporaries of 128 KiB stay in a core's cache."""

_RIDGE = 4.0  # as if four samples whose sizes are a factor of e from the mean had shown the expected slopes
_BEYOND = 4  # how far a prediction may exceed the measured range, as a factor
_ODD = 1.5  # in logarithms, a factor of 4.5: outliers beyond it are clipped
_LEAST = 1e-7  # smallest cost: below the resolution of any clock here
_ANY = 1e12  # no number in a rule is this large: bytes and seconds of a sample, and logarithms
_JUDGED = 3  # measured samples needed to judge a rule: with two, each has only one other to be predicted from


@dataclass(frozen=True)
class Fit:
    """A prediction rule.

    Args:
        rows: How many samples it was fitted to.
        error: Mean of |predicted − measured| / measured, each sample predicted from the others; None if there are too
            few to tell.
        centre: Mean of each feature.
        slopes: Slope of each feature.
        level: Logarithm of the prediction at the centre.
        least: Lower bound of predictions.
        most: Upper bound of predictions.
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
            out: Where to write the predictions; a new array if left out.
            add: Whether to add the predictions to the values in `out` instead of overwriting them.
        """
        # Bounded before exp rather than after: slopes from nearly identical samples may be extreme.
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
        """Return the rule from the result of `to_json`."""
        try:
            rows, error, centre, slopes, level, least, most = said
            told = None if error is None else float(error)
            fit = cls(int(rows), told, _floats(centre), _floats(slopes), *_floats((level, least, most)))
        except (TypeError, ValueError, OverflowError) as problem:
            raise ConfigError(f"this is not a prediction rule: {problem}") from problem
        numbers = np.array([fit.error or 0.0, *fit.centre, *fit.slopes, fit.level, fit.least, fit.most])
        fits = len(fit.centre) == len(fit.slopes) and bool((np.abs(numbers) < _ANY).all())  # and not NaN
        if not fits or not 0 <= fit.least <= fit.most:
            raise ConfigError("this is not a prediction rule: its numbers do not fit together")
        return fit


def fit(features: Rows, costs: NDArray[np.floating[Any]], prior: Sequence[float] = ()) -> Fit:
    """Fit a rule that predicts costs from features.

    Args:
        features: [samples, features] of the measured samples.
        costs: The measured costs.
        prior: Slopes to assume until enough samples are measured; by default zero.
    """
    costs = np.maximum(np.asarray(costs, np.float64), _LEAST)
    count, width = features.shape
    if count == 0:
        raise ConfigError("nothing was measured; at least one sample is needed to predict others")
    slopes = np.array(prior) if prior else np.zeros(width)
    centre = features.mean(axis=0)
    offsets = features - centre
    logs = np.log(costs)
    expected = offsets @ slopes
    # The first call of a library, or a page fault, may take a hundred times as long: it counts, but with a bound.
    usual = float(np.median(logs - expected))
    logs = np.clip(logs, expected + usual - _ODD, expected + usual + _ODD)
    costs = np.exp(logs)
    level = float((logs - expected).mean())
    inverse = np.linalg.inv(offsets.T @ offsets + _RIDGE * np.eye(width))
    weights = inverse @ (offsets.T @ (logs - expected - level))
    fitted = expected + offsets @ weights + level
    # Leverage of every row, including the share of the mean: how much its own prediction depends on itself.
    leverage = np.einsum("ij,jk,ik->i", offsets, inverse, offsets) + 1 / count
    left_out = logs - (logs - fitted) / np.maximum(1 - leverage, 1e-3)
    scale = float(costs.sum() / np.exp(fitted).sum())
    error = float(np.mean(np.abs(np.exp(left_out) * scale - costs) / costs)) if count >= _JUDGED else None
    slopes += weights
    # Far outside the measured range, a line in logarithms is unreliable.
    least, most = float(costs.min() / _BEYOND), float(costs.max() * _BEYOND)
    return Fit(count, error, _floats(centre), _floats(slopes), level + float(np.log(scale)), least, most)


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))
