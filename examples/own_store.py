"""A store of one's own: photos in the rows of an SQLite file, served by a storage node.

    python examples/own_store.py photos/ photos.db                       # put a folder of class folders into a file
    PYTHONPATH=examples sophon serve photos.db --import own_store        # serve it

A trainer needs nothing of this: ``sophon.DataLoader("grpc://HOST:7077/photos", …)``. To read the file without a node,
import this module first, and give the path: ``import own_store; sophon.DataLoader("photos.db", …)``.

What a store promises is said at the top of `sophon/store/store.py`. Here it comes down to four methods: `opens` says
which paths are for this store, `scan` lists the samples once, `unchanged` tells whether that list still holds, and
`_read` returns the bytes of one sample.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from sophon.errors import StoreError
from sophon.store import STORES, Manifest, Progress, Store
from sophon.store.manifest import sources_table


class SqliteStore(Store):
    """Photos in a table ``photo (id text, class text, data blob)``."""

    kind = "sqlite"

    @classmethod
    def opens(cls, path: Path) -> bool:
        """Return whether a path is an SQLite file."""
        return path.suffix == ".db" and path.is_file()

    @classmethod
    def scan(cls, path: Path, on_progress: Progress | None = None) -> Manifest:
        """Return the list of photos, in order of their ids: the same for equal data, wherever the file lies."""
        sources = _sources(path)  # before the content: a change in between makes the list stale, not wrong
        with closing(_connect(path)) as base:
            rows = base.execute("select rowid, id, class, length(data) from photo order by id").fetchall()
        if not rows:
            raise StoreError(f"{path} holds no photo; put some into its table `photo`")
        if on_progress is not None:
            on_progress(len(rows), len(rows))
        classes = sorted({row[2] for row in rows})
        return Manifest(
            kind=cls.kind,
            ids=pa.array([row[1] for row in rows], pa.large_string()),
            sizes=np.array([row[3] for row in rows], np.int64),
            labels=np.array([classes.index(row[2]) for row in rows], np.int64),
            classes=tuple(classes),
            locations=pa.table({"rowid": pa.array([row[0] for row in rows], pa.int64())}),
            sources=sources,
        )

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether the file is the one that was listed."""
        try:
            return bool(_sources(path).equals(manifest.sources))
        except OSError:
            return False

    def changed_ns(self, index: int) -> int:
        """Return the time of the file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError as error:
            raise self._failure(index, f"its file cannot be examined: {error}", "Restore it.") from error

    def _read(self, index: int) -> bytes:
        # A connection for each read: SQLite's may not be shared by threads, nor taken along by a fork.
        rowid = self.manifest.locations["rowid"][index].as_py()
        try:
            with closing(_connect(self.path)) as base:
                found = base.execute("select data from photo where rowid = ?", (rowid,)).fetchone()
        except sqlite3.Error as error:
            raise self._failure(index, f"it cannot be read: {error}", "Check the file.") from error
        if found is None:
            raise self._failure(index, "it is not in the file any more", "Open the data set again.")
        return bytes(found[0])


STORES[SqliteStore.kind] = SqliteStore


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _sources(path: Path) -> pa.Table:
    stat = path.stat()
    return sources_table([path.name], [stat.st_size], [stat.st_mtime_ns])


def fill(folder: Path, file: Path) -> int:
    """Put the photos of a folder of class folders into a new SQLite file; return how many."""
    photos = sorted(path for path in folder.glob("*/*") if path.is_file())
    with closing(sqlite3.connect(file)) as base, base:
        base.execute("create table photo (id text, class text, data blob)")
        rows = ((path.relative_to(folder).as_posix(), path.parent.name, path.read_bytes()) for path in photos)
        base.executemany("insert into photo values (?, ?, ?)", rows)
    return len(photos)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Put a folder of class folders into an SQLite file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    print(f"{fill(args.folder, args.file):,} photos are in {args.file}")
