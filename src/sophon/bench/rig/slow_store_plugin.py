"""Imported by a server (``--import``), it makes image folders slow to read."""

from __future__ import annotations

from sophon.bench.rig.slow_store import SlowFolderStore
from sophon.store.table import STORES

STORES["folder"] = SlowFolderStore
