"""The result of reading annotations: the values of each field, sample by sample, or the problem with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sophon.store.fields import Field

_LARGEST = float(np.finfo(np.float32).max)
MOST_OBJECTS = 100_000  # in one picture; more is a damaged file


class Broken(Exception):  # noqa: N818 - becomes the problem of one sample
    """Raised when a sample's annotation is unusable; the text says why."""


@dataclass
class Found:
    """The fields of many samples, one entry each.

    Args:
        fields: The fields that were found.
        values: The bytes of each field, by field name.
        problems: Why each sample has no values; "" if it has some.
        classes: Names of the labels, if known.
        columns: Further columns.
        sources: Files and folders that were read: names, sizes (-1 for folders), mtimes and ctimes.
        notes: Messages for the user.
    """

    fields: tuple[Field, ...]
    values: dict[str, list[bytes]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    columns: dict[str, list[Any]] = field(default_factory=dict)
    sources: list[tuple[str, int, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, values: dict[str, bytes], problem: str = "") -> None:
        """Add a sample; a field that is not given is empty."""
        for one in self.fields:
            self.values.setdefault(one.name, []).append(values.get(one.name, b""))
        self.problems.append(problem)


def shown(value: object) -> str:
    """Return a value, however large, as text for a message."""
    if isinstance(value, int) and value.bit_length() > 64:  # which Python may refuse to print
        return "a number of more than 64 bits"
    return f"{value!r:.40}"


def floats(numbers: Iterable[Any], what: str) -> bytes:
    """Return numbers as float32, in little-endian byte order.

    Raises:
        Broken: A number is not finite.
    """
    found = list(numbers)
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= _LARGEST:
            raise Broken(f"{what}: expected finite numbers, got {shown(number)}")
    return np.array(found, "<f4").tobytes()


def integers(numbers: Sequence[Any], what: str) -> bytes:
    """Return numbers as int64.

    Raises:
        Broken: A number is not an integer.
    """
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**63:
            raise Broken(f"{what}: expected integers, got {shown(number)}")
    return np.array(numbers, "<i8").tobytes()
