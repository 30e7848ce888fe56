"""A store with slow reads, like those of an object store or of a disk that has to seek.

`sophon.bench.rig.slow_store_plugin` uses it for all image folders of a server that imports the plug-in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sophon.store import Store
from sophon.store.folder import FolderStore
from sophon.store.table import STORES

READ_S = 0.05


class SlowFolderStore(FolderStore):
    """An image folder in which each sample takes `READ_S` longer to read."""

    def _read(self, index: int) -> bytes:
        time.sleep(READ_S)
        return super()._read(index)

    def _read_into(self, index: int, space: memoryview) -> int:
        time.sleep(READ_S)
        return super()._read_into(index, space)

    read_run = Store.read_run  # one by one


@contextmanager
def slow_folders() -> Iterator[None]:
    """Make image folders slow to read in this process, while a ``with`` block lasts."""
    usual = STORES["folder"]
    STORES["folder"] = SlowFolderStore
    try:
        yield
    finally:
        STORES["folder"] = usual
