"""The window index of a bucket: how it is made, by reading every object once, and how it is found again.

The index is stored next to the data (``s3://bucket/train.sophon-index`` for ``s3://bucket/train``), in a file that the
user names, or in the cache folder if the bucket is not writable.

The work can be interrupted: finished pages are kept in the cache folder, and pages whose objects are unchanged are not
made again.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sophon.artifact import replacing
from sophon.codec.window.bands import attach, make_entry
from sophon.codec.window.jpeg import available
from sophon.codec.window.pages import PAGE_SAMPLES, SUFFIX, Entry, Pages, finish, pack_page, unpack_page
from sophon.errors import ArtifactError, ConfigError, StoreError
from sophon.process.folders import not_private
from sophon.store import Store, cache_file
from sophon.store.address import Address, is_address, parse_address
from sophon.store.bucket.account import ACCOUNT
from sophon.store.bucket.client import Client, Object, client_of
from sophon.store.bucket.failures import ObjectError, Verdict

_ROOM: Final = "object-indexes"
_FORMAT: Final = 1
_FRAME: Final = struct.Struct("<III")  # number of the page, its bytes and CRC-32
_AT_ONCE: Final = 32  # objects read at once

OnProgress = Callable[[int, int | None], None]


@dataclass
class WrittenIndex:
    """Summary of the index that was written.

    Args:
        place: Where it was written.
        samples: Number of entries.
        kept: Number of entries taken over from an earlier, interrupted run.
        without: Number of samples from which no window can be cut.
        unreadable: Number of samples that could not be read.
        index_bytes: Size of the index.
        sample_bytes: Size of all samples.
    """

    place: str
    samples: int = 0
    kept: int = 0
    without: int = 0
    unreadable: int = 0
    index_bytes: int = 0
    sample_bytes: int = 0


def is_ranged(store: Store) -> bool:
    """Return whether a store can read parts of samples: objects, and members of tar shards."""
    return isinstance(store.path, Address) and hasattr(store, "read_part") and not store.manifest.fields


def beside(address: Address) -> Address:
    """Return the address of a data set's index in its bucket."""
    return Address(address.scheme, address.bucket, f"{address.key or address.bucket}{SUFFIX}")


def open_index(store: Store, cache_dir: Path | None = None) -> int | None:
    """Use the index of a data set, if it has one; return how many samples the index covers.

    Raises:
        ArtifactError: The data set has an index, but it cannot be used.
    """
    if not is_ranged(store) or not available():
        return None
    pages = _named(store.index_at, cache_dir) if store.index_at else _found(store, cache_dir)
    if pages is None:
        return None
    attach(store, pages)
    return pages.samples


def _named(told: str, cache_dir: Path | None) -> Pages:
    if is_address(told):
        address = parse_address(told)
        client = client_of(address)
        try:
            return _of_object(client, client.head(address.key), address, cache_dir)
        except ObjectError as error:
            raise ArtifactError(f"{address}: {error.strerror}") from error
    return _of_file(Path(told))


def _found(store: Store, cache_dir: Path | None) -> Pages | None:
    assert isinstance(store.path, Address)
    place, client = beside(store.path), client_of(store.path)
    try:
        found = client.exists(place.key)
        if found is not None:
            return _of_object(client, found, place, cache_dir)
    except ObjectError as error:
        raise ArtifactError(f"{place}: {error.strerror}") from error
    cached = cache_file(_ROOM, store.path, _FORMAT, cache_dir)
    return _of_file(cached) if cached is not None and cached.is_file() and not_private(cached) is None else None


def _of_file(path: Path) -> Pages:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return Pages(lambda offset, size: os.pread(fd, size, offset), os.fstat(fd).st_size, str(path))


def _of_object(client: Client, found: Object, place: Address, cache_dir: Path | None) -> Pages:
    version = hashlib.blake2b(found.etag.encode(), digest_size=4).hexdigest()
    kept = cache_file(_ROOM, place.below(version), _FORMAT, cache_dir)

    def read_at(offset: int, size: int) -> bytes:
        ACCOUNT.add("index_bytes", size)
        return bytes(client.get(found.key, offset, size, found.etag))

    return Pages(read_at, found.size, str(place), kept)


def write_index(
    store: Store,
    out: Path | None = None,
    cache_dir: Path | None = None,
    threads: int = _AT_ONCE,
    on_progress: OnProgress | None = None,
) -> WrittenIndex:
    """Make the index of a data set in a bucket.

    Args:
        store: The data set.
        out: File to write; None to write next to the data, or to the cache folder if the bucket is not writable.
        cache_dir: Where finished pages are kept.
        threads: How many objects to read at the same time.
        on_progress: Called with the number of samples done and the total.

    Raises:
        ConfigError: The store cannot read parts of samples.
    """
    if not is_ranged(store):
        raise ConfigError(f"{store.path}: samples inside Parquet files, or with several fields, cannot be indexed")
    assert isinstance(store.path, Address)
    work = cache_file(_ROOM, store.path.below("unfinished"), _FORMAT, cache_dir)
    written = WrittenIndex("")
    pages: list[bytes] = []
    with ThreadPoolExecutor(threads, "sophon-index") as pool:
        for page, entries, kept in _pages(store, work, pool):
            pages.append(page)
            written.samples += len(entries)
            written.kept += kept
            written.without += sum(not entry.points for entry in entries)
            written.unreadable += sum(entry.name == _UNREADABLE for entry in entries)
            if on_progress is not None:
                on_progress(written.samples, len(store))
    data = _assembled(pages, len(store))
    written.index_bytes, written.sample_bytes = len(data), int(store.manifest.sizes.sum())
    written.place = str(_put(store, data, out, cache_dir))
    if work is not None:
        work.unlink(missing_ok=True)
    return written


_UNREADABLE: Final = bytes(8)  # the name of an unreadable sample; no object has it


def _pages(store: Any, work: Path | None, pool: ThreadPoolExecutor) -> Iterator[tuple[bytes, list[Entry], int]]:
    """Yield each page, its entries, and how many of the entries were made earlier."""
    earlier = {} if work is None else _earlier(work)
    sink = None if work is None else work.open("ab")
    try:
        for number, first in enumerate(range(0, len(store), PAGE_SAMPLES)):
            samples = range(first, min(first + PAGE_SAMPLES, len(store)))
            names = [store.identity(sample) for sample in samples]
            known = _same(earlier.get(number), names)
            if known is not None:
                yield earlier[number], known, len(known)
                continue
            entries = list(pool.map(partial(_entry, store), samples, names))
            page = pack_page(entries)
            if sink is not None:
                sink.write(_FRAME.pack(number, len(page), zlib.crc32(page)) + page)
                sink.flush()
            yield page, entries, 0
    finally:
        if sink is not None:
            sink.close()


def _entry(store: Store, sample: int, name: bytes) -> Entry:
    try:
        return make_entry(name, store.read(sample))
    except StoreError:
        return Entry(_UNREADABLE, b"", b"")


def _same(page: bytes | None, names: list[bytes]) -> list[Entry] | None:
    """Return the entries of a page, if they belong to exactly these objects."""
    if page is None:
        return None
    try:
        entries = unpack_page(page, len(names))
    except ArtifactError:
        return None
    return entries if [entry.name for entry in entries] == names else None


def _earlier(work: Path) -> dict[int, bytes]:
    """Return the pages from an interrupted run."""
    found: dict[int, bytes] = {}
    try:
        data = work.read_bytes()
    except OSError:
        return found
    at = 0
    while at + _FRAME.size <= len(data):
        number, size, crc = _FRAME.unpack_from(data, at)
        page = data[at + _FRAME.size : at + _FRAME.size + size]
        if len(page) != size or zlib.crc32(page) != crc:
            os.truncate(work, at)  # the frame that was being written when the run ended
            break
        found[number] = page
        at += _FRAME.size + size
    return found


def _assembled(pages: list[bytes], samples: int) -> bytes:
    places, at = [], 0
    for page in pages:
        places.append((at, len(page), zlib.crc32(page)))
        at += len(page)
    return b"".join([*pages, finish(places, samples)])


def _put(store: Store, data: bytes, out: Path | None, cache_dir: Path | None) -> Path | Address:
    assert isinstance(store.path, Address)
    if out is None:
        place = beside(store.path)
        try:
            client_of(store.path).put(place.key, data)
            return place
        except ObjectError as error:
            cached = cache_file(_ROOM, store.path, _FORMAT, cache_dir)
            if error.verdict not in (Verdict.RENEW, Verdict.NEVER) or cached is None:
                raise ArtifactError(f"{place} cannot be written: {error.strerror}; choose a file with --out") from error
            out = cached
    with replacing(out) as file:
        file.write(data)
    return out
