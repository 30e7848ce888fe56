"""Groups the members of a tar shard into samples, by WebDataset's naming rules.

The key of a sample is the path of its members up to the first dot of their base name: ``a/0001.jpg``, ``a/0001.cls``
and ``a/0001.json`` are the picture, the label and the metadata of sample ``a/0001``. Members with the same key may be
anywhere in the shard; samples are in the order of their pictures. If samples have further fields (``seg.png``), samples
that lack one are left out.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import StoreError
from sophon.store.folder import IMAGE_SUFFIXES
from sophon.store.manifest import NO_LABEL
from sophon.store.pages.identity import Int64Array
from sophon.store.shards import pread
from sophon.store.store import describe
from sophon.store.tar_headers import Archive, Member

Int32Array: TypeAlias = npt.NDArray[np.int32]

_CHUNK = 16_384  # members per step, so that Python objects exist only for the members of one step
_MAX_TEXT_BYTES = 1 << 24  # bytes of one .json or .txt
_MAX_LABEL_BYTES = 64
_MIN_LABEL, _MAX_LABEL = -(1 << 63), (1 << 63) - 1
_BESIDE = (b"cls", b"json", b"txt")  # belong to a sample but are not samples
# As in WebDataset: the part before the first dot of the base name must not be empty, so hidden files are not samples.
_NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
_META = re.compile(rb"__[^/]*__($|/)")  # WebDataset's own metadata


@dataclass(frozen=True)
class ShardSamples:
    """The samples of one shard, one row each, and counts of members that were left out."""

    keys: pa.LargeBinaryArray
    offsets: Int64Array
    sizes: Int64Array
    labels: Int64Array
    json: pa.LargeStringArray
    txt: pa.LargeStringArray
    without_image: int
    several_images: int
    ended: bool
    others: tuple[tuple[Int64Array, Int64Array], ...] = ()  # offsets and sizes of each further field
    without_field: int = 0


ReadAt: TypeAlias = Callable[[int, int], bytes]
Opened: TypeAlias = tuple[ReadAt, int, str]
"""How to read from a shard, its size, and its name for messages."""


def scan_shard(
    shard: Opened,
    on_count: Callable[[int], None],
    endings: Sequence[str] = IMAGE_SUFFIXES,
    others: Sequence[str] = (),
) -> ShardSamples:
    """Return the samples of a shard.

    Args:
        shard: The shard.
        on_count: Called from time to time with the number of pictures found so far.
        endings: Endings of the members that are samples, best first if one key has several; "" for any.
        others: Endings of the members that are further fields of the samples.

    Raises:
        StoreError: The shard cannot be read; the message names it and says what to try.
    """
    read_at, size, name = shard
    try:
        archive = Archive(read_at, size, f"shard {name}")
        members = _Members(archive, f"shard {name}", endings, others)
        for member in archive.members():
            members.add(member)
            if len(members.ranks) % _CHUNK == 0:
                on_count(len(members.ranks))
        on_count(len(members.ranks))
        return members.samples()
    except OSError as error:
        raise StoreError(
            f"cannot read shard {name}: {describe(error)}. Check the disk, or copy the shard again."
        ) from error


@contextmanager
def opened_file(path: Path) -> Iterator[Opened]:
    """Open a shard that is a file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"cannot open shard {path}: {describe(error)}. Check its permissions.") from error
    try:
        yield partial(pread, fd), os.fstat(fd).st_size, str(path)
    finally:
        os.close(fd)


class _Chunks:
    """An Arrow array that grows."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._rows: list[bytes | str] = []
        self._chunks: list[pa.Array] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, value: bytes | str) -> None:
        self._rows.append(value)
        self._count += 1
        if len(self._rows) == _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._chunks.append(pa.array(self._rows, self._kind))
        self._rows.clear()

    def array(self) -> pa.Array:
        """Return the array; call this once, since the chunks are freed."""
        self._flush()
        chunks, self._chunks = self._chunks, []
        return pa.concat_arrays(chunks)


class _Other:
    """The members of one shard that are a further field of their samples."""

    def __init__(self) -> None:
        self.keys, self._offsets, self._sizes = _Chunks(pa.large_binary()), array("q"), array("q")

    def add(self, key: bytes, member: Member) -> None:
        self.keys.append(key)
        self._offsets.append(member.offset)
        self._sizes.append(member.size)

    def at(self, rows: Int32Array) -> tuple[Int64Array, Int64Array]:
        return np.frombuffer(self._offsets, np.int64)[rows], np.frombuffer(self._sizes, np.int64)[rows]


class _Members:
    """The members of one shard, sorted by purpose."""

    def __init__(self, archive: Archive, where: str, endings: Sequence[str], others: Sequence[str]) -> None:
        self._endings = {ending.removeprefix(".").encode(): rank for rank, ending in enumerate(endings)}
        self._archive = archive
        self._where = where
        binary, text = pa.large_binary(), pa.large_string()
        self._image_keys, self._offsets, self._sizes = _Chunks(binary), array("q"), array("q")
        self.ranks = array("b")
        self._label_keys, self._labels = _Chunks(binary), array("q")
        self._json_label_keys, self._json_labels = _Chunks(binary), array("q")
        self._json_keys, self._json = _Chunks(binary), _Chunks(text)
        self._txt_keys, self._txt = _Chunks(binary), _Chunks(text)
        self._others = {ending.removeprefix(".").lower().encode(): _Other() for ending in others}

    def add(self, member: Member) -> None:
        match = _NAME.fullmatch(member.name.removeprefix(b"./"))
        if match is None or _META.match(match[1]):
            return
        key, extension = match[1], match[2].lower()
        if extension in self._others:
            self._others[extension].add(key, member)
            return
        rank = self._rank(extension)
        if rank is not None:
            self._image_keys.append(key)
            self.ranks.append(rank)
            self._offsets.append(member.offset)
            self._sizes.append(member.size)
        elif extension == b"cls":
            self._label_keys.append(key)
            self._labels.append(self._label(member))
        elif extension == b"json":
            text = self._text(member)
            self._json_keys.append(key)
            self._json.append(text)
            label = _label_in_json(text)
            if label is not None:
                self._json_label_keys.append(key)
                self._json_labels.append(label)
        elif extension == b"txt":
            self._txt_keys.append(key)
            self._txt.append(self._text(member))

    def _rank(self, extension: bytes) -> int | None:
        """Return the rank of a member within its key, 0 for the best; None if it is not a sample."""
        if extension in self._endings:
            return self._endings[extension]
        if b"" in self._endings:
            return None if extension in _BESIDE else 0
        # A picture whose ending is just .jpg ranks before one ending in .mask.jpg.
        rank = self._endings.get(extension.rpartition(b".")[2])
        return None if rank is None else rank + len(self._endings)

    def samples(self) -> ShardSamples:
        parts = [self._image_keys, self._label_keys, self._json_label_keys, self._json_keys, self._txt_keys]
        parts += [other.keys for other in self._others.values()]
        ends = np.cumsum([len(part) for part in parts])
        keys = pa.concat_arrays([part.array() for part in parts])
        numbers = _number(keys)
        of_images, *of_parts = np.split(numbers, ends[:-1])
        key_count = int(numbers.max(initial=-1)) + 1
        rows = _choose(of_images, np.frombuffer(self.ranks, np.int8), key_count)
        pictures, rows = len(rows), _with_all(of_images, rows, of_parts[4:], key_count)
        sample_of = np.full(key_count, -1, np.int32)
        sample_of[of_images[rows]] = np.arange(len(rows), dtype=np.int32)
        labels = np.full(len(rows), NO_LABEL, np.int64)
        for part, values in ((of_parts[1], self._json_labels), (of_parts[0], self._labels)):
            at = _find(sample_of, part, len(rows))
            labels[at >= 0] = np.frombuffer(values, np.int64)[at[at >= 0]]
        return ShardSamples(
            keys=keys.take(pa.array(rows)),
            offsets=np.frombuffer(self._offsets, np.int64)[rows],
            sizes=np.frombuffer(self._sizes, np.int64)[rows],
            labels=labels,
            json=_take(self._json.array(), _find(sample_of, of_parts[2], len(rows))),
            txt=_take(self._txt.array(), _find(sample_of, of_parts[3], len(rows))),
            without_image=key_count - pictures,
            several_images=len(of_images) - pictures,
            ended=self._archive.ended,
            others=tuple(
                other.at(_find(sample_of, part, len(rows)))
                for other, part in zip(self._others.values(), of_parts[4:], strict=True)
            ),
            without_field=pictures - len(rows),
        )

    def _label(self, member: Member) -> int:
        text = self._content(member, _MAX_LABEL_BYTES)
        try:
            label = int(text)
        except ValueError:
            label = None
        if label is None or not _MIN_LABEL <= label <= _MAX_LABEL:
            raise StoreError(
                f"{self._where}: expected an integer in {_shown(member.name)!r}, got {text!r}; correct the label"
            )
        return label

    def _text(self, member: Member) -> str:
        return self._content(member, _MAX_TEXT_BYTES).decode("utf-8", "replace")

    def _content(self, member: Member, most: int) -> bytes:
        if member.size > most:
            raise StoreError(
                f"{self._where}: expected at most {most:,} bytes in {_shown(member.name)!r}, got {member.size:,}; "
                "give it another extension if it is not a label or text"
            )
        return self._archive.read(member.offset, member.size)


def _number(keys: pa.Array) -> Int32Array:
    """Return a number for every key, the same for equal keys. Sorting takes less memory than a table of hashes."""
    order = pc.sort_indices(keys)
    ordered = keys.take(order)
    steps = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(keys), np.int32)
    numbers[order.to_numpy()[1:]] = np.cumsum(steps, dtype=np.int32)
    return numbers


def _choose(numbers: Int32Array, ranks: npt.NDArray[np.int8], key_count: int) -> Int32Array:
    """Return the row of each key's lowest-ranked picture; keys are in the order of their first pictures."""
    rows = np.arange(len(numbers), dtype=np.int32)
    if np.bincount(numbers, minlength=1).max() <= 1:
        return rows
    first, best = np.full(key_count, -1, np.int32), np.full(key_count, -1, np.int32)
    first[numbers[::-1]] = rows[::-1]  # where an index is repeated, the last assignment counts
    order = np.lexsort((-rows, -ranks))
    best[numbers[order]] = order
    return best[numbers[np.sort(first[first >= 0])]]


def _with_all(of_images: Int32Array, rows: Int32Array, others: Sequence[Int32Array], key_count: int) -> Int32Array:
    """Return the rows of the pictures whose key has every further field."""
    for numbers in others:
        has = np.zeros(key_count, np.bool_)
        has[numbers] = True
        rows = rows[has[of_images[rows]]]
    return rows


def _find(sample_of: Int32Array, numbers: Int32Array, count: int) -> Int32Array:
    """Return, for each sample, the last row with its key, or -1."""
    samples = sample_of[numbers]
    rows = np.flatnonzero(samples >= 0)
    at = np.full(count, -1, np.int32)
    at[samples[rows]] = rows
    return at


def _take(texts: pa.Array, at: Int32Array) -> pa.Array:
    return texts.take(pa.array(at, mask=at < 0))


def _label_in_json(text: str) -> int | None:
    try:
        facts: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for name in ("label", "cls"):
        label = facts.get(name) if isinstance(facts, dict) else None
        if isinstance(label, int) and not isinstance(label, bool) and _MIN_LABEL <= label <= _MAX_LABEL:
            return label
    return None


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
