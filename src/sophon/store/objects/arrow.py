"""Pictures in a column of an Arrow table that is in memory or mapped: bytes, or paths of files.

Concurrency: the table is only read; a mapped one is shared by threads and forked children.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sophon.errors import StoreError
from sophon.store.manifest import Manifest
from sophon.store.store import Progress, Store, describe


class ArrowStore(Store):
    """Samples in the rows of a table that is already open.

    Args:
        path: The file of the table, or "memory".
        name: Name of the data set.
        manifest: Its samples, with the row of each.
        table: The table with the column; it is pickled with the store (Hugging Face's mapped tables pickle their
            paths).
        column: Name of the column, of struct{bytes, path}.
    """

    kind = "arrow"

    def __init__(self, path: Path, name: str, manifest: Manifest, table: Any, column: str) -> None:
        super().__init__(path, name, manifest)
        self._table = table
        self._name_of_column = column
        self._column = table.column(column)
        self._rows = manifest.locations["row"].to_numpy()

    @classmethod
    def scan(cls, path: Path, on_progress: Progress | None = None) -> Manifest:  # noqa: ARG003 - part of the contract
        """Raise: a table is given as an object."""
        raise StoreError(f"{path}: a table in memory cannot be opened by a path; give the object")

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:  # noqa: ARG003 - part of the contract
        """Return False, since nothing is cached."""
        return False

    def changed_ns(self, index: int) -> int:
        """Return the modification time of a picture file; 0 for bytes in the table, which never change."""
        path = self._value(index)[1]
        try:
            return 0 if path is None else os.stat(path).st_mtime_ns  # noqa: PTH116 - as for folders
        except OSError as error:
            raise self._failure(index, f"its file cannot be examined: {describe(error)}", "Restore it.") from error

    def holding(self, manifest: Manifest) -> Store:
        """Return a store of other samples of the same table."""
        assert isinstance(self.path, Path)
        return ArrowStore(self.path, self.name, manifest, self._table, self._name_of_column)

    def _value(self, index: int) -> tuple[bytes | None, str | None]:
        """Return the bytes of a sample, or the path of its file."""
        value = self._column[int(self._rows[index])].as_py()
        data = value.get("bytes")
        return (data, None) if data is not None else (None, value.get("path"))

    def _read(self, index: int) -> bytes:
        data, path = self._value(index)
        if path is None:
            return data or b""
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise self._failure(index, f"its file cannot be read: {describe(error)}", "Restore it.") from error

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.name, self.manifest, self._table, self._name_of_column))
