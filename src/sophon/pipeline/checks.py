"""Checks of op parameters: each returns the canonical value or raises `ConfigError`.

Canonical means that two ops that do the same thing have equal fields, hence equal specs and fingerprints: sizes become
pairs, sequences tuples, numbers floats where a float is meant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from sophon.errors import ConfigError

MAX_SIDE = 65_535  # pixels; no JPEG, WebP or screen is larger, and a hostile spec is stopped here
FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT_MAX = float(np.finfo(np.float64).max)
Fill: TypeAlias = float | tuple[float, ...]


def fail(where: str, found: object, expected: str) -> ConfigError:
    """Return the error for an unexpected parameter value."""
    text = repr(found)
    return ConfigError(f"{where}: expected {expected}, got {text if len(text) <= 200 else text[:199] + '…'}")


def integer(where: str, value: Any, low: int, high: int) -> int:
    """Check an integer in low … high."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise fail(where, value, f"an integer in {low} … {high}")
    return int(value)


def number(where: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Check a finite number in low … high."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.number)
        or not -_FLOAT_MAX <= value <= _FLOAT_MAX  # not math.isfinite, which fails on an integer of 400 digits
        or not low <= value <= high
    ):
        bounds = "" if (low, high) == (-math.inf, math.inf) else f" in {low:g} … {high:g}"
        raise fail(where, value, f"a finite number{bounds}")
    return float(value)


def probability(where: str, value: Any) -> float:
    """Check a number in 0 … 1."""
    return number(where, value, 0.0, 1.0)


def flag(where: str, value: Any) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise fail(where, value, "true or false")
    return value


def choice(where: str, value: Any, options: Sequence[str]) -> str:
    """Check that a value is one of the given names."""
    if not isinstance(value, str) or value not in options:
        raise fail(where, value, "one of " + ", ".join(options))
    return value


def sequence(where: str, value: Any, lengths: Sequence[int]) -> tuple[Any, ...]:
    """Check a list or tuple of one of the given lengths."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or len(value) not in lengths:
        raise fail(where, value, "a sequence of " + " or ".join(map(str, lengths)) + " elements")
    return tuple(value)


def size(where: str, value: Any) -> tuple[int, int]:
    """Check a size in pixels, an integer for a square or (height, width)."""
    if isinstance(value, int | np.integer):
        value = (value, value)
    parts = sequence(where, value, (1, 2))
    height, width = (parts[0], parts[-1])
    return integer(where, height, 1, MAX_SIDE), integer(where, width, 1, MAX_SIDE)


def interval(where: str, value: Any, low: float = -math.inf, high: float = math.inf) -> tuple[float, float]:
    """Check (minimum, maximum) in order and within bounds."""
    first, last = sequence(where, value, (2,))
    pair = number(where, first, low, high), number(where, last, low, high)
    if pair[0] > pair[1]:
        raise fail(where, value, "(minimum, maximum) in this order")
    return pair


def padding(where: str, value: Any) -> tuple[int, int, int, int]:
    """Check a padding in pixels: all sides, (left/right, top/bottom) or (left, top, right, bottom)."""
    if isinstance(value, int | np.integer):
        value = (value,)
    parts = sequence(where, value, (1, 2, 4))
    left, top, right, bottom = parts * (4 // len(parts))
    return (
        integer(where, left, 0, MAX_SIDE),
        integer(where, top, 0, MAX_SIDE),
        integer(where, right, 0, MAX_SIDE),
        integer(where, bottom, 0, MAX_SIDE),
    )


def fill(where: str, value: Any) -> Fill:
    """Check a fill colour: a number for all channels or one number per channel."""
    if isinstance(value, int | float | np.number):
        return number(where, value, 0.0, 255.0)
    parts = tuple(number(where, part, 0.0, 255.0) for part in sequence(where, value, (1, 3)))
    return parts if len(parts) == 3 else parts[0]
