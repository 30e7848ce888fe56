"""Finds the picture, label and other columns of a Parquet file in the layout of Hugging Face's data sets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sophon.errors import StoreError

IMAGE = "image"  # the first field, whatever its column is called
_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "picture", "audio")
_LABEL_NAMES = ("label", "labels", "cls", "class", "class_id", "target", "fine_label", "coarse_label")


@dataclass(frozen=True)
class Roles:
    """The roles of a file's columns.

    Args:
        image: Picture column.
        bytes_path: Path of the column with its bytes: the picture column itself, or ``image.bytes`` if that is a
            struct.
        name_path: File name column, or None.
        label: Label column, or None.
        classes: Names of the classes, if the file has them.
        others: All other columns, except further columns of bytes.
        fields: Further columns of bytes that belong to a sample: the name of each, and where its bytes are.
    """

    image: str
    bytes_path: str
    name_path: str | None
    label: str | None
    classes: tuple[str, ...]
    others: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The paths of all byte columns: the picture's and those of further fields."""
        return ((self.image, self.bytes_path), *self.fields)

    def describe(self) -> str:
        """Return the roles in words."""
        classes = f" of {len(self.classes)} classes" if self.classes else ""
        label = f"labels in {self.label!r}{classes}" if self.label else "no labels"
        return f"pictures in {self.bytes_path!r} and {label}"


def roles_of(schema: pa.Schema, where: str, fields: tuple[str, ...] = ()) -> Roles:
    """Return the roles of a file's columns.

    Args:
        schema: Schema of the file.
        where: Name of the file for messages.
        fields: Columns that make up a sample: first the picture column, or "image" to find it, then the others.

    Raises:
        StoreError: There is no picture column or more than one, or a field does not exist.
    """
    if len(set(schema.names)) != len(schema.names):
        raise StoreError(f"{where} has several columns with the same name: {', '.join(schema.names)}; rename them")
    pictures = [column for column in schema if _holds_bytes(column.type)]
    by_name = {column.name: column for column in pictures}
    image = by_name.get(fields[0]) if fields else None
    if image is None and fields[:1] in ((), (IMAGE,)):
        image = _choose(pictures, _IMAGE_NAMES)
    for name in fields[1:] if image is not None else fields:
        if name not in by_name:
            there_is = ", ".join(by_name) or "none"
            raise StoreError(f"{where} has no byte column {name!r}; choose from {there_is}")
    if image is None:
        found = ", ".join(column.name for column in pictures) or "none"
        raise StoreError(
            f"{where}: expected one column of binary or struct{{bytes, path}}, or one named "
            f"{', '.join(_IMAGE_NAMES[:3])}, found {found} among {', '.join(schema.names)}; "
            "rename the picture column"
        )
    features = _features(schema)
    # Names that begin with __ are the pandas index, an integer column that is not a label.
    integers = [column for column in schema if pa.types.is_integer(column.type) and not column.name.startswith("__")]
    named = [column for column in integers if _class_names(features, column.name)]
    label = named[0] if len(named) == 1 else _choose(integers, _LABEL_NAMES)
    taken = {column.name for column in pictures} | ({label.name} if label is not None else set())
    is_struct = pa.types.is_struct(image.type)
    return Roles(
        image=image.name,
        bytes_path=_bytes_path(image),
        name_path=f"{image.name}.path" if is_struct and _has_path(image.type) else None,
        label=None if label is None else label.name,
        classes=() if label is None else _class_names(features, label.name),
        others=tuple(name for name in schema.names if name not in taken),
        fields=tuple((name, _bytes_path(by_name[name])) for name in fields[1:]),
    )


def _bytes_path(column: pa.Field) -> str:
    return f"{column.name}.bytes" if pa.types.is_struct(column.type) else str(column.name)


def _choose(columns: list[pa.Field], names: tuple[str, ...]) -> pa.Field | None:
    by_name = {column.name.lower(): column for column in columns}
    for name in names:
        if name in by_name:
            return by_name[name]
    return columns[0] if len(columns) == 1 else None


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        at = kind.get_field_index("bytes")
        return bool(at >= 0 and _is_binary(kind.field(at).type))
    return _is_binary(kind)


def _has_path(kind: pa.DataType) -> bool:
    at = kind.get_field_index("path")
    return bool(at >= 0 and kind.field(at).type in (pa.string(), pa.large_string()))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _features(schema: pa.Schema) -> dict[str, Any]:
    try:
        found: Any = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        found = found["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _class_names(features: dict[str, Any], column: str) -> tuple[str, ...]:
    feature = features.get(column)
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()
