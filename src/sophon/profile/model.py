"""Predicting costs from what is known of a sample: the size of its file, of its picture, and of the box it needs.

Bytes and seconds of a sample are, roughly, products of powers of those sizes (a window has the file's bytes times the
share of its area; decoding takes time by the pixel and by the byte), so their logarithms are linear in the logarithms
of the sizes. A ridge keeps the slopes near what is expected where few samples were measured. Predictions are scaled so
that their sum over the measured samples is the measured sum, since sums are what a plan is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ConfigError

Rows = NDArray[np.float64]
"""[samples, features]: logarithms of sizes."""

_RIDGE = 1.0  # in measured samples: as if one more had told that a feature does not matter
_BEYOND = 4  # times what was measured is as far as a prediction goes
_ODD = 1.5  # in logarithms, a factor of 4.5: farther from the usual, a measurement is not believed
_LEAST = 1e-7  # of a cost: below the resolution of any clock here


@dataclass(frozen=True)
class Fit:
    """A prediction rule.

    Args:
        rows: How many samples it was learnt from.
        error: Mean of |predicted − measured| / measured, each sample predicted from the others.
        centre: Mean of each feature.
        slopes: Of each feature.
        level: Logarithm of the prediction at the centre.
        least: No prediction is below it.
        most: No prediction is above it.
    """

    rows: int
    error: float
    centre: tuple[float, ...]
    slopes: tuple[float, ...]
    level: float
    least: float
    most: float

    def predict(self, features: Rows) -> NDArray[np.float32]:
        """Return the predicted cost of each row."""
        values = (features - np.asarray(self.centre)) @ np.asarray(self.slopes) + self.level
        np.exp(values, out=values)
        predicted: NDArray[np.float32] = np.clip(values, self.least, self.most, out=values).astype(np.float32)
        return predicted

    def to_json(self) -> list[object]:
        """Return the rule as JSON values."""
        return [self.rows, self.error, list(self.centre), list(self.slopes), self.level, self.least, self.most]

    @classmethod
    def from_json(cls, said: Any) -> Fit:
        """Return the rule that `to_json` gave."""
        try:
            rows, error, centre, slopes, level, least, most = said
            fit = cls(int(rows), float(error), _floats(centre), _floats(slopes), *_floats((level, least, most)))
        except (TypeError, ValueError, OverflowError) as problem:
            raise ConfigError(f"not a prediction rule: {problem}") from problem
        numbers = np.array([fit.error, *fit.centre, *fit.slopes, fit.level, fit.least, fit.most])
        if len(fit.centre) != len(fit.slopes) or not np.isfinite(numbers).all() or not 0 <= fit.least <= fit.most:
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
    left_out = logs - (logs - fitted) / np.maximum(1 - leverage, 1e-3) if count > 1 else logs
    scale = float(costs.sum() / np.exp(fitted).sum())
    error = float(np.mean(np.abs(np.exp(left_out) * scale - costs) / costs))
    slopes[known] += weights / spread[known]
    # Far outside of what was measured a line in logarithms goes anywhere.
    least, most = float(costs.min() / _BEYOND), float(costs.max() * _BEYOND)
    return Fit(count, error, _floats(centre), _floats(slopes), level + float(np.log(scale)), least, most)


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))
