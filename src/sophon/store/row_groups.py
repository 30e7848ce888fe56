"""A cache of decoded row groups, bounded in bytes.

Concurrency:
    Any thread may request row groups. Threads that want the same one wait for the thread that decodes it; a thread
    waits for different row groups only while those being decoded would exceed the bound together with its own.

Limits:
    Row groups being decoded have the same bound again, and those being read are not counted: the peak is twice the
    bound, and what readers hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa
from cachetools import LRUCache

from sophon.errors import ConfigError
from sophon.process.renewal import renew_after_fork

Key: TypeAlias = tuple[int, ...]


class RowGroupCache:
    """Keeps the most recently used row groups.

    Args:
        limit_bytes: How many bytes of row groups to keep; 0 keeps none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._groups = _cache_of(limit_bytes)
        self._loading: dict[Key, Future[pa.ChunkedArray]] = {}
        self._lock = threading.Lock()
        self._decoding_bytes = 0
        self._decoded = threading.Condition(self._lock)
        renew_after_fork(self)

    @property
    def limit_bytes(self) -> int:
        """Maximum number of bytes kept; may be set at any time."""
        return int(self._groups.maxsize)

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        groups = _cache_of(limit_bytes)
        with self._lock:
            while self._groups:
                self._keep(groups, *self._groups.popitem())  # the least recently used comes first
            self._groups = groups

    @property
    def held_bytes(self) -> int:
        """How many bytes are in the cache now."""
        return int(self._groups.currsize)

    def get(self, key: Key, decode: Callable[[], pa.ChunkedArray], nbytes: int = 0) -> pa.ChunkedArray:
        """Return a row group, decoding it if it is not in the cache; errors from `decode` are passed on.

        Args:
            key: Which row group.
            decode: Decodes it.
            nbytes: Its size.
        """
        with self._lock:
            group = self._groups.get(key)
            if group is not None:
                return group
            pending = self._loading.get(key)
            mine = pending is None
            if pending is None:
                pending = self._loading[key] = Future()
        if not mine:
            return pending.result()
        try:
            with self.decoding(nbytes):
                group = decode()
        except BaseException as error:
            with self._lock:
                self._loading.pop(key, None)
            pending.set_exception(error)
            raise
        with self._lock:
            self._loading.pop(key, None)
            self._keep(self._groups, key, group)
        pending.set_result(group)
        return group

    @contextmanager
    def decoding(self, nbytes: int) -> Iterator[None]:
        """Wait until so many bytes may be decoded besides what other threads decode; any number may be, alone."""
        with self._lock:
            while self._decoding_bytes and self._decoding_bytes + nbytes > self.limit_bytes:
                self._decoded.wait()
            self._decoding_bytes += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._decoding_bytes -= nbytes
                self._decoded.notify_all()

    def clear(self) -> None:
        """Drop all row groups."""
        with self._lock:
            self._groups.clear()

    def renew(self) -> None:
        """In a forked child, forget the locks and decoding threads of the parent."""
        self._lock = threading.Lock()
        self._decoding_bytes = 0
        self._decoded = threading.Condition(self._lock)
        self._loading = {}
        # A thread of the parent may have been in the middle of changing the table.
        groups, self._groups = dict(self._groups), _cache_of(self.limit_bytes)
        for key, group in groups.items():
            self._keep(self._groups, key, group)

    @staticmethod
    def _keep(groups: LRUCache[Key, pa.ChunkedArray], key: Key, group: pa.ChunkedArray) -> None:
        if group.nbytes <= groups.maxsize:  # the cache rejects larger items
            groups[key] = group


def _cache_of(limit_bytes: int) -> LRUCache[Key, pa.ChunkedArray]:
    if limit_bytes < 0:
        raise ConfigError(f"expected a cache of at least 0 bytes, got {limit_bytes}")
    return LRUCache(limit_bytes, getsizeof=lambda group: int(group.nbytes))
