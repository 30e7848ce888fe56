"""Reads untrusted result files: values are checked; missing ones become None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sophon.errors import ArtifactError

_LONGEST_TEXT = 200


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a number of zero or more, or None if it is missing."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ArtifactError(f"{key} is {str(value)[:40]!r}; a number of zero or more was expected: recreate the file.")
    return float(value)


def numbers(row: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """Return a list of numbers, empty if it is missing."""
    values = row.get(key)
    if values is None:
        return ()
    if not isinstance(values, list):
        raise ArtifactError(f"{key} is a {type(values).__name__}; a list of numbers was expected: recreate the file.")
    found = [number({key: value}, key) for value in values]
    return tuple(value for value in found if value is not None)


def text(row: Mapping[str, Any], key: str, default: str = "") -> str:
    """Return a string, cut to a length that a page can hold."""
    value = row.get(key)
    return default if value is None else str(value)[:_LONGEST_TEXT]


def part(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object, empty if it is missing."""
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArtifactError(f"{key} is a {type(value).__name__}; an object was expected: recreate the file.")
    return value


def parts(row: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Return an object of objects."""
    found = part(row, key)
    return {name[:_LONGEST_TEXT]: part(found, name) for name in found}


def rows(row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects, empty if it is missing."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ArtifactError(f"{key} is not a list of objects; recreate the file.")
    return value
