"""The contract of a store, which holds raw samples and reads them one by one.

A store that breaks any of these rules has a bug:

- `scan` looks at a path once and returns its manifest. The same data give the same manifest, wherever they are stored.
- `unchanged` tells whether a manifest still describes the data at a path, and is much cheaper than `scan`.
- `opens` tells whether a path definitely belongs to this store. Third-party stores in the table are asked first.
- `options` names the path options (`store/options`) that this store takes; `scan` then takes a third argument.
- `changed_ns(index)` is a different number whenever the bytes of a sample may have changed.
- `stamp(index)` is a different string whenever a sample was rewritten, even with the same time; caches store it.
- `read(index)` returns the bytes of one sample or raises `StoreError`; it never returns wrong bytes, nor more or fewer
  than the manifest says. `read_into(index, space)` puts the same bytes into the caller's memory.

Concurrency:
    `read` may be called from any number of threads, and in a child after a fork: stores keep no file position, and
    replace their locks in the child. A store that is pickled for a spawned process carries its manifest, so that an
    index means the same sample in both processes.
"""

from __future__ import annotations

import copy
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeAlias

from sophon.errors import StoreError
from sophon.store.address import Place
from sophon.store.fields import chosen
from sophon.store.manifest import Manifest

MOST_SAMPLE_BYTES = 1 << 30  # the largest payload; a larger file is not read
Progress: TypeAlias = Callable[[int, int | None], None]
"""Called while a data set is listed, with the number of samples found so far and the total, if known."""


class Store(ABC):
    """An open data set.

    Args:
        path: The folder, file, pattern or address that was opened.
        name: Name of the data set, for example in URLs.
        manifest: The result of `scan`.
    """

    kind: ClassVar[str]
    index_at: str | None = None  # path of the window index, if the user gave one
    part: str = ""  # which part of the data set this store holds, such as 3/8; "" for all of it
    whole: str = ""  # the fingerprint of the whole data set
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: Place, name: str, manifest: Manifest) -> None:
        self.path: Place = path
        self.name = name
        self.manifest = manifest
        self._closed = False

    @classmethod
    def opens(cls, path: Path) -> bool:  # noqa: ARG003 - part of the contract
        """Return whether the data at a path belongs to this store; the table recognises built-in stores itself."""
        return False

    @classmethod
    @abstractmethod
    def scan(cls, path: Path, on_progress: Progress | None = None) -> Manifest:
        """Return the manifest of the data at a path."""

    @classmethod
    @abstractmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether an earlier manifest still describes the data at a path."""

    def read(self, index: int) -> bytes:
        """Return the bytes of one sample.

        Args:
            index: Position in the manifest, 0 … len - 1.

        Raises:
            StoreError: There is no such sample, or it cannot be read; the message names it and says what to try.
        """
        index = self._checked(index)
        data = self._read(index)
        self._check_size(index, len(data))
        return data

    def read_into(self, index: int, space: memoryview) -> None:
        """Put the bytes of one sample into the caller's memory, so that many samples can be placed side by side.

        Args:
            index: Position in the manifest, 0 … len - 1.
            space: Writable memory of exactly as many bytes as the manifest lists for the sample.

        Raises:
            StoreError: As for `read`; the memory may have been written to.
        """
        index = self._checked(index)
        if len(space) != self.manifest.sizes[index]:
            raise ValueError(f"expected memory for {self.manifest.sizes[index]:,} bytes, got {len(space):,}")
        self._check_size(index, self._read_into(index, space))

    def read_run(self, indexes: Sequence[int], space: memoryview) -> tuple[list[int], dict[int, StoreError]]:
        """Put the bytes of several samples side by side into the caller's memory; a failed read leaves no gap.

        Args:
            indexes: Positions in the manifest.
            space: Writable memory of at least as many bytes as the manifest lists for these samples.

        Returns:
            The end of each sample that was read, in order, and the errors of the others, by their position in
            `indexes`.
        """
        ends: list[int] = []
        failed: dict[int, StoreError] = {}
        at = 0
        for place, (index, size) in enumerate(zip(indexes, self.manifest.sizes[indexes].tolist(), strict=True)):
            try:
                self.read_into(index, space[at : at + size])
            except StoreError as error:
                failed[place] = error
                continue
            at += size
            ends.append(at)
        return ends, failed

    def _checked(self, index: int) -> int:
        index = operator.index(index)
        if self._closed:
            raise StoreError(f"data set {self.name!r} is closed; open it again to read sample {index}")
        if not 0 <= index < len(self):
            raise StoreError(f"data set {self.name!r} has samples 0 … {len(self) - 1}, got index {index}")
        if self.manifest.sizes[index] > MOST_SAMPLE_BYTES:
            problem = f"it has {self.manifest.sizes[index]:,} bytes, more than the limit of {MOST_SAMPLE_BYTES:,}"
            raise self._failure(index, problem, "Leave it out.")
        return index

    def _check_size(self, index: int, found: int) -> None:
        expected = int(self.manifest.sizes[index])
        if found != expected:
            problem = f"it has {found:,} bytes, but {expected:,} were listed"
            raise self._failure(index, problem, "Open the data set again when nothing writes to it.")

    @abstractmethod
    def changed_ns(self, index: int) -> int:
        """Return the time of the last change to the file or shard that holds a sample, according to its file system.

        Raises:
            StoreError: The file or shard cannot be examined.
        """

    def stamp(self, index: int) -> str:
        """Return a string that changes when the bytes of a sample are rewritten, even with the same modification time.

        Raises:
            StoreError: The file or shard cannot be examined.
        """
        return str(self.changed_ns(index))

    @abstractmethod
    def _read(self, index: int) -> bytes:
        """Return the bytes of an existing sample."""

    def _read_into(self, index: int, space: memoryview) -> int:
        """Put the bytes of a sample into memory, and return their number; overridden where that saves a copy."""
        data = self._read(index)
        if len(data) == len(space):
            space.cast("B")[:] = data  # Arrow's buffers have signed bytes
        return len(data)

    def close(self) -> None:
        """Release open resources; further reads raise."""
        self._closed = True

    def narrowed(self, names: Sequence[str]) -> Store:
        """Return a store of the same samples with only the first field and the named ones.

        The new store shares open resources with this one, and is closed with it.

        Raises:
            ConfigError: There is no such field.
        """
        fields = chosen(self.manifest.fields, names) if self.manifest.fields or names else ()
        if fields == self.manifest.fields:
            return self
        narrow = copy.copy(self)
        narrow.manifest = self.manifest.narrowed(fields)
        narrow._look_up()
        return narrow

    def _look_up(self) -> None:  # noqa: B027 - only stores whose samples may have several fields need it
        """Look up locations in the manifest again after it was narrowed."""

    def holding(self, manifest: Manifest) -> Store:
        """Return a store of other samples of the same data, given a manifest derived from this store's."""
        return type(self)(self.path, self.name, manifest)

    def _failure(self, index: int, problem: str, remedy: str) -> StoreError:
        sample = self.manifest.ids[index].as_py()
        return StoreError(f"data set {self.name!r}, sample {index} ({sample!r}): {problem}. {remedy}")

    def __len__(self) -> int:
        return len(self.manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.name!r}, {len(self):,} samples)"

    def __reduce__(self) -> tuple[object, ...]:
        state = None if self.index_at is None else {"index_at": self.index_at}
        return (type(self), (self.path, self.name, self.manifest), state)


def stamp_of(stat: os.stat_result) -> str:
    """Return the modification and change times of a file; users cannot set the second."""
    return f"{stat.st_mtime_ns:x}.{stat.st_ctime_ns:x}"


def most_held(file_bytes: int) -> int:
    """Return how many bytes the contents of somebody else's file may take in memory.

    A few kilobytes may stand for gigabytes: repeated values, tables without most of their cells. Ten million labels
    fit, whatever they take in their file, and texts shrink by less than the factor.
    """
    return (1 << 28) + 64 * file_bytes


def describe(error: Exception) -> str:
    """Return an error as one line, without the path, which the surrounding message already names."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def fill(fd: int, space: memoryview, offset: int | None = None) -> int:
    """Read from a file into memory until it is full or the file ends; return how many bytes were read.

    Args:
        fd: The file.
        space: Writable memory.
        offset: Where in the file to start, without moving its position; None for the current position.
    """
    done = 0
    while done < len(space):  # Linux reads at most 2 GB at once, and network file systems may read less
        rest = (space[done:],) if done else (space,)
        read = os.readv(fd, rest) if offset is None else os.preadv(fd, rest, offset + done)
        if not read:
            break
        done += read
    return done
