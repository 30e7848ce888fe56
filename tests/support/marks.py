"""Marks for cases of a matrix: one of each kind runs by default, the others with `make test-slow`."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Return cases of a parameter, or of several as tuples, that run with `make test-slow` only."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]
