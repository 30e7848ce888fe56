"""FileSet: the files behind a data set that was given as an object."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sophon.errors import ConfigError, StoreError
from sophon.store.folder import FolderStore
from sophon.store.manifest import Manifest, encode_name
from sophon.store.pages.identity import Int64Array
from sophon.store.store import Store, describe


@dataclass(frozen=True)
class FileSet:
    """The files behind an object's samples, and the transforms that the object applies to them.

    Args:
        store: Where the bytes are. Its labels are indexes into `targets` if these are given, and otherwise the targets
            themselves.
        title: Description of the object, in words.
        transform: A callable that the object applies to pictures.
        target_transform: A callable that the object applies to targets.
        targets: One per sample, if they are not all integers.
        decode: Arguments for `Decode` that give the same pictures as the object.
        item: Returns (picture, target) of one sample as the object gives them, before it transforms them; None if they
            should not be compared.
        refusal: Why the object's transforms cannot be used although its files can; "" if they can.
    """

    store: Store
    title: str
    transform: Callable[[Any], Any] | None = None
    target_transform: Callable[[Any], Any] | None = None
    targets: Sequence[Any] | None = None
    decode: dict[str, Any] = field(default_factory=dict)
    item: Callable[[int], tuple[Any, Any]] | None = None
    refusal: str = ""

    def __len__(self) -> int:
        return len(self.store)

    def select(self, rows: npt.NDArray[np.int64]) -> FileSet:
        """Return some of the samples, in the order given."""
        manifest = self.store.manifest.select(rows)
        item = self.item
        targets = self.targets
        if targets is not None:
            targets = [targets[row] for row in rows.tolist()]
            manifest = replace(manifest, labels=np.arange(len(rows)))
        store = self.store.holding(manifest)
        selected = None if item is None else lambda index: item(int(rows[index]))
        return replace(self, store=store, targets=targets, item=selected)


def labels_of(targets: Sequence[Any] | None) -> tuple[Int64Array | None, Sequence[Any] | None]:
    """Return targets as (labels, None) if all are integers, else as (their positions, targets).

    Only values that torch collates to int64 count as integers, so that batches match the object's own.
    """
    if targets is None:
        return None, None
    if all(type(target) in (int, np.int64) for target in targets):
        return np.asarray(targets, np.int64), None
    return np.arange(len(targets)), targets


def store_of(paths: Sequence[Any], labels: Int64Array | None, classes: Sequence[str], title: str) -> Store:
    """Return the store of files that an object names.

    Raises:
        ConfigError: There is no file, or an entry is not a path.
        StoreError: A file does not exist; the message names it.
    """
    if not len(paths):
        raise ConfigError(f"{title} has no samples")
    for index, path in enumerate(paths):
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"{title}: expected the path of a file for sample {index}, got {path!r:.60}")
    places = [os.path.abspath(os.fspath(path)) for path in paths]  # noqa: PTH100 - a million Paths take seconds
    root = os.path.commonpath({os.path.dirname(place) for place in places})  # noqa: PTH120 - as above
    start = len(root.rstrip("/")) + 1
    sizes = np.empty(len(places), np.int64)
    for index, place in enumerate(places):
        try:
            sizes[index] = os.stat(place).st_size  # noqa: PTH116 - as above
        except OSError as error:
            raise StoreError(f"{title}: sample {index}, {place}: {describe(error)}. Restore the file.") from error
    names = [place[start:] for place in places]
    locations = pa.table({})
    try:
        ids = pa.array(names, pa.large_string())
    except (UnicodeEncodeError, pa.ArrowException):
        # As for folders: a name that is not UTF-8 is shown escaped, and the file is opened by its path as it is.
        ids = pa.array([os.fsencode(name).decode("utf-8", "backslashreplace") for name in names], pa.large_string())
        locations = pa.table({"path": pa.array([encode_name(name) for name in names], pa.large_binary())})
    known = tuple(map(str, classes)) if labels is not None else ()
    manifest = Manifest(FolderStore.kind, ids, sizes, labels, known, locations=locations)
    return FolderStore(Path(root), Path(root).name or "data", manifest)
