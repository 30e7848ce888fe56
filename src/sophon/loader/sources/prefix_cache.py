"""Caches the results of the first ops on the trainer's disk: offline and online steps in one pipeline.

Ops before the first random one give the same result in every epoch. With a cache they run once per sample, here or near
storage, and their result is kept as a payload; later epochs read it and run only the rest. Random ops always run again,
so the tensors stay the same to the last bit.

A cache is a separate folder for each (data set, first ops, codec, software versions), with one file per sample::

    4 bytes "SPC1" | CRC-32 of what follows | length of the header | header: JSON | payload

The header has the label, the columns and, if the files are accessible, their modification times ("stamp"): a sample
whose file was rewritten is not taken from the cache. A node checks only its folders, shards and listings, when it opens
the data set (`Manifest.state`, part of the key).

A cache takes samples until it is full and then keeps what it has: every epoch asks for every sample once, so replacing
some with others would not help.

Concurrency: any number of threads, worker processes and ranks may use one folder. Files appear whole or not at all, and
the bytes used are counted under a lock in the file ``bytes``, so that all of them together respect the bound.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from sophon.artifact import replacing
from sophon.codec.codec import AheadCodec
from sophon.codec.cut import RAW, Cut, check_cut, make_payload
from sophon.errors import ConfigError, OpError
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import Reply, Request
from sophon.pipeline import Key, Pipeline
from sophon.pipeline.pipeline import in_words
from sophon.pipeline.probe import versions
from sophon.process.caches import hold, tidy, used
from sophon.process.folders import make_private, not_private, user_folder

DEFAULT_BYTES = 10 * 10**9  # 50,000 pictures of 256 × 256 pixels; small compared with today's disks
_MAGIC = b"SPC1"
_HEAD = struct.Struct("<4sII")
_COUNT = struct.Struct("<Q")
_PER_FOLDER = 1000  # files in one folder: some file systems are slow with millions


def steady_ops(pipeline: Pipeline) -> int:
    """Return how many of the first ops give the same result in every epoch and can be sent as a payload."""
    for position, op in enumerate(pipeline.ops[: pipeline.max_cut]):
        if op.random:
            return position
    return pipeline.max_cut


def cache_cut(pipeline: Pipeline, settings: bool | str | Cut | Cache) -> Cut:
    """Return the cut whose payloads are kept: after the last op before the first random one, or as given."""
    cache = settings.cut if isinstance(settings, Cache) else settings
    steady = steady_ops(pipeline)
    if cache is True:
        if steady == 0:
            raise ConfigError(f"cache: {pipeline.ops[0].name()} comes first and is random; there is nothing to keep")
        return Cut(steady)
    cut = cache if isinstance(cache, Cut) else Cut.parse(str(cache))
    codec = check_cut(pipeline, cut)
    if cut.k > steady or isinstance(codec, AheadCodec):
        raise ConfigError(
            f"cache: the result of {cut} differs in every epoch; results of the first {steady} ops can be kept, such "
            f"as {steady}:raw"
        )
    if not codec.exact:
        raise ConfigError(f"cache: {cut.codec} changes the pixels; use raw, zstd or webp")
    return cut


class PrefixCache:
    """Payloads of one kind, by sample.

    Args:
        folder: Folder of the cache.
        cut: Cut of the payloads.
        max_bytes: Upper bound on their total size.
        about: The data set and ops that the payloads belong to, in words.
    """

    def __init__(self, folder: Path, cut: Cut, max_bytes: int, about: str = "") -> None:
        self.folder = folder
        self.cut = cut
        self._max_bytes = max_bytes
        self._is_full = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "bytes").touch()
        except OSError as error:
            raise ConfigError(f"cache: {folder} cannot be written to ({error}); choose another folder") from error
        self._about = about
        used(folder, about)
        self._held = hold(folder)

    def __reduce__(self) -> tuple[object, ...]:
        return PrefixCache, (self.folder, self.cut, self._max_bytes, self._about)  # the receiving process holds it too

    @property
    def used_bytes(self) -> int:
        """Bytes used by all processes together."""
        text = (self.folder / "bytes").read_bytes()
        return int(_COUNT.unpack(text)[0]) if len(text) == _COUNT.size else 0

    def get(self, sample: int, columns: tuple[str, ...], stamp: str = "") -> Reply | None:
        """Return a sample's reply, or None if the entry is missing, incomplete or out of date, or lacks a column.

        Args:
            sample: Index of the sample.
            columns: Names of the columns that are wanted.
            stamp: Distinguishes the sample's file from an earlier one of the same name; "" if unknown.
        """
        try:
            data = self._path(sample).read_bytes()
            magic, crc, length = _HEAD.unpack_from(data)
            if magic != _MAGIC or zlib.crc32(memoryview(data)[8:]) != crc:
                return None
            end = _HEAD.size + length
            header = json.loads(data[_HEAD.size : end])
            if stamp and header.get("stamp", "") != stamp:
                return None
            found, label = {name: header["columns"][name] for name in columns}, header["label"]
        except (OSError, struct.error, ValueError, KeyError, TypeError, RecursionError):
            return None
        return Reply(0, self.cut, memoryview(data)[end:], label, columns=found, is_cached=True)

    def put(self, sample: int, reply: Reply, stamp: str = "") -> None:
        """Keep a sample's reply if there is room; a failing disk does not stop training."""
        header = json.dumps({"label": reply.label, "columns": reply.columns, "stamp": stamp}).encode()
        body = struct.pack("<I", len(header)) + header + bytes(reply.payload)
        data = _MAGIC + struct.pack("<I", zlib.crc32(body)) + body
        path = self._path(sample)
        try:
            path.parent.mkdir(exist_ok=True)
            replaced = path.stat().st_size if path.exists() else 0
            if not self._take(len(data) - replaced):
                return
            with replacing(path, beside=self.folder) as file:
                file.write(data)
        except OSError:
            self._is_full = True

    def _take(self, size_bytes: int) -> bool:
        """Count bytes as used, unless that would exceed the bound; return whether it was done."""
        if self._is_full:
            return False
        with (self.folder / "bytes").open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                text = file.read()
                used = (_COUNT.unpack(text)[0] if len(text) == _COUNT.size else 0) + size_bytes
                if used > self._max_bytes:
                    return False
                file.seek(0)
                file.write(_COUNT.pack(max(used, 0)))
            finally:
                # Closing the file is not enough: a child forked in the meantime has it open too, and would keep the
                # lock.
                fcntl.flock(file, fcntl.LOCK_UN)
        return True

    def _path(self, sample: int) -> Path:
        return self.folder / str(sample // _PER_FOLDER) / str(sample)


@dataclass(frozen=True)
class Cache:
    """Settings of the cache for the results of the first ops.

    Args:
        cut: The cut to keep, such as "1:webp"; True for the results just before the first random op.
        folder: Folder of the cache; None for the user's cache folder.
        most_bytes: Upper bound on the bytes kept for one data set and these ops.
    """

    cut: bool | str | Cut = True
    folder: str | PathLike[str] | None = None
    most_bytes: int = DEFAULT_BYTES


def cache_for(
    pipeline: Pipeline,
    opened: Opened,
    cut: Cut,
    settings: Cache,
    fields: tuple[str, ...] = (),
    checked: str = "",
    columns: tuple[str, ...] = (),
    address: str = "",
) -> PrefixCache:
    """Return the cache of a job; other data, fields, columns, ops or software use a different one.

    Args:
        pipeline: Pipeline whose first ops are cached.
        opened: The opened data set.
        cut: The cut to keep.
        settings: Folder and size.
        fields: Names of the fields that are kept besides the first.
        checked: How replies from nodes are checked; entries stored without checks are not used if there are checks.
        columns: Names of the columns that are kept with the payloads.
        address: Address that the user gave for the nodes; "" for files. What one node sent is not used in the place of
            another's: a node may say that it holds the same data, and send something else.
    """
    base = user_folder() if settings.folder is None else Path(settings.folder)
    if base is None:
        raise ConfigError("cache: there is no home folder for a cache; give a folder")
    most_bytes = settings.most_bytes
    if isinstance(most_bytes, bool) or not isinstance(most_bytes, int) or most_bytes < 1:
        raise ConfigError(f"cache: most_bytes: expected an integer of at least 1, got {most_bytes!r}")
    job = [opened.fingerprint, pipeline.prefix(cut.k).fingerprint if cut.k else "", str(cut), json.dumps(versions())]
    job += fields
    job += [f"checked: {checked}"] if checked else []
    job += [f"columns: {opened.columns_digest}"] if set(columns) - {"id"} else []
    job += [f"state: {opened.state}"] if opened.state else []
    job += [f"address: {address}"] if address else []
    name = hashlib.sha256("\n".join(job).encode()).hexdigest()[:32]
    folder = base / "prefixes"
    try:
        make_private(folder)
        problem = not_private(base) or not_private(folder)
    except OSError as error:
        raise ConfigError(f"cache: {folder} cannot be written to ({error.strerror}); choose another folder") from error
    if problem is not None:
        raise ConfigError(f"cache: {problem}")
    tidy(base)
    about = f"{opened.name}: {in_words(pipeline.prefix(cut.k)) if cut.k else 'raw files'}, as {cut.codec}"
    return PrefixCache(folder / name, cut, most_bytes, about)


class CachedTransport(Transport):
    """A cache in front of another transport.

    Args:
        inner: Source of the samples that are not in the cache.
        cache: The cache.
        pipeline: Pipeline whose first ops are cached.
        asks: The cut to request: the cache's own, or raw files if the other side would give different bits.
    """

    def __init__(self, inner: Transport, cache: PrefixCache, pipeline: Pipeline, asks: Cut) -> None:
        self.inner = inner
        self.cache = cache
        self.pipeline = pipeline
        self.asks = asks
        self.address = inner.address
        self.is_remote = inner.is_remote

    def open(self, pipeline: Pipeline) -> Opened:
        """Open the data set through the wrapped transport."""
        return self.inner.open(pipeline)

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Read what is cached, request the rest, and keep it."""
        return _CachedFetch(self, request, timeout_s)

    def close(self) -> None:
        """Close the wrapped transport."""
        self.inner.close()


class _CachedFetch(Fetch):
    def __init__(self, transport: CachedTransport, request: Request, timeout_s: float) -> None:
        self._transport = transport
        self._request = request
        self._timeout_s = timeout_s
        self._fetch: Fetch | None = None
        self._cancelled = False
        self._stamps: dict[int, str] = {}

    def __iter__(self) -> Iterator[Reply]:
        transport, request, cut = self._transport, self._request, self._transport.cache.cut
        missing = []
        for position, sample in enumerate(request.samples):
            wanted = request.cuts[position] == cut  # it is not when only the name of a file is looked up
            stamp = transport.inner.stamp(sample) if wanted else ""  # before reading: may be stale, never wrong
            reply = transport.cache.get(sample, request.columns, stamp) if wanted else None
            if reply is None:
                missing.append(position)
                self._stamps[position] = stamp
                continue
            reply.position = position
            yield reply
        if not missing:
            return
        rest = replace(
            request,
            samples=tuple(request.samples[position] for position in missing),
            cuts=tuple(transport.asks if request.cuts[p] == cut else request.cuts[p] for p in missing),
            keys=tuple(request.keys[position] for position in missing) if request.keys else (),
            firsts=tuple(request.firsts[position] for position in missing) if request.firsts else (),
        )
        self._fetch = transport.inner.fetch(rest, self._timeout_s)
        if self._cancelled:  # checked after `_fetch` is set, which `cancel` uses
            return
        for reply in self._fetch:
            self.clock = self._fetch.clock
            reply.position = missing[reply.position]
            if request.cuts[reply.position] == cut and reply.error is None:
                self._keep(reply)
            yield reply

    @property
    def heard_s(self) -> float:
        """When the wrapped transport last gave a sign of life."""
        return 0.0 if self._fetch is None else self._fetch.heard_s

    def _keep(self, reply: Reply) -> None:
        """Run the remaining ops of the prefix and keep the result; a file on which they fail stays unchanged."""
        cut, sample = self._transport.cache.cut, self._request.samples[reply.position]
        if reply.cut == RAW != cut:
            key = Key(self._request.seed, self._request.epoch, sample)
            try:
                reply.payload = make_payload(self._transport.pipeline, bytes(reply.payload), key, cut)
            except OpError:
                return
            reply.cut = cut
        if reply.cut == cut:
            self._transport.cache.put(sample, reply, self._stamps[reply.position])

    def cancel(self) -> None:
        self._cancelled = True
        fetch = self._fetch
        if fetch is not None:
            fetch.cancel()
