"""Indexes of files seen before, kept in memory.

An index is found by the name of a file: a hash of its bytes under a secret key (`names`). So it never belongs to a
different file, whatever happens on disk and whoever made the files, and one table can serve the data sets of all
tenants. When the cache is full, nothing is evicted: an epoch touches every sample once, in random order, and a cache
that evicts would drop each index before it is needed again.

Indexes in a sidecar file are found in the same way, by names with the user's key, and take no memory beyond the file's
list of names.

Concurrency: may be used by any number of threads; if two threads build the same index at the same time, one copy is
kept. Limits: `max_bytes`. Indexes take about 2.4 % of the bytes of their files; 256 MB are enough for 10 GB of photos.
Each worker process has its own indexes.
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import TYPE_CHECKING

from sophon.codec.window.header import Header
from sophon.codec.window.jpeg import Data, Index, build_index
from sophon.codec.window.names import Names

if TYPE_CHECKING:
    from sophon.codec.window.sidecar import Sidecar  # needs pyarrow, which takes a tenth of a second to load

_ENTRY_BYTES = 300  # overhead of a dict entry, an Index and its bytes object, in addition to the points
_SECRET_BYTES = 32
DEFAULT_MAX_BYTES = 256_000_000


class Indexes:
    """A bounded set of indexes.

    Args:
        max_bytes: Upper bound on the total memory of the indexes.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._names = Names(secrets.token_bytes(_SECRET_BYTES))
        self._by_name: dict[int, Index] = {}
        self._sidecars: tuple[Sidecar, ...] = ()
        self.renew()

    def renew(self) -> None:
        """Replace the lock in a forked child, where a thread that held it no longer exists."""
        self._lock = threading.Lock()

    def attach(self, sidecar: Sidecar) -> None:
        """Also look for indexes in a file; attaching a file again replaces its earlier contents."""
        with self._lock:
            if not self._by_name:
                self._names = sidecar.names  # the same for both: a file needs one name only
            others = [other for other in self._sidecars if other.path != sidecar.path]
            self.held_bytes += sidecar.held_bytes - sum(o.held_bytes for o in self._sidecars if o not in others)
            self._sidecars = (*others, sidecar)

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, data: Data) -> Index | None:
        """Return the index of a file seen before or found in a sidecar."""
        if not (self._by_name or self._sidecars):
            return None
        names = self._names
        name = names.of(data)
        index = self._by_name.get(name)
        for sidecar in self._sidecars if index is None else ():
            if sidecar.names is not names:
                names = sidecar.names
                name = names.of(data)
            if (index := sidecar.find(name)) is not None:
                break
        return index

    def build(self, data: Data, header: Header) -> Index | None:
        """Build the index of a file and keep it; None if the cache is full.

        Raises:
            NotWindowable: No window can be cut from the file.
        """
        if self.held_bytes >= self.max_bytes:
            return None
        index = build_index(data, header)
        name = self._names.of(data)
        with self._lock:
            if name not in self._by_name:
                self._by_name[name] = index
                self.held_bytes += len(index.points) + _ENTRY_BYTES
        return index


INDEXES = Indexes()
"""The indexes of this process."""
os.register_at_fork(after_in_child=INDEXES.renew)
