"""Stores, which hold raw samples, and the manifest that lists their samples."""

from sophon.store.cache import cache_file
from sophon.store.folder import IMAGE_SUFFIXES, FolderStore
from sophon.store.listing.store import ListingStore
from sophon.store.manifest import NO_LABEL, Manifest
from sophon.store.parquet import ParquetStore
from sophon.store.store import Progress, Store
from sophon.store.table import STORES, open_store
from sophon.store.tar import TarStore

__all__ = [
    "IMAGE_SUFFIXES",
    "NO_LABEL",
    "STORES",
    "FolderStore",
    "ListingStore",
    "Manifest",
    "ParquetStore",
    "Progress",
    "Store",
    "TarStore",
    "cache_file",
    "open_store",
]
