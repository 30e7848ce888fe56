"""A cache of decoded row groups, bounded in bytes.

Concurrency:
    Any thread may request row groups. Threads that want the same one wait for the thread that decodes it; no thread
    waits for a different row group.

Limits:
    Row groups being decoded or read are not counted: the peak is the bound plus one row group per thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
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

    def get(self, key: Key, decode: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
        """Return a row group, decoding it if it is not in the cache; errors from `decode` are passed on."""
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

    def clear(self) -> None:
        """Drop all row groups."""
        with self._lock:
            self._groups.clear()

    def renew(self) -> None:
        """In a forked child, forget the locks and decoding threads of the parent."""
        self._lock = threading.Lock()
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
