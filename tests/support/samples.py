"""What tests of distributions share: many draws of an op, and a test that two samples have one distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sophon.pipeline import Key, Op, Rng, spec_of

DRAWS = 4_000


def draws(op: Op, value: Any, count: int = DRAWS, position: int = 1) -> list[Any]:
    """Return the parameters that an op draws for many samples like this value."""
    spec = spec_of(value)
    return [op.draw(Rng(Key(1, 0, sample), position), spec) for sample in range(count)]


def agree(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> None:
    """Two-sample Kolmogorov–Smirnov test at 0.01 %, with ties, which make it stricter than it says."""
    ours, theirs = np.sort(np.asarray(ours, float)), np.sort(np.asarray(theirs, float))
    grid = np.concatenate([ours, theirs])
    gap = np.abs(
        np.searchsorted(ours, grid, "right") / len(ours) - np.searchsorted(theirs, grid, "right") / len(theirs)
    ).max()
    assert gap < 2.23 * math.sqrt((len(ours) + len(theirs)) / (len(ours) * len(theirs))), gap
