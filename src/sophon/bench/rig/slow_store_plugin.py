"""Makes image folders slow to read in a server that imports this module (``--import``)."""

from __future__ import annotations

from sophon.bench.rig.slow_store import SlowFolderStore
from sophon.store.table import STORES

STORES["folder"] = SlowFolderStore
