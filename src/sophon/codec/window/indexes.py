"""Indexes of files that were seen before, kept in memory.

An index is found by a hash of the file's bytes, so it can never be one of another file, whatever happens on disk. When
there is no room left, nothing is thrown out: an epoch touches every sample once, in random order, and a cache that
makes room for the newest would have thrown out each index before it is needed again.

Concurrency: may be used by any number of threads; two that build the same index at once keep one of them.
Limits: `max_bytes`, about 2.4 % of the bytes of the files indexed; 256 MB are enough for 10 GB of photos. Worker
processes have a cache each.
"""

from __future__ import annotations

import threading

from sophon.codec.window.header import Header
from sophon.codec.window.jpeg import Data, Index, build_index, fingerprint

_ENTRY_BYTES = 300  # of a dict entry, an Index and its bytes object, beside the points themselves
DEFAULT_MAX_BYTES = 256_000_000


class Indexes:
    """A bounded set of indexes.

    Args:
        max_bytes: Bound on the memory of all of them.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._by_file: dict[int, Index] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_file)

    @property
    def packed_bytes(self) -> int:
        """Bytes of all indexes in the form for files."""
        return sum(len(index.to_bytes()) for index in self._by_file.values())

    def find(self, data: Data) -> Index | None:
        """Return the index of a file that was seen before."""
        return self._by_file.get(fingerprint(data)) if self._by_file else None

    def build(self, data: Data, header: Header) -> Index | None:
        """Build the index of a file and keep it; None if there is no room for it.

        Raises:
            NotWindowable: No window can be cut from the file.
        """
        if self.held_bytes >= self.max_bytes:
            return None
        index = build_index(data, header)
        with self._lock:
            if index.fingerprint not in self._by_file:
                self._by_file[index.fingerprint] = index
                self.held_bytes += len(index.points) + _ENTRY_BYTES
        return index


INDEXES = Indexes()
"""Those of this process."""
