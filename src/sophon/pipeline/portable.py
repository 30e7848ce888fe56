"""exp and log, using only additions, multiplications and divisions.

The C library's versions may differ in the last bit between machines, and NumPy's between instruction sets. Random
parameters must be the same everywhere, so whatever `draw` computes uses only basic IEEE 754 operations, whose results
are defined to the bit. The error is a few units in the last place, which makes no difference to any distribution.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np

Real = TypeVar("Real", float, "np.ndarray[tuple[int, ...], np.dtype[np.float64]]")

_LN2_HIGH = 0.693147180369123816490  # ln 2 in two parts (fdlibm): the high one has trailing zero bits,
_LN2_LOW = 1.90821492927058770002e-10  # so that its product with a small integer is exact


def exp(x: float) -> float:
    """Return e**x for |x| < 700."""
    n = round(x / 0.6931471805599453)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    total = 1.0
    for k in range(18, 0, -1):  # |r| < 0.35: the 18th term is below 1e-24
        total = 1.0 + total * r / k
    return math.ldexp(total, n)


def exp_array(
    x: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return `exp` of every element."""
    n = np.rint(x / 0.6931471805599453)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    total = np.ones_like(r)
    for k in range(18, 0, -1):  # in place: drawing a million crops spends most of its time here
        total *= r
        total /= k
        total += 1.0
    return np.ldexp(total, n.astype(np.int32))


@lru_cache(maxsize=256)  # ops need the logarithms of their bounds for every sample
def log(x: float) -> float:
    """Return the natural logarithm of a positive float."""
    mantissa, exponent = math.frexp(x)
    return _log(mantissa, float(exponent))


def log_array(
    x: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the natural logarithm of every element of a positive array."""
    mantissa, exponent = np.frexp(x)
    return _log(mantissa, exponent.astype(np.float64))


def _log(mantissa: Real, exponent: Real) -> Real:
    # mantissa is in [0.5, 1): |s| <= 1/3, and log(mantissa) = 2 atanh(s), whose 35th power is below 1e-17.
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = square * 0.0
    for k in range(35, 1, -2):
        series = square * (series + 1.0 / k)
    return exponent * _LN2_HIGH + (2.0 * s * (series + 1.0) + exponent * _LN2_LOW)
