"""Hugging Face's `datasets`, with pictures in Arrow tables; recognised by class, the package is never imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import ConfigError, StoreError
from sophon.store.manifest import NO_LABEL, Manifest
from sophon.store.objects.arrow import ArrowStore
from sophon.store.objects.fileset import FileSet, labels_of
from sophon.store.store import describe

_PICTURES: Final = ("image", "img", "picture", "jpg", "png")
_LABELS: Final = ("label", "labels", "fine_label", "target", "class", "category", "cls")


def is_huggingface(data: object) -> bool:
    """Return whether an object comes from the package `datasets`."""
    return any(base.__module__.split(".")[0] == "datasets" for base in type(data).__mro__)


def files_of_huggingface(data: Any, picture: str | None = None, label: str | None = None) -> FileSet:
    """Return the pictures of a `datasets.Dataset`.

    Args:
        data: The data set.
        picture: The picture column; found automatically if there is only one.
        label: The label column; by default it is found by its feature or name.

    Raises:
        ConfigError: The data set has several splits or no index, or the column is ambiguous; the message says what to
            try.
        StoreError: A row has no picture.
    """
    kind = type(data).__name__
    if not any((b.__module__, b.__name__) == ("datasets.arrow_dataset", "Dataset") for b in type(data).__mro__):
        what = "has several splits; give one, such as ds['train']" if "Dict" in kind else "has no indexable samples"
        raise ConfigError(f"a Hugging Face {kind} {what}; expected a datasets.Dataset")
    title = "Hugging Face's data set"
    if not len(data):
        raise ConfigError(f"{title} has no samples")
    image = _picture_column(data, picture, title)
    target = _label_column(data, label, image, title)
    rows = _rows(data)
    table = data.data
    pictures = table.column(image)
    sizes, files = _sizes(pictures, rows, title)
    targets = None if target is None else _values(table.column(target), rows)
    feature = None if target is None else data.features[target]
    is_class = type(feature).__name__ == "ClassLabel"
    if is_class and targets is not None:
        targets = [NO_LABEL if value is None else value for value in targets]
    labels, others = labels_of(targets)
    names = tuple(getattr(feature, "names", ())) if is_class and others is None else ()
    manifest = Manifest(
        ArrowStore.kind,
        pa.array([name or f"{image}#{row}" for name, row in zip(files, rows.tolist(), strict=True)], pa.large_string()),
        sizes,
        labels,
        names,
        columns=_columns(table, data, {image, target}, rows),
        locations=pa.table({"row": rows}),
    )
    where = [file["filename"] for file in getattr(data, "cache_files", [])]
    store = ArrowStore(Path(where[0]) if where else Path("memory"), "data", manifest, table, image)
    mode = getattr(data.features[image], "mode", None)
    decode = {"mode": mode or "RGB", "upright": True}
    refusal = ""
    if (data.format or {}).get("type") is not None:
        refusal = f"its format is {data.format['type']!r}; give the transform as pipeline, and ds.with_format(None)"
    return FileSet(store, title, None, None, others, decode, _item(data, image, target, mode or "RGB"), refusal)


def _item(data: Any, image: str, target: str | None, mode: str) -> Callable[[int], tuple[Any, Any]]:
    plain = data.with_format(None)

    def item(index: int) -> tuple[Any, Any]:
        row = plain[index]
        found = row[image]
        if not hasattr(found, "convert"):  # Image(decode=False)
            found = None
        return None if found is None else found.convert(mode), row[target] if target is not None else None

    return item


def _picture_column(data: Any, told: str | None, title: str) -> str:
    found = [str(name) for name, feature in data.features.items() if type(feature).__name__ == "Image"]
    if told is not None:
        if told not in found:
            raise ConfigError(f"{title} has no picture column {told!r}; found {', '.join(found) or 'none'}")
        return told
    named = [name for name in found if name.lower() in _PICTURES]
    if len(found) == 1 or len(named) == 1:
        return found[0] if len(found) == 1 else named[0]
    raise ConfigError(
        f"{title}: expected one column with the feature Image, found {', '.join(found) or 'none'} among "
        f"{', '.join(data.features)}; specify it with sophon.from_dataset(ds, path=COLUMN), or use cast_column with "
        "Image()"
    )


def _label_column(data: Any, told: str | None, image: str, title: str) -> str | None:
    if told is not None:
        if told not in data.features or told == image:
            raise ConfigError(f"{title} has no column {told!r}; choose from {', '.join(data.features)}")
        return told
    classes = [str(name) for name, feature in data.features.items() if type(feature).__name__ == "ClassLabel"]
    if len(classes) == 1:
        return classes[0]
    others = [name for name in data.features if name != image]
    return next((name for name in _LABELS if name in others), None)


def _rows(data: Any) -> Any:
    indices = getattr(data, "_indices", None)
    if indices is None:
        return np.arange(len(data), dtype=np.int64)
    return indices.column(0).to_numpy().astype(np.int64)


def _values(column: pa.ChunkedArray, rows: Any) -> list[Any]:
    values: list[Any] = column.take(pa.array(rows)).to_pylist()
    return values


def _columns(table: Any, data: Any, taken: set[str | None], rows: Any) -> pa.Table:
    names = [name for name, feature in data.features.items() if name not in taken and type(feature).__name__ == "Value"]
    return pa.table({name: table.column(name).take(pa.array(rows)) for name in names})


def _sizes(pictures: pa.ChunkedArray, rows: Any, title: str) -> tuple[Any, list[str]]:
    """Return the size of each picture in bytes, and its file name if it has one."""
    lengths = pc.fill_null(pc.binary_length(pc.struct_field(pictures, "bytes")), -1).to_numpy()[rows].astype(np.int64)
    names = pc.struct_field(pictures, "path").take(pa.array(rows)).to_pylist()
    for at in np.flatnonzero(lengths < 0).tolist():
        if names[at] is None:
            raise StoreError(f"{title}: row {at} has no picture; leave it out with ds.filter or ds.select")
        if "://" in names[at]:
            raise ConfigError(f"{title}: row {at} is at {names[at]}, not on this machine; save_to_disk embeds pictures")
        try:
            lengths[at] = Path(names[at]).stat().st_size
        except OSError as error:
            raise StoreError(f"{title}: row {at}, {names[at]}: {describe(error)}. Restore the file.") from error
    return lengths, [name or "" for name in names]
