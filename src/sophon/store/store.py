"""The contract of a store: where raw samples lie, and how one is read.

If a store is inconsistent with the following, it is a bug:

- `scan` looks at a path once and returns its manifest. The same data give the same manifest, wherever they lie.
- `unchanged` says whether a manifest still describes what lies at a path, and is much cheaper than `scan`.
- `opens` says whether a path is surely one of this store's. Those that others have added to the table are asked first.
- `options` names what may follow a path (`store/options`) and is for this store; `scan` then takes a third argument.
- `changed_ns(index)` is another number whenever the bytes of a sample may have changed.
- `stamp(index)` is another text whenever they were written anew: what is kept of a sample elsewhere is kept with it.
- `read(index)` returns the bytes of one sample or raises `StoreError`; it never returns other bytes, nor more or fewer
  of them than the manifest says. `read_into(index, space)` puts the same bytes into memory of the caller.

Concurrency:
    `read` may be called from any number of threads, and in a child after a fork: stores keep no file position, and
    replace their locks in the child. A store that is pickled for a spawned process takes its manifest along, so that
    both processes mean the same sample by the same index.
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

MOST_SAMPLE_BYTES = 1 << 30  # as much as a payload may have; a file that claims more is not read
Progress: TypeAlias = Callable[[int, int | None], None]
"""Called while a data set is listed: samples found so far, and how many there will be where that is known."""


class Store(ABC):
    """One data set, opened.

    Args:
        path: The folder, file, pattern or address that was opened.
        name: What the data set is called, for example in URLs.
        manifest: What `scan` found there.
    """

    kind: ClassVar[str]
    index_at: str | None = None  # where its window index lies, if the user has said so
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: Place, name: str, manifest: Manifest) -> None:
        self.path: Place = path
        self.name = name
        self.manifest = manifest
        self._closed = False

    @classmethod
    def opens(cls, path: Path) -> bool:  # noqa: ARG003 - part of the contract
        """Return whether what lies at a path is for this store; stores of sophon's own are recognised by the table."""
        return False

    @classmethod
    @abstractmethod
    def scan(cls, path: Path, on_progress: Progress | None = None) -> Manifest:
        """Return the manifest of what lies at a path."""

    @classmethod
    @abstractmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether a manifest, made earlier, still describes what lies at a path."""

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
        """Put the bytes of one sample into memory of the caller, so that many samples can lie there side by side.

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
        """Put the bytes of several samples side by side into memory of the caller; what fails leaves no gap there.

        Args:
            indexes: Positions in the manifest.
            space: Writable memory of at least as many bytes as the manifest lists for these samples.

        Returns:
            Where each sample that was read ends, in order, and why the others were not, by their place in `indexes`.
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
            problem = f"it has {self.manifest.sizes[index]:,} bytes, and {MOST_SAMPLE_BYTES:,} are read at most"
            raise self._failure(index, problem, "Leave it out.")
        return index

    def _check_size(self, index: int, found: int) -> None:
        expected = int(self.manifest.sizes[index])
        if found != expected:
            problem = f"{found:,} bytes were found where {expected:,} were listed"
            raise self._failure(index, problem, "Open the data set again when nothing writes to it.")

    @abstractmethod
    def changed_ns(self, index: int) -> int:
        """Return when the file or shard that holds a sample was last changed, as its file system says.

        Raises:
            StoreError: It cannot be examined.
        """

    def stamp(self, index: int) -> str:
        """Return a text that is another one if the bytes of a sample were written anew, even with the same time.

        Raises:
            StoreError: It cannot be examined.
        """
        return str(self.changed_ns(index))

    @abstractmethod
    def _read(self, index: int) -> bytes:
        """Return the bytes of a sample that exists."""

    def _read_into(self, index: int, space: memoryview) -> int:
        """Put the bytes of a sample that exists into memory, and return how many there are; stores may save a copy."""
        data = self._read(index)
        if len(data) == len(space):
            space.cast("B")[:] = data  # Arrow's memory is of signed bytes
        return len(data)

    def close(self) -> None:
        """Release what is held open; from now on reads are refused."""
        self._closed = True

    def narrowed(self, names: Sequence[str]) -> Store:
        """Return the same samples with only their first field and those of some names.

        The new store shares what is held open with this one, and is closed with it.

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
        """Take from the manifest where things lie; it was narrowed."""

    def holding(self, manifest: Manifest) -> Store:
        """Return a store of other samples of the same data, as a manifest made from this one's says."""
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
    """Return the times of a file; the second one, of its last change, is one that nobody can set."""
    return f"{stat.st_mtime_ns:x}.{stat.st_ctime_ns:x}"


def describe(error: Exception) -> str:
    """Return what went wrong in one line, without the path, which the surrounding message names already."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def fill(fd: int, space: memoryview, offset: int | None = None) -> int:
    """Read from a file into memory until it is full or the file ends; return how many bytes were read.

    Args:
        fd: The file.
        space: Writable memory.
        offset: Where in the file to begin, without moving its position; None for where it stands.
    """
    done = 0
    while done < len(space):  # Linux reads at most 2 GB at once, and network file systems may read less
        rest = (space[done:],) if done else (space,)
        read = os.readv(fd, rest) if offset is None else os.preadv(fd, rest, offset + done)
        if not read:
            break
        done += read
    return done
