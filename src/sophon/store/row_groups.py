"""A cache of decoded row groups, bounded in bytes.

Concurrency:
    Any number of threads may ask. Those that want the same row group at once wait for the one that decodes it; nobody
    waits for another row group.

Limits:
    Row groups that are being decoded or read from are not counted: the peak is the bound plus one row group per thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import pyarrow as pa

from sophon.errors import ConfigError
from sophon.store.fork import renew_after_fork

Key: TypeAlias = tuple[int, int]


class RowGroupCache:
    """The row groups used last.

    Args:
        limit_bytes: How many bytes of them to keep; 0 keeps none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._groups: OrderedDict[Key, pa.ChunkedArray] = OrderedDict()
        self._loading: dict[Key, Future[pa.ChunkedArray]] = {}
        self._held_bytes = 0
        self._lock = threading.Lock()
        self.limit_bytes = limit_bytes
        renew_after_fork(self)

    @property
    def limit_bytes(self) -> int:
        """How many bytes are kept; may be set at any time."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ConfigError(f"expected a cache of at least 0 bytes, got {limit_bytes}")
        with self._lock:
            self._limit_bytes = limit_bytes
            self._shrink()

    @property
    def held_bytes(self) -> int:
        """How many bytes are in the cache now."""
        return self._held_bytes

    def get(self, key: Key, decode: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
        """Return a row group, decoding it if it is not in the cache; what `decode` raises comes through."""
        with self._lock:
            group = self._groups.get(key)
            if group is not None:
                self._groups.move_to_end(key)
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
            self._groups[key] = group
            self._held_bytes += group.nbytes
            self._shrink()
        pending.set_result(group)
        return group

    def clear(self) -> None:
        """Drop all row groups."""
        with self._lock:
            self._groups.clear()
            self._held_bytes = 0

    def renew(self) -> None:
        """Forget, in a forked child, who holds the lock and who decodes."""
        self._lock = threading.Lock()
        self._loading = {}
        # The parent may have been between two steps of changing the table.
        self._held_bytes = sum(group.nbytes for group in self._groups.values())

    def _shrink(self) -> None:
        while self._groups and self._held_bytes > self._limit_bytes:
            _, group = self._groups.popitem(last=False)
            self._held_bytes -= group.nbytes
