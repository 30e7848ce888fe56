"""Turns the label column of a listing into numbers or sorted classes, or leaves it as an ordinary column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.store.listing.rows import Listing
from sophon.store.manifest import NO_LABEL
from sophon.store.pages.identity import Int64Array

_SEPARATORS: Final = ("|", ";", ",")
_PLURAL: Final = ("labels", "tags", "classes", "categories")  # in such a column, several words mean several labels


@dataclass(frozen=True)
class Labels:
    """The labels of all rows of a listing.

    Args:
        numbers: One per row, -1 for a row without a label; None if no row has one.
        classes: Class names, if labels are strings; a number is an index into them.
        column: The column of the listing that became these labels.
        note: A message for the user.
    """

    numbers: Int64Array | None = None
    classes: tuple[str, ...] = ()
    column: str | None = None
    note: str = ""


def labels_of(listing: Listing, is_told: bool) -> Labels:
    """Return the labels of all rows of a listing, so that a selection does not change their numbers.

    Args:
        listing: The listing that was read.
        is_told: Whether the user named the column; otherwise it was found by its name.
    """
    name = listing.label
    if name is None:
        return Labels()
    column = listing.table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type) and not _exceeds(column):
        return Labels(pc.fill_null(column.cast(pa.int64()), NO_LABEL).to_numpy(), column=name)
    kept = f"column {name!r} of {listing.file} is not used as a label"
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return Labels(note=f"{kept}, since it holds {column.type}; ask for it with columns=[{name!r}]")
    values = pc.drop_null(pc.unique(column))
    classes = sorted(value for value in values.to_pylist() if value)
    if not is_told and _holds_several(name, classes):
        return Labels(
            note=f"{kept}, since its values seem to contain several labels each; ?label={name} uses them as classes"
        )
    if not classes:
        return Labels(note=f"column {name!r} of {listing.file} contains no label")
    numbers = pc.index_in(column, value_set=pa.array(classes, column.type))
    return Labels(pc.fill_null(numbers, NO_LABEL).to_numpy().astype(np.int64), tuple(classes), name)


def _exceeds(column: pa.ChunkedArray) -> bool:
    most = pc.max(column).as_py()
    return most is not None and most > np.iinfo(np.int64).max


def _holds_several(name: str, values: list[str]) -> bool:
    """Return whether strings share so many words that there are fewer distinct words than strings."""
    for separator in (*_SEPARATORS, *((" ",) if name.lower() in _PLURAL else ())):
        if any(separator in value for value in values):
            parts = {part.strip() for value in values for part in value.split(separator)}
            if len(parts) < len(values) or (name.lower() in _PLURAL and any(value in parts for value in values)):
                return True
    return False
