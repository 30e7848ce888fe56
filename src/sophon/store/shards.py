"""Shards: data sets stored in a few large files, given as one file, a folder or a pattern.

Concurrency:
    `ShardFiles` keeps a bounded number of files open and is read with `pread` only, so that threads and forked children
    share no position. A file beyond the bound is closed when the last thread that reads from it is done.
"""

from __future__ import annotations

import os
import re
import threading
from glob import has_magic
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from cachetools import LRUCache

from sophon.errors import ConfigError, StoreError
from sophon.process.renewal import renew_after_fork
from sophon.store.address import Place
from sophon.store.manifest import Manifest, decode_name, sources_table
from sophon.store.store import Store, describe, fill

MAX_OPEN_FILES = 64  # far below the usual limit of 1,024 per process, which sockets need too
_SPLIT = re.compile(r"(.+)-\d+-of-\d+\.\w+")  # train-00000-of-00042.parquet


def find_shards(path: Path, suffix: str) -> tuple[Path, list[str]]:
    """Return the folder of the shards, and their names in order.

    Args:
        path: One shard, a folder of shards, or a pattern such as ``train-*.tar``.
        suffix: Ending of the shards' names, in upper or lower case.

    Raises:
        StoreError: The folder cannot be listed.
        ConfigError: The folder holds several splits, which are not meant to be used together.
    """
    if path.is_file():
        return path.parent, [path.name]
    folder, pattern = (path.parent, path.name) if is_pattern(path) else (path, "*")
    try:
        found = sorted(entry.name for entry in folder.glob(pattern) if _is_shard(entry, suffix))
    except OSError as error:
        raise StoreError(f"cannot list {folder}: {describe(error)}. Check its permissions.") from error
    splits = sorted({match[1] for match in map(_SPLIT.fullmatch, found) if match})
    if pattern == "*" and len(splits) > 1:
        raise ConfigError(
            f"{folder} holds the splits {', '.join(splits)}, expected one; open {folder / (splits[0] + '-*' + suffix)}"
        )
    return folder, found


def is_pattern(path: Path) -> bool:
    """Return whether a path names several files by a pattern; an existing file of that exact name takes precedence."""
    return has_magic(path.name) and not path.exists()


def _is_shard(path: Path, suffix: str) -> bool:
    return path.name.lower().endswith(suffix) and not path.name.startswith(".") and path.is_file()


def shard_sources(folder: Path, names: list[str]) -> pa.Table:
    """Return names, sizes and times of shards."""
    try:
        stats = [(folder / name).stat() for name in names]
    except OSError as error:
        raise StoreError(f"cannot examine the shards in {folder}: {describe(error)}. Do they all exist?") from error
    return sources_table(
        names, [s.st_size for s in stats], [s.st_mtime_ns for s in stats], [s.st_ctime_ns for s in stats]
    )


class Shards:
    """The shards of a manifest.

    Args:
        path: The folder, file or pattern that was opened.
        sources: Names, sizes and times of the shards when they were listed.
    """

    def __init__(self, path: Path, sources: pa.Table) -> None:
        folder = path if path.is_dir() else path.parent
        self._paths = [folder / decode_name(name) for name in sources["name"].to_pylist()]
        self._listed = list(zip(sources["bytes"].to_pylist(), sources["mtime_ns"].to_pylist(), strict=True))

    def path(self, shard: int) -> Path:
        """Return the path of a shard."""
        return self._paths[shard]

    def changed_ns(self, shard: int) -> int:
        """Return a shard's modification time when it was listed; a shard changed since then cannot be read."""
        return int(self._listed[shard][1])

    def check(self, shard: int, stat: os.stat_result) -> None:
        """Raise OSError unless a file is the shard that was listed."""
        if (stat.st_size, stat.st_mtime_ns) != self._listed[shard]:
            raise OSError("the shard was changed after it was listed")


class ShardStore(Store):
    """A store whose samples are in shards.

    Attributes:
        suffix: Ending of the shards' names.
    """

    suffix: ClassVar[str]
    _files: Shards

    def __init__(self, path: Place, name: str, manifest: Manifest) -> None:
        super().__init__(path, name, manifest)
        self._shards = manifest.locations["shard"].to_numpy()

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether the shards have the same names, sizes and times as when they were listed."""
        try:
            return bool(shard_sources(*find_shards(path, cls.suffix)).equals(manifest.sources))
        except (StoreError, ConfigError):
            return False

    def changed_ns(self, index: int) -> int:
        """Return the modification time of the shard that holds a sample."""
        return self._files.changed_ns(int(self._shards[index]))


class ShardFiles(Shards):
    """Shards that are opened when needed and kept open.

    Args:
        path: The folder, file or pattern that was opened.
        sources: Names, sizes and times of the shards when they were listed.
        max_open: How many shards to keep open.
    """

    def __init__(self, path: Path, sources: pa.Table, max_open: int = MAX_OPEN_FILES) -> None:
        super().__init__(path, sources)
        self._open: LRUCache[int, _File] = LRUCache(max_open)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace lock and table in a forked child: a thread of the parent may have been changing the table."""
        self._lock = threading.Lock()
        files, self._open = dict(self._open), LRUCache(self._open.maxsize)
        self._open.update(files)

    def pread(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes of a shard; fewer than requested at its end.

        Raises:
            OSError: The shard cannot be opened or read, or is not the file that was listed.
        """
        file = self._file(shard)  # this reference keeps the file open, even if another thread drops it from the table
        self.check(shard, os.fstat(file.fd))
        return pread(file.fd, offset, size)

    def pread_into(self, shard: int, offset: int, space: memoryview) -> int:
        """Read bytes of a shard into a buffer, and return how many were read; fewer than requested at its end.

        Raises:
            OSError: As for `pread`.
        """
        file = self._file(shard)
        self.check(shard, os.fstat(file.fd))
        return fill(file.fd, space, offset)

    def _file(self, shard: int) -> _File:
        with self._lock:
            file = self._open.get(shard)
        if file is not None:
            return file
        file = _File(self.path(shard))
        with self._lock:
            # Two threads may have opened it at once; the second file closes itself when its reader is done.
            self._open.setdefault(shard, file)
        return file

    def close(self) -> None:
        """Close all files that are not being read."""
        with self._lock:
            self._open.clear()


class _File:
    """A file descriptor that is closed with the last reference to it."""

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = -1
        # O_NONBLOCK, so as not to wait forever if a pipe has replaced a shard.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def pread(fd: int, offset: int, size: int) -> bytes:
    """Return bytes of a file; fewer than requested only at its end."""
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]  # Linux returns at most 2 GB at once, and network file systems may return less
    while data and (missing := size - sum(map(len, parts))):
        data = os.pread(fd, missing, offset + size - missing)
        parts.append(data)
    return b"".join(parts)
