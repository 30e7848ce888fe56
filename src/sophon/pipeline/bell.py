"""Gaussian weights in float32, bit for bit the same as in torchvision's v1 and v2.

v1 divides exp(-x²/2σ²) by its sum. Torch's exp is correctly rounded except for a few values in a thousand, where the
true value lies almost midway between two floats and machines differ in the last bit; `is_sure` tells whether that can
happen for a given σ.

v2 takes a softmax, whose exp is a fixed chain of float32 multiply-adds wherever torch uses vector instructions; only
the order of its additions depends on how many numbers a vector holds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sophon.pipeline import portable

Floats = np.ndarray[Any, np.dtype[np.float32]]
# A true value this close to the midpoint between two floats is in doubt, in units of the last place: among a million
# values, all those that torch rounds the wrong way lie within 0.065.
_DOUBT = 0.08
_LEAST = 1e-37  # smallest normal float; far below anything a pixel can show

# Sleef's expf: argument reduction by ln 2 in two parts, then a polynomial, highest power first.
_LOG2_E = np.float32(1.442695040888963407)
_LN2_UPPER, _LN2_LOWER = np.float32(0.693145751953125), np.float32(1.428606765330187045e-06)
_POLYNOMIAL = (
    np.float32(0.000198527617612853646),
    np.float32(0.00139304355252534151),
    np.float32(0.00833336077630519867),
    np.float32(0.0416664853692054749),
    np.float32(0.166666671633720398),
    np.float32(0.5),
)
_UNDERFLOW = np.float32(-104.0)


def weights(count: int, sigma: float, api: str = "v1", lanes: int = 16) -> Floats:
    """Return weights that add up to one.

    Args:
        count: Number of weights; odd.
        sigma: Standard deviation in pixels.
        api: Which bits to reproduce: torchvision's "v1" or "v2".
        lanes: How many numbers a torch vector holds, for v2.
    """
    if api == "v1":
        bell = np.array([portable.exp(max(float(e), -200.0)) for e in _exponents(count, sigma)], np.float32)
        return bell / _sum(bell)
    bell = _vector_exp(_softmax_exponents(count, sigma))
    return bell * (np.float32(1.0) / _reduce(bell, lanes))


def is_sure(count: int, sigma: float) -> bool:
    """Return whether v1's weights are the same no matter how the last bit of exp is rounded."""
    for exponent in _exponents(count, sigma)[: count // 2]:  # the others mirror them
        value = portable.exp(max(float(exponent), -200.0))
        if value < _LEAST:
            continue
        mantissa = math.ldexp(math.frexp(value)[0], 24)  # a float32 has 24 bits
        if abs(mantissa - math.floor(mantissa) - 0.5) < _DOUBT:
            return False
    return True


def _exponents(count: int, sigma: float) -> Floats:
    x = np.arange(count, dtype=np.float32) - np.float32((count - 1) * 0.5)
    ratio = x / np.float32(sigma)
    return np.asarray(np.float32(-0.5) * (ratio * ratio))


def _softmax_exponents(count: int, sigma: float) -> Floats:
    limit = (count - 1) / (2.0 * math.sqrt(2.0))
    x = np.array([linspace(-limit, limit, count, index) for index in range(count)], np.float32)
    ratio = x / np.float32(sigma)
    exponents = -(ratio * ratio)
    return np.asarray(exponents - exponents.max())


def linspace(start: float, end: float, count: int, index: int) -> float:
    """Return one element of torch.linspace in float32, counted from the nearer end and rounded only once."""
    if count == 1:
        return float(np.float32(start))
    step = float((np.float32(end) - np.float32(start)) / np.float32(count - 1))
    if index < count // 2:
        return float(np.float32(float(np.float32(start)) + step * index))
    return float(np.float32(float(np.float32(end)) - step * (count - index - 1)))


def _vector_exp(x: Floats) -> Floats:
    """Return exp as Sleef computes it, with a relative error below one unit in the last place."""
    power = np.rint(x * _LOG2_E)
    rest = _multiply_add(power, -_LN2_LOWER, _multiply_add(power, -_LN2_UPPER, x))
    series = np.full_like(x, _POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        series = _multiply_add(series, rest, factor)
    series = np.float32(1.0) + _multiply_add(rest * rest, series, rest)
    whole = np.ldexp(series.astype(np.float64), power.astype(np.int32)).astype(np.float32)
    return np.asarray(np.where(x < _UNDERFLOW, np.float32(0.0), whole))


def _multiply_add(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    """Return a·b + c, rounded once: the product of two floats is exact in float64."""
    return np.asarray(a.astype(np.float64) * np.float64(b) + np.float64(c)).astype(np.float32)


def _reduce(values: Floats, lanes: int) -> np.float32:
    """Add floats as torch's softmax does: all vectors into one, the rest into its first lanes, then half onto half."""
    if len(values) < lanes:
        total = np.float32(0.0)
        for value in values:
            total += value
        return total
    whole = len(values) // lanes * lanes
    sums = values[:lanes].copy()
    for start in range(lanes, whole, lanes):
        sums += values[start : start + lanes]
    sums[: len(values) - whole] += values[whole:]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return np.float32(sums[0])


def _sum(values: Floats) -> np.float32:
    """Add floats in the order of torch's sum.

    Float addition is not associative, and a sum that differs in the last bit would change every weight. Eight lanes are
    summed side by side, then the remaining numbers are added one by one, then the lanes are added up; fewer than eight
    numbers form one lane.
    """
    lanes = 8 if len(values) >= 8 else 1
    rows = values[: len(values) // lanes * lanes].reshape(-1, lanes)
    columns = _add_rows(rows)
    if lanes == 1:
        return np.float32(columns[0])
    total = np.float32(0)
    for value in (*values[rows.size :], *columns):
        total += value
    return total


def _add_rows(rows: Floats) -> Floats:
    """Add rows to four accumulators in turn, the remaining rows to the first, then add up the accumulators."""
    turns = len(rows) // 4
    sums = np.zeros((4, rows.shape[1]), np.float32)
    for turn in rows[: turns * 4].reshape(turns, *sums.shape):
        sums += turn
    for row in rows[turns * 4 :]:
        sums[0] += row
    return np.asarray(((sums[0] + sums[1]) + sums[2]) + sums[3])
