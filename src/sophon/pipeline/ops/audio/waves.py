"""Sines, Bessel's I₀ and Fourier transforms, using only additions, multiplications and divisions.

The C library's sine and every FFT library may round differently on another machine. Here each number comes from basic
IEEE operations on float64 arrays in a fixed order, so spectrograms and filters have the same bits everywhere. Real and
imaginary parts are separate arrays, because NumPy multiplies complex numbers with fused multiply-adds on processors
that have them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Reals: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Pair: TypeAlias = tuple[Reals, Reals]

_PI = 3.141592653589793


def sines(numerators: Any, denominator: int) -> Pair:
    """Return cosine and sine of 2π times each fraction; angles are reduced exactly to the first eighth of a turn."""
    turn = np.asarray(numerators, np.int64) % denominator * 8
    eighth, rest = turn // denominator, turn % denominator
    # Measured from the nearer end of the eighth: odd eighths run backwards.
    is_odd = eighth % 2 == 1
    angle = np.where(is_odd, denominator - rest, rest) / (8.0 * denominator) * (2.0 * _PI)
    square = angle * angle
    cos, sin = np.ones_like(angle), np.ones_like(angle)
    for k in range(20, 0, -2):  # up to π / 4: the 20th term is below 1e-20
        cos = 1.0 - cos * square / (k * (k - 1))
        sin = 1.0 - sin * square / (k * (k + 1))
    sin = sin * angle
    swap = (eighth + 1) // 2 % 2 == 1
    cos, sin = np.where(swap, sin, cos), np.where(swap, cos, sin)
    cos = np.where((eighth >= 2) & (eighth < 6), -cos, cos)
    return cos, np.where(eighth >= 4, -sin, sin)


def bessel_i0(x: Reals) -> Reals:
    """Return the modified Bessel function of order 0, for |x| ≤ 20."""
    quarter = x * x / 4.0
    total = np.ones_like(quarter)
    for k in range(60, 0, -1):
        total = 1.0 + total * quarter / (k * k)
    return total


def fft(real: Reals) -> Pair:
    """Return the discrete Fourier transform of real rows: real and imaginary parts of bins 0 … n // 2."""
    length = real.shape[-1]
    re, im = _fft(real, None)
    return re[..., : length // 2 + 1], im[..., : length // 2 + 1]


def _fft(re: Reals, im: Reals | None) -> Pair:
    """Transform rows by repeatedly dividing their length by its smallest factor (Cooley and Tukey)."""
    length = re.shape[-1]
    if length == 1:
        return re, np.zeros_like(re) if im is None else im
    radix = _smallest_factor(length)
    # Row r of each array holds every radix-th number, starting with the r-th.
    parts_re = np.ascontiguousarray(np.moveaxis(re.reshape(*re.shape[:-1], length // radix, radix), -1, 0))
    parts_im = (
        None
        if im is None
        else np.ascontiguousarray(np.moveaxis(im.reshape(*re.shape[:-1], length // radix, radix), -1, 0))
    )
    re, im = _fft(parts_re, parts_im)
    if radix == 2:
        cos, sin = _turns(length, 1, length // 2)
        odd_re, odd_im = re[1] * cos + im[1] * sin, im[1] * cos - re[1] * sin
        return (
            np.concatenate((re[0] + odd_re, re[0] - odd_re), axis=-1),
            np.concatenate((im[0] + odd_im, im[0] - odd_im), axis=-1),
        )
    out_re, out_im = np.concatenate((re[0],) * radix, axis=-1), np.concatenate((im[0],) * radix, axis=-1)
    for part in range(1, radix):
        cos, sin = _turns(length, part, length)
        part_re, part_im = np.concatenate((re[part],) * radix, axis=-1), np.concatenate((im[part],) * radix, axis=-1)
        out_re += part_re * cos + part_im * sin
        out_im += part_im * cos - part_re * sin
    return out_re, out_im


@lru_cache(maxsize=256)
def _turns(length: int, step: int, count: int) -> Pair:
    return sines(np.arange(count) * step, length)


def _smallest_factor(length: int) -> int:
    return next((factor for factor in range(2, int(length**0.5) + 1) if length % factor == 0), length)
